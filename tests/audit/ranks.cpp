#include "tests/audit/ranks.h"

#include <map>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/rules/engine/homes.h"

namespace tessera::audit {

using layout::Coord;
using layout::Range;
using layout::ReduceOp;
using layout::Spec;
using rules::testing::find_op;
using rules::testing::tensors_of;
using rules::testing::with_tensors;

namespace {

at::Tensor noise_like(const at::Tensor& value) {
  const bool has_fractions = at::isFloatingType(value.scalar_type()) || at::isComplexType(value.scalar_type());
  return has_fractions ? at::rand_like(value) : at::randint_like(value, 3);
}

at::Tensor combine(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return a.add(b);
    case ReduceOp::kMax: return at::maximum(a, b);
    case ReduceOp::kMin: return at::minimum(a, b);
    case ReduceOp::kProd: return a.mul(b);
  }
  TESSERA_ASSERT(false);
}

// Terms for `parts` ranks that combine to `value`.
std::vector<at::Tensor> split_value(const at::Tensor& value, ReduceOp op, int64_t parts) {
  std::vector<at::Tensor> terms;
  at::Tensor rest = value.clone();
  for (int64_t i = 0; i + 1 < parts; ++i) {
    const at::Tensor noise = noise_like(value);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
        terms.push_back(noise);
        rest = rest.sub(noise);
        break;
      case ReduceOp::kMax: terms.push_back(value.sub(noise)); break;
      case ReduceOp::kMin: terms.push_back(value.add(noise)); break;
      case ReduceOp::kProd: terms.push_back(at::full_like(value, 1)); break;
    }
  }
  terms.push_back(rest);
  for (at::Tensor& term : terms) {
    term = op == ReduceOp::kAvg ? term.mul(parts) : term;
  }
  return terms;
}

// What each rank holds of a tensor before cutting: itself, or its term.
void add_terms(const at::Tensor& value, const Spec& spec, Coord coord, size_t axis,
               std::map<Coord, at::Tensor>& terms) {
  if (axis == spec->placements.size()) {
    terms[coord] = value;
    return;
  }
  const int64_t parts = spec->mesh.axis(static_cast<int64_t>(axis)).size;
  const layout::Placement& placement = spec->placements[axis];
  const std::vector<at::Tensor> values =
      placement.is_partial() ? split_value(value, placement.op, parts) : std::vector<at::Tensor>(parts, value);
  for (int64_t i = 0; i < parts; ++i) {
    coord[axis] = i;
    add_terms(values[i], spec, coord, axis + 1, terms);
  }
}

at::Tensor indices_of(const std::vector<Range>& runs) {
  std::vector<at::Tensor> indices;
  for (const Range& run : runs) {
    indices.push_back(at::arange(run.begin, run.end));
  }
  return at::cat(indices);
}

// What a rank holds that holds these runs of each dim.
at::Tensor held_of(const at::Tensor& whole, const std::vector<std::vector<Range>>& runs) {
  at::Tensor part = whole;
  for (size_t d = 0; d < runs.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    part = runs[d].size() == 1 ? part.narrow(dim, runs[d][0].begin, runs[d][0].size())
                               : part.index_select(dim, indices_of(runs[d]));
  }
  return part;
}

void put_held(at::Tensor& whole, const std::vector<std::vector<Range>>& runs, const at::Tensor& part) {
  c10::List<std::optional<at::Tensor>> indices;
  for (size_t d = 0; d < runs.size(); ++d) {
    std::vector<int64_t> sizes(runs.size(), 1);
    sizes[d] = -1;
    indices.push_back(indices_of(runs[d]).view(sizes));
  }
  runs.empty() ? whole.copy_(part) : whole.index_put_(indices, part);
}

// A part is a view of a tensor that was whole, as it is when a replicated operand is cut for one operator: kernels must
// not count on its being contiguous.
std::map<Coord, at::Tensor> distribute(const at::Tensor& value, const Spec& spec) {
  std::map<Coord, at::Tensor> parts;
  add_terms(value, spec, Coord(spec->placements.size()), 0, parts);
  for (auto& [coord, part] : parts) {
    part = held_of(part.clone().reshape(spec->run_sizes()), spec.local_runs(coord)).variable_data();
  }
  return parts;
}

