#include "tessera/random/stock_cpu.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/values.h"
#include "tessera/random/mt19937.h"

namespace tessera::random {

namespace {

constexpr int64_t kBlock = 16;            // elements that normal_ makes together
constexpr int64_t kLongestPiece = 16384;  // elements drawn by one call
constexpr int64_t kShortestGap = 512;     // elements worth skipping: a call costs as much as drawing about so many

at::CPUGeneratorImpl& impl_of(const at::Generator& generator) {
  return *at::check_generator<at::CPUGeneratorImpl>(generator);
}

int64_t numel_of(const StockTensor& tensor) { return c10::multiply_integers(tensor.sizes); }

bool is_contiguous(const StockTensor& tensor) {
  return at::detail::empty_strided_meta(tensor.sizes, tensor.strides, tensor.dtype).is_contiguous();
}

// Dims from slowest to fastest, as libtorch's loops over one tensor go: along its memory.
std::vector<int64_t> loop_order(const StockTensor& tensor) {
  std::vector<int64_t> order(tensor.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return tensor.strides[a] > tensor.strides[b]; });
  return order;
}

// How a kernel takes the stream.
struct Appetite {
  // Some words for each element; or for two, of which the second waits in the generator; or for each element in blocks,
  // with another block for a ragged end; or in a way that does not tell where an element comes from.
  enum Kind { kEach, kPairs, kBlocks, kWhole } kind = kWhole;
  uint64_t words = 0;
  bool end_after_all =
      true;  // the ragged end is drawn after as many words as there are elements, not after whole blocks only
};

uint64_t words_of(const StockDraw& draw, c10::ScalarType dtype, int64_t elements) {
  at::Generator generator = at::detail::createCPUGenerator(0);
  at::Tensor target = at::empty({elements}, dtype);
  draw.fill(target, generator);
  return impl_of(generator).engine().data().next_;  // no more than the first block of 624
}

Appetite appetite_of(const StockDraw& draw, const StockTensor& tensor) {
  if (c10::isComplexType(tensor.dtype)) {
    return {};  // two numbers in one: other blocks, other ends
  }
  if (draw.in_blocks && numel_of(tensor) >= kBlock && is_contiguous(tensor)) {
    const uint64_t words = words_of(draw, tensor.dtype, kBlock) / kBlock;
    return {Appetite::kBlocks, words, words_of(draw, tensor.dtype, kBlock + 1) > 2 * words * kBlock};
  }
  const uint64_t one = words_of(draw, tensor.dtype, 1), two = words_of(draw, tensor.dtype, 2),
                 three = words_of(draw, tensor.dtype, 3);
  if (one > 0 && two == 2 * one && three == 3 * one) {
    return {Appetite::kEach, one};
  }
  if (one > 0 && two == one && three == 2 * one) {
    return {Appetite::kPairs, one};
  }
  return {};
}

// One tensor's stretch of the stream. Elements are numbered in the order in which they are drawn.
class Stretch {
 public:
  Stretch(int64_t elements, c10::ScalarType dtype, const Appetite& appetite, const StockDraw& draw,
          at::Generator& generator)
      : elements_(elements),
        dtype_(dtype),
        appetite_(appetite),
        draw_(draw),
        real_(impl_of(generator)),
        generator_(generator),
        scratch_(generator.clone()),
        engine_(real_.engine()),
        waiting_(appetite.kind == Appetite::kPairs ? real_.next_double_normal_sample() : std::nullopt) {}

  // The elements from `begin` to `end`, contiguous. Later calls must begin later.
  at::Tensor piece(int64_t begin, int64_t end) {
    switch (appetite_.kind) {
      case Appetite::kEach: seek(scratch(), words(begin)); return drawn(end - begin);
      case Appetite::kPairs: return piece_of_pairs(begin, end);
      default: return piece_of_blocks(begin, end);
    }
  }

