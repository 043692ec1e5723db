#include "tessera/dtensor/front/plain.h"

#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/lt.h>
#include <c10/core/AutogradState.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include "tessera/base/error.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/dispatch/same_values.h"
#include "tessera/dtensor/front/quantile.h"
#include "tessera/dtensor/random/random_ops.h"
#include "tessera/dtensor/random/stock.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/kernel_registry.h"
#include "tessera/kernels/base/threads.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;

thread_local FactoryHook* factory_hook = nullptr;

// The operator's own kernel.
void call_plain(const c10::OperatorHandle& op, Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard guard(kIntercept);
  op.callBoxed(*stack);
}

// Replicated values: every rank computes the same.
at::Tensor replicated(const layout::Mesh& mesh, at::Tensor plain) {
  const Spec spec =
      Spec::make(mesh, layout::Placements(mesh.ndim()), plain.sizes(), plain.strides(), plain.scalar_type());
  return wrap(std::move(plain), spec);
}

const layout::Mesh* region_of(const RankState& state) {
  if (state.pass.region()) {
    return &*state.pass.region();
  }
  if (!state.pass.backward_region()) {
    return nullptr;
  }
  const auto node = torch::autograd::get_current_node();  // of an operator on DTensors: the program may differentiate
                                                          // plain tensors too
  return node && state.engine.forward_plans.holds(node->sequence_nr()) ? &*state.pass.backward_region() : nullptr;
}

at::Tensor in_region(const RankState& state, at::Tensor plain) {
  const layout::Mesh* region = region_of(state);
  if (!region || is_dtensor(plain)) {
    return plain;
  }
  return replicated(*region, std::move(plain));
}

// Whether a kernel asks, which needs memory of its own. Kernels run below autograd. So does torch::zeros of a C++
// program, which looks the same from here; of a Python program the front places what its factories made.
bool is_memory_of_kernel(rules::Makes makes) {
  if (!c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView)) {
    return false;
  }
  return base::language() == base::Language::kPython || makes == rules::Makes::kNothing;
}

thread_local bool in_plain_operator = false;

// While it lives, factories give plain tensors.
class PlainOperator {
 public:
  PlainOperator() : previous_(std::exchange(in_plain_operator, true)) {}
  ~PlainOperator() { in_plain_operator = previous_; }
  PlainOperator(const PlainOperator&) = delete;
  PlainOperator& operator=(const PlainOperator&) = delete;

 private:
  bool previous_;
};

// What a factory left on the stack, where the program expects it.
void place_made(const RankState& state, rules::Makes makes, Stack* stack) {
  if (!in_plain_operator && !is_memory_of_kernel(makes)) {
    stack->back() = in_region(state, stack->back().toTensor());
  }
}

template <rules::Makes makes>
void factory(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  if (factory_hook) {
    return factory_hook->make(op, stack);
  }
  call_plain(op, stack);
  if (const RankState* state = RankState::current()) {
    place_made(*state, makes, stack);
  }
}

random::Region plain_region(const at::Tensor& tensor) { return random::whole_region(tensor.sizes().vec()); }

void fill_plain(RankState& state, at::Tensor& tensor, const random::Distribution& distribution) {
  if (tensor.is_meta()) {
    return;
  }
  LocalScope scope;
  at::Tensor dense = tensor.is_contiguous() && !tensor.requires_grad()
                         ? tensor
                         : at::empty(tensor.sizes(), tensor.options().requires_grad(false));
  random::fill(dense, plain_region(dense), state.next_stream(), distribution);
  at::NoGradGuard no_grad;
  if (!dense.is_same(tensor)) {
    tensor.copy_(dense);
  }
}

const rules::Draws& draws_of(const c10::OperatorHandle& op) { return rules::RuleTable::instance().row(op).draws; }

bool takes_dtensor(const Stack& stack, size_t arguments) {
  bool found = false;
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - arguments), arguments);
  for_each_tensor(args, [&](const at::Tensor& tensor, int, int) { found |= is_dtensor(tensor); });
  return found;
}

// Whether the program says which generator to draw from. It is obeyed: each rank has its own, and the same values.
bool names_generator(const Stack& stack, size_t arguments) {
  return named_generator(c10::ArrayRef<IValue>(stack.data() + (stack.size() - arguments), arguments)).defined();
}