std::vector<at::Tensor> flatten(const torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) {
        results.push_back(tensor);
      }
    } else if (value.isTensor()) {
      results.push_back(value.toTensor());
    }
  }
  return results;
}

std::vector<std::vector<Range>> ranges_of(const std::vector<Spec>& specs, const Coord& coord) {
  std::vector<std::vector<Range>> result;
  for (const Spec& spec : specs) {
    result.push_back(spec.first_runs(coord));
  }
  return result;
}

struct Decision {
  const rules::Rule* rule;
  c10::OperatorHandle op;
  rules::FactorMap map;
  rules::Propagation layouts;
};

std::vector<at::Tensor> run_rank(const Decision& decision, const std::vector<c10::IValue>& args,
                                 const std::vector<at::Tensor>& locals, const Coord& coord) {
  torch::jit::Stack stack = with_tensors(args, locals);
  for (const rules::SizeArg& size : decision.map.sizes) {
    const auto sizes = decision.layouts.outputs.at(size.output).local_sizes(coord);
    stack[size.arg] = size.dim < 0 ? c10::IValue(sizes) : c10::IValue(sizes.at(size.dim));
  }
  if (decision.rule->local == nullptr) {
    decision.op.callBoxed(stack);
    return flatten(stack);
  }
  rules::LocalCall call;
  call.op = &decision.op;
  call.operands = decision.layouts.operands;
  call.outputs = decision.layouts.outputs;
  call.operand_ranges = ranges_of(call.operands, coord);
  call.output_ranges = ranges_of(call.outputs, coord);
  decision.rule->local(call, stack);
  return flatten(stack);
}

// Puts the parts of one output together. Throws where they do not fit.
at::Tensor assemble(const Spec& spec, const std::map<Coord, at::Tensor>& parts, Compare compare) {
  // Partial terms first: the ranks that differ along those axes alone.
  std::map<Coord, at::Tensor> merged;
  double averaged = 1;
  std::optional<ReduceOp> op;
  for (size_t a = 0; a < spec->placements.size(); ++a) {
    if (spec->placements[a].is_partial()) {
      op = spec->placements[a].op;
      averaged *= *op == ReduceOp::kAvg ? static_cast<double>(spec->mesh.axes()[a].size) : 1.0;
    }
  }
  for (const auto& [coord, part] : parts) {
    TESSERA_CHECK(part.defined(), "a rank has no result");
    TESSERA_CHECK(part.sizes() == c10::IntArrayRef(spec.local_sizes(coord)), "rank (", coord, ") returns sizes ",
                  part.sizes(), " instead of ", c10::IntArrayRef(spec.local_sizes(coord)), " of ", spec.str());
    TESSERA_CHECK(part.scalar_type() == spec->dtype, "rank (", coord, ") returns ", part.scalar_type(), " instead of ",
                  spec->dtype);
    Coord key = coord;
    for (size_t a = 0; a < key.size(); ++a) {
      key[a] = spec->placements[a].is_partial() ? 0 : key[a];
    }
    at::Tensor& term = merged[key];
    term = term.defined() ? combine(*op, term, part) : part;
  }
  at::Tensor whole = at::zeros(spec->run_sizes(), parts.begin()->second.options());
  at::Tensor seen = at::zeros(spec->run_sizes(), at::kBool);
  for (const auto& [coord, part] : merged) {
    const std::vector<std::vector<Range>> runs = spec.local_runs(coord);
    const at::Tensor target = held_of(whole, runs);
    const at::Tensor covered = held_of(seen, runs);
    if (target.numel() > 0 && covered.all().item<bool>()) {
      TESSERA_CHECK(compare == Compare::kShapes || at::allclose(target, part, 1e-12, 1e-12, /*equal_nan=*/true),
                    "ranks that should hold the same differ: ", spec.str());
    }
    put_held(whole, runs, part);
    put_held(seen, runs, at::ones_like(part, at::kBool));
  }
  TESSERA_CHECK(seen.all().item<bool>(), "no rank holds some elements of ", spec.str());
  whole = whole.view(spec->sizes);
  return averaged == 1 ? whole : whole.div(averaged);
}

