#include "tessera/comm/merge/exact_merge.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::comm {

namespace {

using sums::Node;
using layout::Range;

template <typename Item>
int64_t count_of(const std::vector<Item>& items) {
  return static_cast<int64_t>(items.size());
}

// Sums of fewer bytes are gathered whole: one exchange instead of two.
constexpr int64_t kGatherBytes = 64 << 10;

// One merge on one member.
class Copies {
 public:
  Copies(Communicator& group, const Merge& merge) : group_(group), merge_(merge), nodes_(merge.plan.nodes()) {}

  std::vector<NodeSum> run() {
    if (merge_.scatter) {
      return exchange(rows(merge_.sizes), merge_.scatter->dim, merge_.scatter->parts);
    }
    const int64_t numel = c10::multiply_integers(merge_.sizes);
    return numel * static_cast<int64_t>(merge_.options.dtype().itemsize()) < kGatherBytes ? gather()
                                                                                          : exchange_and_gather(numel);
  }

 private:
  // This member's sums, one after the other, each of these sizes.
  at::Tensor rows(at::IntArrayRef sizes) const {
    std::vector<int64_t> all = {static_cast<int64_t>(merge_.sums.size())};
    all.insert(all.end(), sizes.begin(), sizes.end());
    if (merge_.sums.empty()) {
      return at::empty(all, merge_.options);
    }
    return (merge_.sums.size() == 1 ? merge_.sums[0].unsqueeze(0) : at::stack(merge_.sums)).reshape(all);
  }

  std::vector<at::Tensor> buffers(const std::vector<int64_t>& sizes) const {
    std::vector<at::Tensor> result;
    for (const std::vector<Node>& held : nodes_) {
      std::vector<int64_t> all = {count_of(held)};
      all.insert(all.end(), sizes.begin(), sizes.end());
      result.push_back(at::empty(all, merge_.options));
    }
    return result;
  }

  // The closed nodes of rows that came from all members.
  std::vector<NodeSum> close_received(const std::vector<at::Tensor>& received) const {
    std::vector<NodeSum> all;
    for (size_t member = 0; member < nodes_.size(); ++member) {
      for (size_t i = 0; i < nodes_[member].size(); ++i) {
        all.push_back({nodes_[member][i], received[member].select(0, static_cast<int64_t>(i))});
      }
    }
    return close_nodes(std::move(all), merge_.plan.root());
  }

  std::vector<NodeSum> gather() {
    std::vector<at::Tensor> received = buffers(merge_.sizes);
    group_.all_gather(received, rows(merge_.sizes))->wait();
    return close_received(received);
  }

  // Each member finishes one part of the dim.
  std::vector<NodeSum> exchange(const at::Tensor& rows, int64_t dim, const std::vector<Range>& parts) {
    std::vector<int64_t> sizes = rows.sizes().slice(1).vec();
    sizes[dim] = parts[group_.rank()].size();
    std::vector<at::Tensor> sent, received = buffers(sizes);
    for (const Range& part : parts) {
      sent.push_back(rows.narrow(dim + 1, part.begin, part.size()).contiguous());
    }
    group_.all_to_all(received, sent)->wait();
    return close_received(received);
  }

  // Each member finishes one shard of the elements, and hands it to all.
  std::vector<NodeSum> exchange_and_gather(int64_t numel) {
    std::vector<Range> shards;
    for (int64_t i = 0; i < group_.size(); ++i) {
      shards.push_back(layout::cut(numel, group_.size(), i));
    }
    const std::vector<NodeSum> mine = exchange(rows({numel}), 0, shards);
    std::vector<NodeSum> result;
    std::vector<WorkPtr> works;
    for (const NodeSum& shard : mine) {
      at::Tensor whole = at::empty({numel}, merge_.options);
      std::vector<at::Tensor> outputs;
      for (const Range& range : shards) {
        outputs.push_back(whole.narrow(0, range.begin, range.size()));
      }
      works.push_back(group_.all_gather(std::move(outputs), shard.sum));
      result.push_back({shard.node, whole.view(merge_.sizes)});
    }
    for (const WorkPtr& work : works) {
      work->wait();
    }
    return result;
  }

