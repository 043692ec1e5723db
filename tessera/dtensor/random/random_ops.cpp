#include "tessera/dtensor/random/random_ops.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/ones_like.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/hints.h"
#include "tessera/dtensor/move/pieces.h"
#include "tessera/dtensor/record/interception.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/dtensor/view/views.h"
#include "tessera/rules/engine/draws.h"

namespace tessera::dtensor {

namespace {

using c10::IValue;
using torch::jit::Stack;
using Runs = std::vector<std::vector<layout::Range>>;  // of each dim

// Fills `local`, the part `runs` of a global tensor, for samples that follow each other from row `row` = sample
// `sample` on.
void fill_piece(at::Tensor& local, const layout::SpecData& spec, const Runs& runs, int64_t batch_dim, int64_t inner,
                int64_t batch_offset, const random::Stream& stream, const random::Distribution& distribution) {
  random::Region region;
  region.sizes = spec.run_sizes();
  for (const auto& of_dim : runs) {
    auto& held = region.held.emplace_back();
    for (const layout::Range& run : of_dim) {
      held.push_back({run.begin, run.end});
    }
  }
  region.batch_dim = batch_dim;
  region.batch_inner = inner;
  region.batch_offset = batch_offset;
  random::fill(local, region, stream, distribution);
}

int64_t inner_extent(const layout::SpecData& spec, int64_t dim) {
  int64_t inner = 1;
  for (size_t i = 1; i < spec.labels[dim].size(); ++i) {
    inner *= spec.labels[dim][i].extent;
  }
  return inner;
}

// The element's sample is its row's: each run of rows of the origin is filled with its own offset.
void fill_rows(at::Tensor& local, const layout::SpecData& spec, const Runs& runs, int64_t dim, const Origin* origin,
               const random::Stream& stream, const random::Distribution& distribution) {
  const int64_t inner = inner_extent(spec, dim);
  if (!origin) {
    return fill_piece(local, spec, runs, dim, inner, 0, stream, distribution);
  }
  const layout::Range whole = runs[dim].front();
  const auto& pieces = origin->pieces;
  const auto starts_after = [&](int64_t element, const Origin::Piece& piece) { return element < piece.row * inner; };
  const auto first_after = std::upper_bound(pieces.begin(), pieces.end(), whole.begin, starts_after);
  for (auto it = first_after - 1; it != pieces.end() && it->row * inner < whole.end; ++it) {
    const Origin::Piece& piece = *it;
    const int64_t next = it + 1 != pieces.end() ? (it + 1)->row * inner : whole.end;
    Runs part = runs;
    layout::Range& rows = part[dim].front();
    rows = {std::max(whole.begin, piece.row * inner), std::min(whole.end, next)};
    if (rows.size() <= 0) {
      continue;
    }
    at::Tensor target = local.narrow(dim, rows.begin - whole.begin, rows.size());
    at::Tensor dense = target.is_contiguous() ? target : at::empty(target.sizes(), target.options());
    fill_piece(dense, spec, part, dim, inner, piece.sample - piece.row, stream, distribution);
    if (!dense.is_same(target)) {
      target.copy_(dense);
    }
  }
}

bool is_batch(const layout::SpecData& spec, int64_t dim) {
  return spec.labels[dim].front().label == layout::Label::kBatch;
}

void fill_by_counter(RankState& state, at::Tensor& local, const Spec& spec, const Origin* origin,
                     const random::Distribution& distribution) {
  const random::Stream stream = state.next_stream();
  const Runs runs = spec.local_runs(state.ctx.coord(spec->mesh));
  at::Tensor dense = local.is_contiguous() ? local : at::empty(local.sizes(), local.options());
  const auto dim = layout::batch_dim(spec->labels);
  if (dim && is_batch(*spec, *dim)) {
    TESSERA_CHECK(runs[*dim].size() == 1, "[random] a tensor of ", spec.str(),
                  " whose samples are interleaved; accepted: plain cuts of them");
    fill_rows(dense, *spec, runs, *dim, origin, stream, distribution);
  } else {
    TESSERA_CHECK(starts_at_first_sample(origin), "[random] a tensor of ", spec.str(),
                  " has lost its batch label, so its random numbers would depend on the micro-batches. Draw them for a "
                  "tensor whose "
                  "samples are one dim.");
    fill_piece(dense, *spec, runs, -1, 1, 0, stream, distribution);
  }
  if (!dense.is_same(local)) {
    local.copy_(dense);
  }
}

// Where the tensor is not: the numbers that come next are those that come next where it is.
void pass_by(RankState& state, const Spec& spec, Draw& draw) {
  if (draw.counter) {
    state.next_stream();
  } else {
    random::skip_stock(stock_tensor_of(spec), *draw.stock, draw.generator);
  }
}

}  // namespace

bool starts_at_first_sample(const Origin* origin) {
  return !origin || (origin->pieces.size() == 1 && origin->pieces.front().sample == 0);
}

void fill_local(RankState& state, at::Tensor& local, const Spec& spec, const Origin* origin, Draw draw) {
  LocalScope scope;
  if (!state.has_part(spec)) {
    return pass_by(state, spec, draw);
  }
  if (draw.counter) {
    return fill_by_counter(state, local, spec, origin, *draw.counter);
  }
  // Numbers follow the memory, which is the same for the tensor taken apart.
  const Spec plain = layout::taken_apart(spec, layout::BoxForm::of(spec->placements, spec->ndim()));
  const layout::Coord& coord = state.ctx.coord(spec->mesh);
  std::vector<random::Range> held;
  for (const layout::Range& range : plain.local_ranges(coord)) {
    held.push_back({range.begin, range.end});
  }
  at::Tensor part = local.view(plain.local_sizes(coord));
  random::fill_stock(part, stock_tensor_of(plain), held, *draw.stock, draw.generator);
}

std::optional<Draw> draw_of(RankState& state, const rules::Draws& draws, c10::ArrayRef<IValue> args,
                            c10::ScalarType dtype) {
  if (const at::Generator generator = stock_generator_of(state, args); generator.defined()) {
    return draws.stock ? std::optional(Draw{std::nullopt, draws.stock(args), generator}) : std::nullopt;
  }
  return draws.counter ? std::optional(Draw{draws.counter(args, dtype), std::nullopt, {}}) : std::nullopt;
}

at::Generator generator_for_draw(RankState& state) {
  const random::Stream stream = state.next_stream();
  return at::make_generator<at::CPUGeneratorImpl>(
      base::hash_combine(base::hash_combine(base::hash_mix(stream.seed), stream.site), stream.step));
}

namespace {

// Under `stock` the ranks must stand at the same place of the stream.
void note(RankState& state, const OpInfo& info, const Spec& spec) {
  const uint64_t place =
      state.random.stock() ? base::hash_combine(spec->hash, state.random.stock().mark()) : spec->hash;
  state.ctx.program.note(info.name.c_str(), place);
}

Draw require_draw(RankState& state, const OpInfo& info, const rules::Draws& draws, c10::ArrayRef<IValue> args,
                  c10::ScalarType dtype) {
  auto draw = draw_of(state, draws, args, dtype);
  TESSERA_CHECK(draw, "[", info.name,
                "] is not drawn by this rank's generator. Compute it from uniform or normal numbers.");
  return std::move(*draw);
}

// From the generator among `args`, if they name one.
Draw uniform_draw(RankState& state, const OpInfo& info, c10::ArrayRef<IValue> args) {
  const at::Generator named = named_generator(args);
  return require_draw(state, info, rules::kUniform,
                      {IValue(), IValue(0.0), IValue(1.0), named.defined() ? IValue(named) : IValue()}, at::kFloat);
}

// A Partial has no elements of its own to draw: what it held is overwritten, so it becomes Replicate without being
// merged.
Spec drawn_layout(const Spec& spec) { return spec->has_partial ? spec.with(without_partial(spec->placements)) : spec; }

}  // namespace

void drop_terms(Meta& meta) {
  if (!meta.spec->has_partial) {
    return;
  }
  LocalScope scope;
  meta.replace(at::empty_like(meta.local), drawn_layout(meta.spec));
}

void random_inplace(RankState& state, const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  const at::Tensor self = args[0].toTensor();
  TESSERA_CHECK(is_dtensor(self), "[", info.name, "] expected a DTensor to fill");
  Meta* meta = meta_of(self);
  check_writable(info, *meta);
  drop_terms(*meta);
  note(state, info, meta->spec);
  fill_local(state, meta->local, meta->spec, meta->origin,
             require_draw(state, info, info.row.draws, args, meta->spec->dtype));
  note_write(*meta);
  stack.resize(stack.size() - info.num_args());
  stack.push_back(self);
}

namespace {

// Strides of `empty_like`. The order of the stream follows them.
std::vector<int64_t> like_strides(const Spec& like, std::optional<c10::MemoryFormat> format) {
  LocalScope scope;
  return at::empty_like(at::detail::empty_strided_meta(like->sizes, like->strides, like->dtype), {}, format)
      .strides()
      .vec();
}

at::Tensor filled_like(RankState& state, const OpInfo& info, const at::Tensor& self, c10::ScalarType dtype, Draw draw,
                       std::optional<c10::MemoryFormat> format = std::nullopt) {
  const Meta* meta = meta_of(self);
  const Spec like = drawn_layout(meta->spec);
  const auto strides = draw.stock ? like_strides(like, format) : like->strides;
  const Spec spec = Spec::make(like->mesh, like->placements, like->sizes, strides, dtype, like->labels);
  note(state, info, spec);
  at::Tensor local;
  {
    LocalScope scope;
    local = at::empty(meta->local.sizes(), meta->local.options().dtype(dtype));
  }
  fill_local(state, local, spec, meta->origin, std::move(draw));
  return wrap(local, spec, meta->origin);
}

}  // namespace

void random_like(RankState& state, const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  const at::Tensor self = args[0].toTensor();
  c10::ScalarType dtype = self.scalar_type();
  std::optional<c10::MemoryFormat> format;
  if (!info.op.schema().argumentIndexWithName("memory_format")) {
    format = c10::MemoryFormat::Contiguous;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& name = info.op.schema().arguments()[i].name();
    if (name == "dtype" && !args[i].isNone()) {
      dtype = args[i].toScalarType();
    }
    if (name == "memory_format" && !args[i].isNone()) {
      format = args[i].toMemoryFormat();
    }
  }
  at::Tensor result =
      filled_like(state, info, self, dtype, require_draw(state, info, info.row.draws, args, dtype), format);
  stack.resize(stack.size() - info.num_args());
  stack.push_back(std::move(result));
}

// bernoulli(p) and bernoulli_(self, p): a uniform number below the probability.
void bernoulli_tensor(RankState& state, const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  const at::Tensor self = args[0].toTensor();
  const bool is_new = !info.writes;
  const at::Tensor p = is_new ? self : args[1].toTensor();
  const at::Tensor like = is_dtensor(self) ? self : p;
  Draw draw = uniform_draw(state, info, args);
  const auto dtype = draw.stock && p.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto format = is_new ? std::optional(c10::MemoryFormat::Contiguous) : std::nullopt;
  const at::Tensor uniform = filled_like(state, info, like, dtype, std::move(draw), format);
  at::Tensor drawn = at::lt(uniform, p);
  at::Tensor result = is_new ? drawn.to(self.scalar_type()) : self.copy_(drawn);
  stack.resize(stack.size() - info.num_args());
  stack.push_back(std::move(result));
}

// (dropped and scaled input, keep mask)
void native_dropout(RankState& state, const OpInfo& info, Stack& stack) {
  const c10::ArrayRef<IValue> args(stack.data() + (stack.size() - info.num_args()), info.num_args());
  const at::Tensor input = args[0].toTensor();
  const double p = args[1].toDouble();
  const bool train = args[2].isNone() || args[2].toBool();
  const bool draws = train || !state.random.stock();
  at::Tensor mask = draws ? filled_like(state, info, input, at::kBool,
                                        require_draw(state, info, rules::kBernoulli,
                                                     {IValue(), IValue(train ? 1 - p : 1.0)}, at::kBool))
                          : at::ones_like(input, input.options().dtype(at::kBool));
  const double scale = !train ? 1 : p == 1 ? 0 : 1 / (1 - p);
  at::Tensor result = input.mul(mask).mul(scale);
  stack.resize(stack.size() - info.num_args());
  stack.push_back(std::move(result));
  stack.push_back(std::move(mask));
}

}  // namespace tessera::dtensor
