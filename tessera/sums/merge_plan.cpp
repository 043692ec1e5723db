#include "tessera/sums/merge_plan.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::sums {

namespace {

// A node that is added from two others, or brought by a member.
struct Expression {
  int32_t sum = -1;
  int32_t left = -1, right = -1;
  bool is_brought() const { return sum >= 0; }
};

struct Item {
  Node node;
  int32_t expression = 0;
};

// Writes the steps of expressions.
class StepWriter {
 public:
  StepWriter(const std::vector<Expression>& all, std::vector<MergePlan::Step>& steps) : all_(all), steps_(steps) {}

  // Slots from `free` on may be written.
  void write(int32_t expression, int32_t target, int32_t free) {
    MergePlan::Step step{.target = target};
    for (const std::vector<int32_t>& operands = widest(expression); int32_t operand : operands) {
      if (!all_[operand].is_brought()) {
        most_ = std::max(most_, free + 1);
        write(operand, ~free, free + 1);
        step.operands[step.count++] = ~free++;
        continue;
      }
      step.operands[step.count++] = all_[operand].sum;
    }
    steps_.push_back(step);
  }

  int32_t slots() const { return most_; }

 private:
  // The longest row of 1, 2, 4 or 8 operands that members bring; or else the two children.
  std::vector<int32_t> widest(int32_t expression) const {
    std::vector<int32_t> row = {expression};
    const auto is_brought = [&](int32_t operand) { return all_[operand].is_brought(); };
    while (row.size() < 8 && std::none_of(row.begin(), row.end(), is_brought)) {
      std::vector<int32_t> below;
      for (int32_t operand : row) {
        below.insert(below.end(), {all_[operand].left, all_[operand].right});
      }
      row = std::move(below);
    }
    if (row.size() == 1 || std::all_of(row.begin(), row.end(), is_brought)) {
      return row;
    }
    return {all_[expression].left, all_[expression].right};
  }

  const std::vector<Expression>& all_;
  std::vector<MergePlan::Step>& steps_;
  int32_t most_ = 0;
};

}  // namespace

bool are_children(const Node& left, const Node& right, const Node& root) {
  const Node parent{left.begin, right.end};
  return left.end == right.begin && left.begin + left_size(parent.size()) == left.end && is_node_of(parent, root);
}

void throw_overlap(const Node& a, const Node& b) {
  TESSERA_ASSERT(false, "nodes ", a.str(), " and ", b.str(), " overlap");
}

MergePlan::MergePlan(Nodes nodes, Node root) : nodes_(std::move(nodes)), root_(root) {
  std::vector<Expression> expressions;
  std::vector<Item> items;
  for (const std::vector<Node>& held : nodes_) {
    for (const Node& node : held) {
      const auto number = static_cast<int32_t>(items.size());
      expressions.push_back({.sum = number});
      items.push_back({node, number});
    }
  }
  const std::vector<Item> left = close_items(std::move(items), root_, [&](Item& a, const Item& b) {
    expressions.push_back({.left = a.expression, .right = b.expression});
    a.expression = static_cast<int32_t>(expressions.size()) - 1;
  });
  StepWriter writer(expressions, steps_);
  for (const Item& item : left) {
    writer.write(item.expression, static_cast<int32_t>(closed_.size()), 0);
    closed_.push_back(item.node);
  }
  slots_ = writer.slots();
}

std::string MergePlan::str() const {
  return root_.str() + " of " + base::join(nodes_, " | ", [](std::ostream& out, const std::vector<Node>& held) {
           out << (held.empty() ? "-" : base::join(held, " ", [](std::ostream& one, const Node& node) {
             one << node.str();
           }));
         });
}

}  // namespace tessera::sums