std::string describe_layouts(const rules::Call& call, const rules::Propagation& layouts) {
  std::string text = rules::describe(call) + " runs as";
  for (const Spec& spec : layouts.operands) {
    text += " " + spec.layout_str();
  }
  text += " ->";
  for (const Spec& spec : layouts.outputs) {
    text += " " + spec.layout_str();
  }
  return text;
}

}  // namespace

std::vector<at::Tensor> run_whole(const std::string& op, const std::vector<c10::IValue>& args) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  for (const auto& [tensor, arg] : tensors_of(args)) {
    copies.push_back(tensor.clone());
  }
  torch::jit::Stack stack = with_tensors(args, copies);
  find_op(op).callBoxed(stack);
  return flatten(stack);
}

std::vector<at::Tensor> run_decomposition(const std::string& op, const std::vector<c10::IValue>& args) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  for (const auto& [tensor, arg] : tensors_of(args)) {
    copies.push_back(tensor.clone());
  }
  torch::jit::Stack stack = with_tensors(args, copies);
  rules::RuleTable::instance().find(op)->decompose(find_op(op), stack);
  return flatten(stack);
}

std::optional<std::string> difference(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                                      Compare compare) {
  if (found.size() != expected.size()) {
    return c10::str(found.size(), " results instead of ", expected.size());
  }
  for (size_t i = 0; i < found.size(); ++i) {
    if (found[i].defined() != expected[i].defined()) {
      return c10::str("result ", i, found[i].defined() ? " should be undefined" : " is undefined");
    }
    if (!found[i].defined()) {
      continue;
    }
    if (found[i].sizes() != expected[i].sizes() || found[i].scalar_type() != expected[i].scalar_type()) {
      return c10::str("result ", i, " is ", found[i].scalar_type(), found[i].sizes(), " instead of ",
                      expected[i].scalar_type(), expected[i].sizes());
    }
    if (compare == Compare::kValues && !at::allclose(found[i], expected[i], 1e-11, 1e-11, /*equal_nan=*/true)) {
      return c10::str("result ", i, " differs:\n", found[i], "\ninstead of\n", expected[i]);
    }
  }
  return std::nullopt;
}

Outcome run_ranks(const std::string& op, const std::vector<c10::IValue>& args, const std::vector<Spec>& specs,
                  const std::vector<at::Tensor>& expected, Compare compare) {
  const c10::NoGradGuard no_grad;
  rules::Call call = rules::testing::make_call(op, args, specs);
  std::optional<rules::Homes> homes;
  try {
    homes.emplace(call);
  } catch (const c10::Error& error) {
    return {.kind = Outcome::Kind::kRefused, .message = error.msg()};  // writes at two places
  }
  if (!homes->empty()) {
    homes->take_home(call);
    std::vector<Spec> inside;
    for (const rules::Operand& operand : call.operands) {
      inside.push_back(operand.spec);
    }
    call = rules::testing::make_call(op, args, inside);
  }
  const rules::Rule* rule = rules::RuleTable::instance().find(op);
  if (rule->decompose != nullptr && (rule->decompose_when == nullptr || rule->decompose_when(call))) {
    return {.kind = Outcome::Kind::kDecomposed, .message = {}};
  }
  Decision decision{rule, find_op(op), rule->map(call), {}};
  decision.map.keeps_runs = rule->local != nullptr && !rule->takes_interleaved;
  const bool writes =
      std::any_of(call.operands.begin(), call.operands.end(), [](const auto& o) { return o.is_written; });
  try {
    decision.layouts = rules::propagate(call, decision.map);
  } catch (const c10::Error& error) {
    const bool is_refusal = writes && std::string(error.msg()).find("no layout for") != std::string::npos;
    return {.kind = is_refusal ? Outcome::Kind::kRefused : Outcome::Kind::kWrong, .message = error.msg()};
  }
  Outcome outcome;
  try {
    std::vector<std::map<Coord, at::Tensor>> operands;
    const auto tensors = tensors_of(args);
    for (size_t i = 0; i < tensors.size(); ++i) {
      outcome.moved |= !(decision.layouts.operands[i] == specs[i]) && !specs[i]->is_replicated;
      operands.push_back(distribute(tensors[i].first, decision.layouts.operands[i]));
    }
    std::vector<std::map<Coord, at::Tensor>> parts(expected.size());
    const Spec home = homes->outside(call.spec(0));
    for (int64_t rank : specs.front()->mesh.ranks()) {
      const Coord coord = *specs.front()->mesh.coord_of(rank);
      if (!home->holds(coord)) {
        continue;
      }
      std::vector<at::Tensor> locals;
      for (const auto& operand : operands) {
        locals.push_back(operand.at(coord));
      }
      const std::vector<at::Tensor> results = run_rank(decision, args, locals, coord);
      TESSERA_CHECK(results.size() == parts.size(), results.size(), " results instead of ", parts.size());
      for (size_t o = 0; o < results.size(); ++o) {
        parts[o][coord] = results[o];
      }
    }
    std::vector<at::Tensor> found;
    for (size_t o = 0; o < parts.size(); ++o) {
      found.push_back(expected[o].defined() ? assemble(decision.layouts.outputs.at(o), parts[o], compare)
                                            : at::Tensor());
      if (!expected[o].defined()) {
        TESSERA_CHECK(!parts[o].begin()->second.defined(), "result ", o, " should be undefined");
        continue;
      }
      const bool strides_agree = expected[o].numel() < 2 || call.outputs[o].strides == expected[o].strides();
      TESSERA_CHECK(strides_agree, "result ", o, " has strides ", c10::IntArrayRef(call.outputs[o].strides),
                    " instead of ", expected[o].strides());
    }
    if (const auto wrong = difference(found, expected, compare)) {
      outcome = {.kind = Outcome::Kind::kWrong, .message = *wrong};
    }
  } catch (const std::exception& error) {
    outcome = {.kind = Outcome::Kind::kWrong, .message = base::message_of(error)};
  }
  if (outcome.kind == Outcome::Kind::kWrong) {
    outcome.message = describe_layouts(call, decision.layouts) + ": " + outcome.message;
  }
  return outcome;
}