  // Leaves the generator where drawing all leaves it.
  void finish() {
    if (elements_ == 0) {
      return;
    }
    if (appetite_.kind == Appetite::kEach) {
      return seek(real_, words(elements_));
    }
    if (appetite_.kind == Appetite::kBlocks) {
      return seek(real_, is_ragged() ? words(end_of_blocks() + kBlock) : words(elements_));
    }
    const int64_t fresh = elements_ - waiting();
    seek(real_, words(fresh / 2));
    real_.set_next_double_normal_sample(std::nullopt);
    at::Tensor last = at::empty({fresh % 2}, dtype_);
    draw_.fill(last, generator_);
  }

 private:
  uint64_t words(int64_t count) const { return appetite_.words * static_cast<uint64_t>(count); }
  int64_t waiting() const { return waiting_ ? 1 : 0; }
  bool is_ragged() const { return elements_ % kBlock != 0; }
  int64_t end_of_blocks() const { return appetite_.end_after_all ? elements_ : elements_ / kBlock * kBlock; }
  at::CPUGeneratorImpl& scratch() { return impl_of(scratch_); }

  void seek(at::CPUGeneratorImpl& target, uint64_t word) {
    TESSERA_ASSERT(word >= at_);
    skip(engine_, word - at_);
    at_ = word;
    target.set_engine(engine_);
  }

  at::Tensor drawn(int64_t count) {
    at::Tensor result = at::empty({count}, dtype_);
    draw_.fill(result, scratch_);
    return result;
  }

  at::Tensor piece_of_pairs(int64_t begin, int64_t end) {
    const int64_t pair = begin < waiting() ? 0 : (begin - waiting()) / 2;
    const int64_t first = begin < waiting() ? 0 : waiting() + 2 * pair;
    seek(scratch(), words(pair));
    scratch().set_next_double_normal_sample(begin < waiting() ? waiting_ : std::nullopt);
    at::Tensor strided = at::empty({end - first, 2}, dtype_).select(1, 0);  // contiguous ones would be made in blocks
    draw_.fill(strided, scratch_);
    return strided.slice(0, begin - first).contiguous();
  }

  at::Tensor piece_of_blocks(int64_t begin, int64_t end) {
    const int64_t ragged = is_ragged() ? elements_ - kBlock : elements_;
    const int64_t middle = std::clamp(ragged, begin, end);
    at::Tensor result = at::empty({end - begin}, dtype_);
    if (begin < middle) {
      const int64_t first = begin / kBlock * kBlock;
      seek(scratch(), words(first));
      const at::Tensor blocks = drawn((middle - first + kBlock - 1) / kBlock * kBlock);
      result.slice(0, 0, middle - begin).copy_(blocks.slice(0, begin - first, middle - first));
    }
    if (middle < end) {
      seek(scratch(), words(end_of_blocks()));
      result.slice(0, middle - begin).copy_(drawn(kBlock).slice(0, middle - ragged, end - ragged));
    }
    return result;
  }

  int64_t elements_;
  c10::ScalarType dtype_;
  Appetite appetite_;
  const StockDraw& draw_;
  at::CPUGeneratorImpl& real_;
  at::Generator& generator_;
  at::Generator scratch_;
  at::mt19937 engine_;  // `at_` words into the stretch
  uint64_t at_ = 0;
  std::optional<double> waiting_;
};

// Copies the elements that a rank holds from the stretch to its part, joining runs that lie close together.
class Keeper {
 public:
  Keeper(Stretch& stretch, at::Tensor& part)
      : stretch_(stretch), data_(static_cast<char*>(part.mutable_data_ptr())), itemsize_(part.itemsize()) {}

  void keep(int64_t begin, int64_t count) {
    for (int64_t end = begin + count; begin < end;) {
      const int64_t next = std::min(end, begin + kLongestPiece);
      const bool joins =
          !runs_.empty() && begin - runs_.back().end < kShortestGap && next - runs_.front().begin <= kLongestPiece;
      if (!joins) {
        flush();
      }
      runs_.push_back({begin, next});
      begin = next;
    }
  }