// uniform_ and its kin on a plain tensor of a rank.
void random_plain(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  RankState* state = RankState::current();
  const size_t n = op.schema().arguments().size();
  if (!state || takes_dtensor(*stack, n) || (!state->random.stock() && names_generator(*stack, n))) {
    // Below this key a DTensor finds its own kernel; a plain tensor outside of a rank, libtorch's.
    return call_plain(op, stack);
  }
  if (state->random.stock()) {
    return call_with_stock(*state, op, *stack);
  }
  const c10::ArrayRef<IValue> args(stack->data() + (stack->size() - n), n);
  at::Tensor self = args[0].toTensor();
  const auto distribution = draws_of(op).counter(args, self.scalar_type());
  at::Tensor target = op.schema().arguments()[0].alias_info() ? self : at::empty(self.sizes(), self.options());
  fill_plain(*state, target, distribution);
  stack->resize(stack->size() - n);
  stack->push_back(std::move(target));
}

// bernoulli with a probability for each element.
void bernoulli_plain(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  RankState* state = RankState::current();
  const size_t n = op.schema().arguments().size();
  if (!state || takes_dtensor(*stack, n) || (!state->random.stock() && names_generator(*stack, n))) {
    return call_plain(op, stack);
  }
  if (state->random.stock()) {
    return call_with_stock(*state, op, *stack);
  }
  const c10::ArrayRef<IValue> args(stack->data() + (stack->size() - n), n);
  at::Tensor self = args[0].toTensor();
  const bool in_place = op.schema().arguments()[0].alias_info() != nullptr;
  const at::Tensor p = in_place ? args[1].toTensor() : self;
  at::Tensor uniform = at::empty(self.sizes(), self.options().dtype(at::kFloat));
  fill_plain(*state, uniform, random::Uniform{0, 1});
  const at::Tensor drawn = at::lt(uniform, p);
  at::Tensor result = in_place ? self.copy_(drawn) : drawn.to(self.scalar_type());
  stack->resize(stack->size() - n);
  stack->push_back(std::move(result));
}

// The argument that holds the sizes of a random factory.
std::vector<int64_t> factory_sizes(const c10::FunctionSchema& schema, c10::ArrayRef<IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (schema.arguments()[i].name() == "size") {
      return args[i].toIntVector();
    }
    if (schema.arguments()[i].name() == "n") {
      return {args[i].toInt()};
    }
  }
  TESSERA_ASSERT(false);
  return {};
}

// rand, randn, randint, randperm: an empty tensor, filled from the rank's generator.
void random_factory(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  RankState* state = RankState::current();
  if (!state && !factory_hook) {
    return call_plain(op, stack);
  }
  if (factory_hook) {
    return factory_hook->make(op, stack);
  }
  if (state->random.stock()) {
    call_with_stock(*state, op, *stack);
    return place_made(*state, rules::Makes::kValues, stack);
  }
  if (names_generator(*stack, op.schema().arguments().size())) {
    call_plain(op, stack);
    return place_made(*state, rules::Makes::kValues, stack);
  }
  const c10::FunctionSchema& schema = op.schema();
  const size_t n = schema.arguments().size();
  const c10::ArrayRef<IValue> args(stack->data() + (stack->size() - n), n);
  const rules::Draws& draws = draws_of(op);  // nothing: a permutation
  const auto distribution = draws.counter ? std::optional(draws.counter(args, at::kFloat)) : std::nullopt;
  const std::vector<int64_t> sizes = factory_sizes(schema, args);
  const bool integers = !distribution || std::holds_alternative<random::Integers>(*distribution);
  at::TensorOptions options =
      at::TensorOptions().dtype(integers ? at::kLong : c10::typeMetaToScalarType(at::get_default_dtype()));
  for (size_t i = 0; i < n; ++i) {
    if (schema.arguments()[i].name() == "dtype" && !args[i].isNone()) {
      options = options.dtype(args[i].toScalarType());
    }
    if (schema.arguments()[i].name() == "device" && !args[i].isNone()) {
      options = options.device(args[i].toDevice());
    }
  }
  at::Tensor result;
  {
    LocalScope scope;
    result = at::empty(sizes, distribution ? options : options.dtype(at::kLong));
  }
  if (distribution) {
    fill_plain(*state, result, *distribution);
  } else {
    random::fill_permutation(result, state->next_stream());
    result = result.to(options.dtype());
  }
  stack->resize(stack->size() - n);
  stack->push_back(std::move(result));
  place_made(*state, rules::Makes::kValues, stack);
}

// An operator made of others, above autograd, that calls factories: on plain tensors alone it is plain.
void composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (takes_dtensor(*stack, op.schema().arguments().size())) {
    return call_below(op, keys, stack);
  }
  const PlainOperator plain;
  call_below(op, keys, stack);
}

