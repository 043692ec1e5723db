#include "tessera/dtensor/dispatch/scan.h"

#include <cstring>

#include "tessera/base/hash.h"
#include "tessera/dtensor/exact/pending.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;

// First words of the arguments in a key. Spec pointers are larger than any of them.
enum Tag : uint64_t { kPlainTensor = 2, kNone, kFalse, kTrue, kInt, kInts, kNumber, kString, kTensors, kOther };

uint32_t flags_of(const Meta& meta) {
  uint32_t flags = 0;
  flags |= meta.rare->derived ? uint32_t{kDerived} : 0;
  flags |= meta.rare->pending ? uint32_t{kPending} : 0;
  flags |= is_unfinished(meta) ? uint32_t{kUnfinished} : 0;
  return flags;
}

void scan_tensor(const at::Tensor& tensor, Scan& scan) {
  if (!is_dtensor(tensor)) {
    if (!tensor.defined()) {
      scan.key.push_back(kNone);
      return;
    }
    scan.flags |= kPlain;
    scan.key.push_back(kPlainTensor);
    scan.key.push_back(static_cast<uint64_t>(tensor.scalar_type()) << 32 | static_cast<uint64_t>(tensor.dim()) << 1 |
                       static_cast<uint64_t>(tensor.unsafeGetTensorImpl()->is_wrapped_number()));
    for (int64_t size : tensor.sizes()) {
      scan.key.push_back(static_cast<uint64_t>(size));
    }
    const bool contiguous = tensor.is_contiguous();
    scan.key.push_back(contiguous);
    if (!contiguous) {
      scan.key.append(tensor.strides().begin(), tensor.strides().end());
    }
    return;
  }
  const Meta* meta = meta_of(tensor);
  if (C10_UNLIKELY(meta->rare != nullptr)) {
    scan.flags |= flags_of(*meta);
  }
  const uint64_t spec = reinterpret_cast<uint64_t>(meta->spec.get());
  if (const ParameterInfo* parameter = meta->parameter) {
    scan.key.push_back(spec | 1);
    scan.key.push_back(reinterpret_cast<uint64_t>(parameter->told_by));
    scan.parameter = parameter;
    if (C10_UNLIKELY(parameter->gather != nullptr)) {
      scan.flags |= kGathered;
    }
  } else {
    scan.key.push_back(spec);
  }
  if (!scan.origin) {
    scan.origin = meta->origin;
  }
  if (C10_UNLIKELY(!spec)) {
    scan.flags |= kDeferred;
    scan.recorder = meta->rare->recorder.get();
  } else if (C10_UNLIKELY(!meta->spec->is_everywhere)) {
    scan.flags |= kElsewhere;
  }
}

uint64_t bits_of(double number) {
  uint64_t bits;
  std::memcpy(&bits, &number, sizeof bits);
  return bits;
}

void scan_list(const IValue& value, Scan& scan) {
  const auto items = value.toListRef();
  scan.key.push_back(value.isIntList() ? kInts : kTensors);
  scan.key.push_back(items.size());
  for (const IValue& item : items) {
    if (item.isInt()) {
      scan.key.push_back(static_cast<uint64_t>(item.toInt()));
    } else if (item.isTensor()) {
      scan_tensor(item.toTensor(), scan);
    } else if (item.isBool()) {
      scan.key.push_back(item.toBool() ? kTrue : kFalse);
    } else if (item.isDouble()) {
      scan.key.push_back(bits_of(item.toDouble()));
    } else {
      scan.key.push_back(kNone);
    }
  }
}

void scan_argument(const OpInfo& info, const IValue& value, Scan& scan) {
  if (value.isTensor()) {
    scan_tensor(value.toTensor(), scan);
  } else if (value.isInt()) {
    scan.key.push_back(kInt);
    scan.key.push_back(static_cast<uint64_t>(value.toInt()));
  } else if (value.isBool()) {
    scan.key.push_back(value.toBool() ? kTrue : kFalse);
  } else if (value.isNone()) {
    scan.key.push_back(kNone);
  } else if (value.isDouble()) {
    scan.key.push_back(kNumber);
    if (info.rule && info.rule->reads_numbers) {
      scan.key.push_back(bits_of(value.toDouble()));
    }
  } else if (value.isList()) {
    scan_list(value, scan);
  } else if (value.isString()) {
    scan.key.push_back(kString);
    scan.key.push_back(base::hash_string(value.toStringRef()));
  } else {
    scan.key.push_back(kOther);
  }
}

}  // namespace

[[gnu::flatten]] void scan_arguments(const OpInfo& info, c10::ArrayRef<IValue> args, Scan& scan) {
  scan.key.push_back(static_cast<uint64_t>(info.id));
  for (const IValue& value : args) {
    scan_argument(info, value, scan);
  }
  if (C10_UNLIKELY((scan.flags & kPlain) && scan.parameter)) {
    scan.flags |= kPlainReading;
  }
}

uint64_t hash_of(const PlanCache::Key& key) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (uint64_t word : key) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull, hash ^= hash >> 29;
  }
  return hash;
}

}  // namespace tessera::dtensor