  void flush() {
    if (runs_.empty()) {
      return;
    }
    const int64_t first = runs_.front().begin;
    const at::Tensor piece = stretch_.piece(first, runs_.back().end);
    const char* source = static_cast<const char*>(piece.const_data_ptr());
    for (const Range& run : runs_) {
      const int64_t bytes = (run.end - run.begin) * itemsize_;
      std::memcpy(data_, source + (run.begin - first) * itemsize_, static_cast<size_t>(bytes));
      data_ += bytes;
    }
    runs_.clear();
  }

 private:
  Stretch& stretch_;
  char* data_;  // of the next element to be kept
  int64_t itemsize_;
  std::vector<Range> runs_;
};

at::Tensor draw_whole(const StockTensor& tensor, const StockDraw& draw, at::Generator& generator) {
  at::Tensor whole = at::empty_strided(tensor.sizes, tensor.strides, tensor.dtype);
  draw.fill(whole, generator);
  return whole;
}

void fill_part(at::Tensor& local, const StockTensor& tensor, const std::vector<Range>& held, Stretch& stretch) {
  const std::vector<int64_t> order = loop_order(tensor);
  Region region;
  for (const int64_t dim : order) {
    region.sizes.push_back(tensor.sizes[dim]);
    region.held.push_back({held[dim]});
  }
  at::Tensor turned = local.permute(order);
  at::Tensor dense = turned.is_contiguous() ? turned : at::empty(turned.sizes(), turned.options());
  Keeper keeper(stretch, dense);
  for_each_run(region, [&](const ElementRun& run) { keeper.keep(run.element, run.count); });
  keeper.flush();
  if (!dense.is_same(turned)) {
    turned.copy_(dense);
  }
}

}  // namespace

StockGenerator::StockGenerator(uint64_t seed) : handle_(at::detail::createCPUGenerator(seed)) {}

StockGenerator::StockGenerator(const StockGenerator& other)
    : handle_(other.handle_.defined() ? other.handle_.clone() : at::Generator()) {}

StockGenerator& StockGenerator::operator=(const StockGenerator& other) {
  if (this == &other) {
    return *this;
  }
  if (!handle_.defined() || !other.handle_.defined()) {
    handle_ = other.handle_.defined() ? other.handle_.clone() : at::Generator();
    return *this;
  }
  at::CPUGeneratorImpl& mine = impl_of(handle_);
  at::CPUGeneratorImpl& theirs = impl_of(other.handle_);
  mine.set_engine(theirs.engine());
  mine.set_next_float_normal_sample(theirs.next_float_normal_sample());
  mine.set_next_double_normal_sample(theirs.next_double_normal_sample());
  return *this;
}

uint64_t StockGenerator::mark() const {
  const at::mt19937_data_pod data = impl_of(handle_).engine().data();
  return base::hash_combine(base::hash_combine(data.seed_, data.next_), data.state_[0]);
}

void fill_stock(at::Tensor& local, const StockTensor& tensor, const std::vector<Range>& held, const StockDraw& draw,
                at::Generator& generator) {
  TESSERA_CHECK(local.device().is_cpu(), "[stock random] a part on ", local.device(),
                "; the `stock` generator draws on the CPU. Use `counter` there.");
  if (!base::has_values()) {
    return;
  }
  const Appetite appetite = appetite_of(draw, tensor);
  if (appetite.kind == Appetite::kWhole) {
    at::Tensor part = draw_whole(tensor, draw, generator);
    for (size_t d = 0; d < held.size(); ++d) {
      part = part.slice(static_cast<int64_t>(d), held[d].begin, held[d].end);
    }
    local.copy_(part);
    return;
  }
  Stretch stretch(numel_of(tensor), tensor.dtype, appetite, draw, generator);
  fill_part(local, tensor, held, stretch);
  stretch.finish();
}

void skip_stock(const StockTensor& tensor, const StockDraw& draw, at::Generator& generator) {
  const Appetite appetite = appetite_of(draw, tensor);
  if (appetite.kind == Appetite::kWhole) {
    draw_whole(tensor, draw, generator);
    return;
  }
  Stretch(numel_of(tensor), tensor.dtype, appetite, draw, generator).finish();
}

}  // namespace tessera::random