// One that writes into what a factory made, which would have to be on all ranks, with what only some of them have: of
// DTensors, operators that make new values.
void out_of_place(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (!takes_dtensor(*stack, op.schema().arguments().size())) {
    return composite(op, keys, stack);
  }
  rules::RuleTable::instance().row(op).out_of_place(op, *stack);
}

// Its DTensors are not given to libtorch's operator.
template <bool without_nan>
void quantile_of_any(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t n = op.schema().arguments().size();
  if (!takes_dtensor(*stack, n)) {
    return composite(op, keys, stack);
  }
  const std::vector<IValue> given = torch::jit::pop(*stack, n);
  const QuantileOptions options = {given[2].toOptional<int64_t>(), given[3].toBool(), given[4].toStringView(),
                                   without_nan};
  stack->push_back(quantile(given[0].toTensor(), given[1], options));
}

// Linear algebra, of plain tensors and of DTensors.
void on_one_thread(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  std::optional<kernels::OneThread> one;
  if (RankState::current()) {
    one.emplace();
  }
  call_below(op, keys, stack);
}

// Draws according to values on a plain tensor of a rank.
void random_by_values(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  RankState* state = RankState::current();
  const auto& arguments = op.schema().arguments();
  const size_t n = arguments.size();
  if (!state || takes_dtensor(*stack, n) || (!state->random.stock() && names_generator(*stack, n))) {
    return call_plain(op, stack);
  }
  if (state->random.stock()) {
    return call_with_stock(*state, op, *stack);
  }
  const size_t begin = stack->size() - n;
  if (const auto draw = draws_of(op).by_values) {
    at::Tensor drawn = draw(c10::ArrayRef<IValue>(stack->data() + begin, n));
    stack->resize(begin);
    stack->push_back(std::move(drawn));
    return;
  }
  for (size_t i = 0; i < n; ++i) {
    if (arguments[i].name() == "generator") {
      (*stack)[begin + i] = generator_for_draw(*state);
    }
  }
  call_plain(op, stack);
}

}  // namespace

at::Tensor to_region(const at::Tensor& made) {
  const RankState* state = RankState::current();
  const layout::Mesh* region = state ? region_of(*state) : nullptr;
  if (!region || !made.defined() || made.is_meta() || is_dtensor(made) || factory_hook) {
    return made;
  }
  const at::Tensor placed = replicated(*region, made.detach());
  return made.requires_grad() ? placed.set_requires_grad(true) : placed;
}

FactoryScope::FactoryScope(FactoryHook* hook) : previous_(factory_hook) { factory_hook = hook; }
FactoryScope::~FactoryScope() { factory_hook = previous_; }

namespace {

// Kernels of views set the thread's mode (Kernel::note_replay): what it was before stands again behind the rank.
class ViewReplay {
 public:
  ViewReplay() = default;
  ~ViewReplay() { c10::AutogradState::get_tls_state().set_view_replay_enabled(before_); }
  ViewReplay(const ViewReplay&) = delete;
  ViewReplay& operator=(const ViewReplay&) = delete;

 private:
  bool before_ = c10::AutogradState::get_tls_state().get_view_replay_enabled();
};

struct RankThread {
  c10::impl::IncludeDispatchKeyGuard intercepted{kIntercept};
  ViewReplay replay;
};

}  // namespace

std::shared_ptr<void> intercept_this_thread() { return std::make_shared<RankThread>(); }

void register_plain_kernels(KernelRegistry& registry) {
  using rules::Caught;
  registry.library("_", kIntercept).fallback(torch::CppFunction::makeFallthrough());
  const auto makes_nothing = [](const rules::Rule& row) { return row.makes == rules::Makes::kNothing; };
  registry.intercept_if<&factory<rules::Makes::kNothing>>(
      [&](const rules::Rule& row) { return row.caught == Caught::kFactory && makes_nothing(row); });
  registry.intercept_if<&factory<rules::Makes::kValues>>(
      [&](const rules::Rule& row) { return row.caught == Caught::kFactory && !makes_nothing(row); });
  registry.intercept<&random_factory>(Caught::kRandomFactory);
  registry.intercept<&composite>(Caught::kComposite);
  registry.intercept<&out_of_place>(Caught::kOutOfPlace);
  registry.intercept<&quantile_of_any<false>>(Caught::kQuantile);
  registry.intercept<&quantile_of_any<true>>(Caught::kNanQuantile);
  registry.intercept<&on_one_thread>(Caught::kLinearAlgebra);
  registry.intercept<&random_plain>(Caught::kRandomFill);
  registry.intercept<&random_by_values>(Caught::kDrawByValues);
  registry.intercept<&bernoulli_plain>(Caught::kBernoulli);
}

}  // namespace tessera::dtensor
