#include "tessera/comm/processes/remote_call.h"

#include <ATen/ops/empty.h>

#include "tessera/comm/fake/fake.h"

namespace tessera::comm {
namespace {

void pack_shapes(Packer& message, at::TensorList tensors) {
  message.number(tensors.size());
  for (const auto& tensor : tensors) {
    pack_shape(message, tensor);
  }
}

std::vector<at::Tensor> unpack_shapes(Unpacker& message) {
  std::vector<at::Tensor> tensors;
  for (auto left = message.number(); left > 0; --left) {
    tensors.push_back(unpack_shape(message));
  }
  return tensors;
}

std::string entry_text(const Program::Entry& entry) {
  const auto printer = detail_printer();
  return std::string(entry.op) + (printer && entry.detail ? " " + printer(entry.detail) : "");
}

void pack_merge(Packer& message, const Merge& merge) {
  const auto pack_ranges = [&](const auto& ranges) {
    message.number(ranges.size());
    for (const auto& range : ranges) {
      message.number(static_cast<uint64_t>(range.begin)).number(static_cast<uint64_t>(range.end));
    }
  };
  pack_ranges(std::vector<sums::Node>{merge.plan.root()});
  message.number(merge.plan.nodes().size());
  for (const auto& held : merge.plan.nodes()) {
    pack_ranges(held);
  }
  message.number(static_cast<uint64_t>(c10::typeMetaToScalarType(merge.options.dtype())))
      .numbers(merge.sizes)
      .number(merge.scatter.has_value());
  if (merge.scatter) {
    message.number(static_cast<uint64_t>(merge.scatter->dim));
    pack_ranges(merge.scatter->parts);
  }
}

template <typename Range>
std::vector<Range> unpack_ranges(Unpacker& message) {
  std::vector<Range> ranges(message.number());
  for (auto& range : ranges) {
    range.begin = static_cast<int64_t>(message.number());
    range.end = static_cast<int64_t>(message.number());
  }
  return ranges;
}

sums::MergePlan unpack_plan(Unpacker& message) {
  const auto root = unpack_ranges<sums::Node>(message);
  sums::MergePlan::Nodes nodes(message.number());
  for (auto& held : nodes) {
    held = unpack_ranges<sums::Node>(message);
  }
  return {std::move(nodes), root.at(0)};
}

Merge unpack_merge(Unpacker& message, const sums::MergePlan& plan) {
  Merge merge{.plan = plan, .options = at::TensorOptions().dtype(static_cast<at::ScalarType>(message.number()))};
  merge.sizes = message.numbers();
  if (message.number()) {
    merge.scatter = sums::Scatter{.dim = static_cast<int64_t>(message.number())};
    merge.scatter->parts = unpack_ranges<layout::Range>(message);
  }
  return merge;
}

// The tensors that two members have for each other, by position: the lists of collectives have one for each member.
std::vector<at::Tensor> pair_of(at::TensorList tensors, int64_t first, int64_t second, int64_t members) {
  if (static_cast<int64_t>(tensors.size()) != members) {
    return tensors.vec();
  }
  return {tensors[static_cast<size_t>(first)], tensors[static_cast<size_t>(second)]};
}

}  // namespace

void pack_shape(Packer& message, const at::Tensor& tensor) {
  message.number(static_cast<uint64_t>(tensor.scalar_type())).number(tensor.is_cpu()).numbers(tensor.sizes());
}

at::Tensor unpack_shape(Unpacker& message) {
  const auto dtype = static_cast<at::ScalarType>(message.number());
  const auto device = message.number() ? at::kCPU : at::kMeta;
  return at::empty({}, at::TensorOptions().dtype(dtype).device(device)).expand(message.numbers());
}

void pack_call(Packer& message, const Call& call) {
  message.number(static_cast<uint64_t>(call.kind))
      .number(static_cast<uint64_t>(call.reduce))
      .number(static_cast<uint64_t>(call.peer))
      .number(static_cast<uint64_t>(call.tag))
      .text(call.op);
  pack_shapes(message, call.inputs);
  pack_shapes(message, call.outputs);
  message.number(call.merge != nullptr);
  if (call.merge) {
    pack_merge(message, *call.merge);
  }
  message.number(call.program != nullptr);
  if (call.program) {
    message.number(call.program->hash).number(call.program->count);
    for (const auto& entry : call.program->last) {
      message.number(entry.hash).text(entry_text(entry));
    }
  }
}

RemoteCall::RemoteCall(Unpacker& message, const Communicator& group, int64_t rank) {
  const auto& ranks = group.ranks();
  group_ = make_fake_world(*std::max_element(ranks.begin(), ranks.end()) + 1, rank)->split({ranks}, group.name());
  call_.group = group_.get();
  call_.kind = static_cast<Kind>(message.number());
  call_.reduce = static_cast<ReduceOp>(message.number());
  call_.peer = static_cast<int64_t>(message.number());
  call_.tag = static_cast<int64_t>(message.number());
  call_.op = texts_.emplace_back(message.text()).c_str();
  inputs_ = unpack_shapes(message);
  outputs_ = unpack_shapes(message);
  call_.inputs = inputs_;
  call_.outputs = outputs_;
  if (message.number()) {
    plan_.emplace(unpack_plan(message));
    call_.merge = &merge_.emplace(unpack_merge(message, *plan_));
  }
  if (message.number()) {
    program_.hash = message.number();
    program_.count = message.number();
    for (auto& entry : program_.last) {
      entry.hash = message.number();
      entry.op = texts_.emplace_back(message.text()).c_str();
    }
    call_.program = &program_;
  }
}

std::string divergence_from(const Call& own, const RemoteCall& other) {
  // The comparison wants all members; two of them, with what they have for each other, are a collective of two.
  auto mine = own, theirs = other.call();
  const auto here = own.group->rank(), there = theirs.group->rank(), members = own.group->size();
  const auto first = std::min(here, there), second = std::max(here, there);
  std::vector<at::Tensor> lists[] = {
      pair_of(mine.inputs, first, second, members), pair_of(mine.outputs, first, second, members),
      pair_of(theirs.inputs, first, second, members), pair_of(theirs.outputs, first, second, members)};
  mine.inputs = lists[0];
  mine.outputs = lists[1];
  theirs.inputs = lists[2];
  theirs.outputs = lists[3];
  return here < there ? divergence_of({&mine, &theirs}) : divergence_of({&theirs, &mine});
}

}  // namespace tessera::comm