  Communicator& group_;
  const Merge& merge_;
  const sums::MergePlan::Nodes& nodes_;
};

void verify_scatter(const Communicator& group, const Merge& merge) {
  const auto& [dim, parts] = *merge.scatter;
  TESSERA_CHECK(dim >= 0 && dim < static_cast<int64_t>(merge.sizes.size()), "[merge] dim ", dim, " of ", merge.str(),
                " over ", group.name());
  for (const Range& part : parts) {
    TESSERA_CHECK(0 <= part.begin && part.begin <= part.end && part.end <= merge.sizes[dim], "[merge] part ",
                  part.begin, " to ", part.end, " of ", merge.str(), " over ", group.name());
  }
  TESSERA_CHECK(static_cast<int64_t>(parts.size()) == group.size(), "[merge] ", merge.str(), " over ", group.name(),
                "; one part for each of its ", group.size(), " members is accepted");
}

}  // namespace

std::string Merge::str() const {
  std::string text = c10::str(plan.str(), ", ", c10::typeMetaToScalarType(options.dtype()), at::IntArrayRef(sizes));
  if (!scatter) {
    return text;
  }
  return text +
         c10::str(", dim ", scatter->dim, " in ",
                  base::join(scatter->parts, ",", [](std::ostream& out, const Range& part) { out << part.size(); }));
}

void verify_merge(const Communicator& group, const Merge& merge) {
  TESSERA_CHECK(static_cast<int64_t>(merge.plan.nodes().size()) == group.size(), "[merge] ", merge.str(), " over ",
                group.name(), "; the nodes of each of its ", group.size(), " members are accepted");
  const auto& own = merge.plan.nodes()[group.rank()];
  TESSERA_CHECK(own.size() == merge.sums.size(), "[merge] ", merge.sums.size(), " sums for ", own.size(), " nodes of ",
                merge.str(), " over ", group.name());
  TESSERA_CHECK(c10::isFloatingType(c10::typeMetaToScalarType(merge.options.dtype())), "[merge] ", merge.str(),
                " over ", group.name(), "; floating point is accepted");
  for (const at::Tensor& sum : merge.sums) {
    TESSERA_CHECK(sum.sizes() == merge.sizes && sum.dtype() == merge.options.dtype() && sum.is_contiguous(),
                  "[merge] a sum of ", sum.scalar_type(), sum.sizes(), " and strides ", sum.strides(), " in ",
                  merge.str(), " over ", group.name(), "; these sizes, contiguous, are accepted");
  }
  if (merge.scatter) {
    verify_scatter(group, merge);
  }
}

bool is_same(const Merge& a, const Merge& b) {
  return (&a.plan == &b.plan || a.plan == b.plan) && a.sizes == b.sizes && a.options.dtype() == b.options.dtype() &&
         a.options.device() == b.options.device() && a.scatter == b.scatter;
}

std::vector<NodeSum> merge_by_copies(Communicator& group, const Merge& merge) {
  verify_merge(group, merge);
  return Copies(group, merge).run();
}

std::vector<NodeSum> Communicator::merge(const Merge& merge) { return merge_by_copies(*this, merge); }

std::vector<NodeSum> close_nodes(std::vector<NodeSum> nodes, const Node& root) {
  return sums::close_items(std::move(nodes), root,
                           [](NodeSum& left, const NodeSum& right) { left.sum = at::add(left.sum, right.sum); });
}

std::vector<sums::MergePlan::Nodes> exchange_nodes(Communicator& group, const std::vector<std::vector<Node>>& mine,
                                                   const Node& root, at::Device device) {
  const int64_t length = 1 + 2 * root.size();  // of one sum's list
  const at::Tensor own = at::zeros({count_of(mine), length}, at::kLong);
  for (int64_t i = 0; i < count_of(mine); ++i) {
    int64_t* numbers = own.mutable_data_ptr<int64_t>() + i * length;
    *numbers++ = count_of(mine[i]);
    for (const Node& node : mine[i]) {
      *numbers++ = node.begin, *numbers++ = node.end;
    }
  }
  const at::Tensor sent = own.to(device);
  std::vector<at::Tensor> received;
  for (int64_t member = 0; member < group.size(); ++member) {
    received.push_back(at::empty_like(sent));
  }
  group.all_gather(received, sent)->wait();
  std::vector<sums::MergePlan::Nodes> nodes(mine.size(), sums::MergePlan::Nodes(group.size()));
  for (int64_t member = 0; member < group.size(); ++member) {
    const at::Tensor there = received[member].to(at::kCPU);
    for (int64_t i = 0; i < count_of(mine); ++i) {
      const int64_t* of = there.const_data_ptr<int64_t>() + i * length;
      for (int64_t k = 0; k < of[0]; ++k) {
        nodes[i][member].push_back({of[1 + 2 * k], of[2 + 2 * k]});
      }
    }
  }
  return nodes;
}

}  // namespace tessera::comm
