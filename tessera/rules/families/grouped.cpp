// Products of groups of rows: one tensor holds the rows of all groups, one after the other, and `offs` where each ends.
//
// Rows that are cut are counted by each rank from where its part begins. A rank that holds some of the groups' matrices
// multiplies the rows of these, and the results add up.
#include "tessera/rules/families/families.h"

#include <algorithm>

#include <ATen/ops/bmm.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/local_args.h"
#include "tessera/rules/engine/lookups.h"

namespace tessera::rules {

namespace {

// Which of the two holds the groups as its first dim; neither: the product has.
struct Grouped {
  bool left = false, right = false;

  explicit Grouped(int64_t left_dim, int64_t right_dim) : left(left_dim == 3), right(right_dim == 3) {}
  bool is_batch() const { return left && right; }
};

c10::ScalarType dtype_of_product(const Call& call) {
  const c10::IValue& asked = call.arg("out_dtype");
  return asked.isNone() ? call.spec(0)->dtype : asked.toScalarType();
}

FactorMap grouped_map(const Call& call) {
  const auto& a = call.spec(0)->sizes;
  const auto& b = call.spec(1)->sizes;
  const Grouped grouped(call.dim_of(0), call.dim_of(1));
  FactorMap map;
  map.dtypes = {dtype_of_product(call)};
  const int group = map.add(grouped.left ? a[0] : grouped.right ? b[0] : call.spec(2)->sizes[0]);
  const int rows = map.add(a[a.size() - 2]), inner = map.add(a.back()), columns = map.add(b.back());
  const auto tensor = [&](bool has_group, int first, int second) {
    return has_group ? TensorFactors{{group}, {first}, {second}} : TensorFactors{{first}, {second}};
  };
  map.operands = {tensor(grouped.left, rows, inner), tensor(grouped.right, inner, columns)};
  map.outputs = {tensor(grouped.left == grouped.right, rows, columns)};
  if (const int offs = call.operand_of("offs"); offs >= 0) {
    map.set_operand(call, "offs", {{map.add(call.spec(offs)->sizes[0], false)}});
  }
  return map;
}

// The rows of each group among those that this rank holds.
class Groups {
 public:
  Groups(const at::Tensor& ends, layout::Range held) : held_(held) {
    const at::Tensor host = ends.to(at::kCPU, at::kLong).contiguous();
    ends_.assign(host.data_ptr<int64_t>(), host.data_ptr<int64_t>() + host.numel());
  }

  layout::Range operator[](int64_t group) const { return {place(group - 1), place(group)}; }

 private:
  int64_t place(int64_t group) const {
    return group < 0 ? 0 : std::clamp<int64_t>(ends_.at(group) - held_.begin, 0, held_.size());
  }

  layout::Range held_;
  std::vector<int64_t> ends_;
};

at::Tensor part_of(const at::Tensor& tensor, int64_t dim, layout::Range range) {
  return tensor.narrow(dim, range.begin, range.size());
}

// libtorch's own kernel wants rows at multiples of 16 bytes, which parts are not always; on CPUs it is this loop.
void run_grouped(const LocalCall& call, torch::jit::Stack& stack) {
  StackArgs args(*call.op, stack);
  const at::Tensor a = args.tensor("self"), b = args.tensor("mat2");
  const Grouped grouped(a.dim(), b.dim());
  if (grouped.is_batch()) {
    return args.give(at::bmm(a, b));
  }
  at::Tensor product = at::zeros(sizes_of(call.output_ranges[0]), a.options().dtype(call.outputs[0]->dtype));
  // The dim in which groups lie one after the other, and which groups this rank has something of.
  const int operand = grouped.left ? 1 : 0;
  const int64_t dim = grouped.right ? 0 : 1;
  const Groups groups(args.tensor("offs"), call.operand_ranges[operand][dim]);
  const layout::Range own = grouped.left    ? call.operand_ranges[0][0]
                            : grouped.right ? call.operand_ranges[1][0]
                                            : call.output_ranges[0][0];
  for (int64_t i = 0; i < own.size(); ++i) {
    const layout::Range range = groups[own.begin + i];
    if (grouped.right) {
      part_of(product, 0, range).copy_(at::mm(part_of(a, 0, range), b[i]));
    } else if (grouped.left) {
      part_of(product, 1, range).copy_(at::mm(a[i], part_of(b, 1, range)));
    } else {
      product[i].copy_(at::mm(part_of(a, 1, range), part_of(b, 0, range)));
    }
  }
  args.give(product);
}

}  // namespace

void add_grouped_rules(RuleTable& table) {
  table.add("aten::_grouped_mm", {.map = grouped_map, .local = run_grouped, .shape = ShapeSource::kFactors});
}

}  // namespace tessera::rules