namespace {

// The layout in which parts of one result are right.
std::optional<layout::Placement> find_layout(const std::vector<at::Tensor>& parts, const at::Tensor& expected,
                                             const layout::Mesh& mesh) {
  std::vector<layout::Placement> candidates = {layout::Replicate()};
  for (int64_t d = 0; d < expected.dim(); ++d) {
    candidates.push_back(layout::Shard(d));
  }
  for (ReduceOp reduce : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    candidates.push_back(layout::Partial(reduce));
  }
  for (const layout::Placement& placement : candidates) {
    const Spec spec = Spec::make(mesh, {placement}, expected.sizes(), expected.strides(), expected.scalar_type());
    std::map<Coord, at::Tensor> by_coord;
    for (size_t i = 0; i < parts.size(); ++i) {
      by_coord[{static_cast<int64_t>(i)}] = parts[i];
    }
    try {
      if (!difference({assemble(spec, by_coord, Compare::kValues)}, {expected}, Compare::kValues)) {
        return placement;
      }
    } catch (const std::exception&) {
    }
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> try_without_rule(const std::string& op, const std::vector<c10::IValue>& args,
                                            const std::vector<Spec>& specs, const std::vector<at::Tensor>& expected) {
  const c10::NoGradGuard no_grad;
  const auto tensors = tensors_of(args);
  const layout::Mesh& mesh = specs.front()->mesh;
  std::vector<std::vector<at::Tensor>> parts(expected.size());
  try {
    for (int64_t rank : mesh.ranks()) {
      std::vector<at::Tensor> locals;
      for (size_t i = 0; i < tensors.size(); ++i) {
        locals.push_back(distribute(tensors[i].first, specs[i]).at({rank}));
      }
      torch::jit::Stack stack = with_tensors(args, locals);
      find_op(op).callBoxed(stack);
      const std::vector<at::Tensor> results = flatten(stack);
      for (size_t o = 0; o < expected.size(); ++o) {
        parts[o].push_back(results.at(o));
      }
    }
  } catch (const std::exception&) {
    return std::nullopt;
  }
  std::string layouts;
  for (size_t o = 0; o < expected.size(); ++o) {
    if (!expected[o].defined()) {
      continue;
    }
    const auto placement = find_layout(parts[o], expected[o], mesh);
    if (!placement) {
      return std::nullopt;
    }
    layouts += (layouts.empty() ? "" : " ") + placement->str();
  }
  return layouts;
}

}  // namespace tessera::audit
