#include "tessera/comm/call/call.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/merge/exact_merge.h"

namespace tessera::comm {
namespace {

class FinishedWork : public Work {
 public:
  void wait() override {}
};

// The tensors that say most about a call.
at::TensorList telling(const Call& call) {
  if (call.kind == Kind::kMerge) {
    return {};
  }
  const auto& facts = facts_of(call.kind);
  const bool is_scatter = facts.gives_to_each && !facts.takes_from_each;
  return is_scatter || call.inputs.empty() ? call.outputs : call.inputs;
}

void verify_tensors(const Call& call, at::TensorList tensors, const at::Tensor& like) {
  for (const auto& tensor : tensors) {
    TESSERA_CHECK(tensor.defined(), "[", name_of(call.kind), "] an undefined tensor over ", call.group->name());
    TESSERA_CHECK(tensor.is_contiguous(), "[", name_of(call.kind), "] a tensor of sizes ", tensor.sizes(),
                  " and strides ", tensor.strides(), " over ", call.group->name(),
                  "; tensors of a collective must be contiguous");
    TESSERA_CHECK(tensor.scalar_type() == like.scalar_type() && tensor.device() == like.device(), "[",
                  name_of(call.kind), "] tensors of ", like.scalar_type(), " on ", like.device(), " and of ",
                  tensor.scalar_type(), " on ", tensor.device(), " in one call over ", call.group->name(),
                  "; one dtype and device is accepted");
  }
}

void verify_counts(const Call& call) {
  const auto size = call.group->size();
  const auto& facts = facts_of(call.kind);
  const auto count = [&](at::TensorList tensors, const char* what) {
    TESSERA_CHECK(static_cast<int64_t>(tensors.size()) == size, "[", name_of(call.kind), "] ", tensors.size(), " ",
                  what, " over ", call.group->name(), "; one for each of its ", size, " members is accepted");
  };
  if (facts.takes_from_each) {
    count(call.outputs, "outputs");
  }
  if (facts.gives_to_each) {
    count(call.inputs, "inputs");
  }
  TESSERA_CHECK(call.peer >= 0 && call.peer < size, "[", name_of(call.kind), "] position ", call.peer, " over ",
                call.group->name(), "; 0 to ", size - 1, " is accepted");
  TESSERA_CHECK(!facts.is_message || call.peer != call.group->rank(), "[", name_of(call.kind), "] from and to rank ",
                call.group->ranks()[static_cast<size_t>(call.peer)], " itself");
}

// What a member gives to itself must fit what it expects from itself; the others are compared where members meet.
void verify_own_part(const Call& call) {
  const auto self = static_cast<size_t>(call.group->rank());
  const auto& given = call.inputs[facts_of(call.kind).gives_to_each ? self : 0];
  const auto& taken = call.outputs[facts_of(call.kind).takes_from_each ? self : 0];
  TESSERA_CHECK(given.sizes() == taken.sizes(), "[", name_of(call.kind), "] this rank gives itself sizes ",
                given.sizes(), " and expects ", taken.sizes(), " over ", call.group->name(),
                "; equal sizes are accepted");
}

void verify_reduction(const Call& call, at::ScalarType dtype) {
  const bool is_real = !at::isComplexType(dtype);
  const bool is_floating = at::isFloatingType(dtype) || !is_real;
  TESSERA_CHECK(call.reduce != ReduceOp::kAvg || is_floating, "[", name_of(call.kind), "] the average of ", dtype,
                " over ", call.group->name(), "; sum, max, min and prod are accepted");
  TESSERA_CHECK((call.reduce != ReduceOp::kMax && call.reduce != ReduceOp::kMin) || is_real, "[", name_of(call.kind),
                "] the ", layout::name_of(call.reduce), " of ", dtype, " over ", call.group->name(),
                "; sum, prod and avg are accepted");
}

}  // namespace

int64_t Call::bytes() const {
  int64_t total = 0;
  for (const auto& tensor : kind == Kind::kReceive ? outputs : inputs) {
    total += static_cast<int64_t>(tensor.nbytes());
  }
  return total;
}

std::string Call::str() const {
  std::ostringstream out;
  out << name_of(kind);
  if (kind == Kind::kMerge) {
    out << " to " << merge->str();
  } else if (facts_of(kind).reduces) {
    out << "(" << layout::name_of(reduce) << ")";
  } else if (facts_of(kind).has_root) {
    out << "(root " << peer << ")";
  } else if (is_message(kind)) {
    out << (kind == Kind::kSend ? "(to rank " : "(from rank ") << group->ranks()[static_cast<size_t>(peer)] << ", tag "
        << tag << ")";
  }
  const auto tensors = telling(*this);
  for (size_t i = 0; i < std::min<size_t>(tensors.size(), 4); ++i) {
    out << (i == 0 ? " of " : ", ") << tensors[i].scalar_type() << tensors[i].sizes()
        << (tensors[i].is_cpu() ? "" : " on device");
  }
  out << (tensors.size() > 4 ? ", ..." : "") << " over " << group->name();
  if (*op) {
    out << " for op " << op;
  }
  return out.str();
}

void verify_call(const Call& call) {
  verify_counts(call);
  if (call.inputs.empty() && call.outputs.empty()) {
    return;
  }
  const auto& like = call.outputs.empty() ? call.inputs.front() : call.outputs.front();
  verify_tensors(call, call.inputs, like);
  verify_tensors(call, call.outputs, like);
  if (call.kind == Kind::kMerge) {
    return;  // verified before its results were made
  }
  if (!call.inputs.empty() && !call.outputs.empty()) {
    verify_own_part(call);
  }
  if (facts_of(call.kind).reduces) {
    verify_reduction(call, like.scalar_type());
  }
}

at::Device device_of(const Call& call) {
  const auto tensors = call.inputs.empty() ? call.outputs : call.inputs;
  return tensors.empty() ? at::Device(at::kCPU) : tensors.front().device();
}

void verify_on_cpu(const Call& call, const char* who) {
  TESSERA_CHECK(device_of(call).is_cpu(), "[", name_of(call.kind), "] a tensor on ", device_of(call), " over ",
                call.group->name(), "; ", who, " accept tensors on cpu");
}

const std::vector<int64_t>& own_group(const Communicator& parent, const std::vector<std::vector<int64_t>>& groups,
                                      const std::string& name) {
  const auto& all = parent.ranks();
  const auto rank = all[static_cast<size_t>(parent.rank())];
  const std::vector<int64_t>* own = nullptr;
  for (const auto& group : groups) {
    const auto count = std::count(group.begin(), group.end(), rank);
    TESSERA_CHECK(count == 0 || (count == 1 && !own), "[split] rank ", rank, " stands twice in the groups of ", name);
    own = count ? &group : own;
  }
  TESSERA_CHECK(own, "[split] no group of ", name, " contains rank ", rank);
  for (const auto member : *own) {
    // Positions are mostly the ranks themselves.
    const bool is_there =
        member >= 0 && member < static_cast<int64_t>(all.size()) && all[static_cast<size_t>(member)] == member;
    TESSERA_CHECK(is_there || std::find(all.begin(), all.end(), member) != all.end(), "[split] the group {",
                  base::join(*own, ", "), "} of ", name, " over ", parent.name(), ", which lacks rank ", member);
  }
  return *own;
}

WorkPtr finished_work() { return std::make_unique<FinishedWork>(); }

}  // namespace tessera::comm
