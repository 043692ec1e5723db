// How one tensor is spread over a mesh.
#pragma once

#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "tessera/layout/labels.h"
#include "tessera/layout/mesh.h"
#include "tessera/layout/placement.h"

namespace tessera::layout {

namespace detail {

// How many Specs hold a record; a copy of the record has none. Not counted any more once the record is kept.
class Holders {
 public:
  Holders() = default;
  Holders(const Holders&) {}
  Holders& operator=(const Holders&) = delete;

  bool is_kept() const { return is_kept_.load(std::memory_order_relaxed); }
  bool is_unused() const { return !is_kept() && count_.load(std::memory_order_relaxed) == 0; }
  void keep() { is_kept_.store(true, std::memory_order_relaxed); }  // by one of the holders
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }
  bool remove() { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }  // whether it was the last

 private:
  std::atomic<uint32_t> count_{0};
  std::atomic<bool> is_kept_{false};
};

}  // namespace detail

// Where the parts of a tensor lie, of whatever sizes. Those of Specs are interned and immortal: there are few.
struct Layout {
  Mesh mesh;
  Placements placements;
};

// The immutable record behind a Spec: mesh, placements, global shape and strides (those of the one-device program),
// dtype and dim labels.
struct SpecData {
  Mesh mesh;
  Placements placements;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  c10::ScalarType dtype = c10::ScalarType::Float;
  Labels labels;
  uint64_t hash = 0;

  // Derived once: some axis is Partial; every axis is Replicate.
  bool has_partial = false;
  bool is_replicated = true;
  bool is_everywhere = true;  // no axis is On
  const Layout* layout = nullptr;
  mutable detail::Holders holders;

  int64_t ndim() const { return static_cast<int64_t>(sizes.size()); }
  int64_t numel() const;
  int64_t bytes() const;

  // The sizes of the tensor in which what a rank holds is one run of each dim: its own, where no cut takes dims
  // together, else [1, ..., all of them, rest]. See `spanning`.
  std::vector<int64_t> run_sizes() const;
  bool is_spanned() const { return last_spanned_dim(placements) > 0; }

  // Whether any dim is cut, and whether this one is (or is taken together with others that are).
  bool is_cut() const;
  bool is_cut(int64_t dim) const;
  // Whether any dim is cut in blocks, and in how many this one is (1 where it is not interleaved).
  bool is_interleaved() const;
  int64_t blocks_of(int64_t dim) const;
  // The axes that cut `dim`, slowest first.
  std::vector<int64_t> axes_of(int64_t dim) const;
  // Whether ranks hold terms of one of these combinations.
  bool is_merged_by(std::initializer_list<ReduceOp> ops) const;
  // Whether the rank at `coord` holds a part: it stands where every On is.
  bool holds(const Coord& coord) const;
  // Of all ranks that hold one part, one is the first.
  bool is_first_holder(const Coord& coord) const;
};

// A handle to an interned SpecData: equal Specs are the same pointer. Thread-safe.
//
// A record lives as long as a Spec holds it, so that a program whose sizes change at every step does not fill the
// memory. One that is kept lives as long as the process, and copies of its Specs count nothing: see `keep`.
//
// Normal form: an axis of size one is always Replicate (every placement on it means the same); `order` is -1 where the
// axes that share a dim stand in mesh order, else 0, 1, ... slowest first; labels are as normal_labels makes them.
class Spec {
 public:
  Spec() = default;
  Spec(const Spec& other) : data_(other.data_) {
    if (data_ && C10_UNLIKELY(!data_->holders.is_kept())) {
      data_->holders.add();
    }
  }
  Spec(Spec&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Spec& operator=(Spec other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~Spec() {
    if (data_ && C10_UNLIKELY(!data_->holders.is_kept())) {
      release();
    }
  }

  // Throws if `placements` does not name every axis, a dim is out of range, the axes that share a dim have no
  // consistent order (all explicit and distinct; or those without one fill the free positions) or not the same blocks,
  // a dim does not divide into its blocks, the sizes of a ragged cut are not one for each rank of the axis or do not
  // add up to what it cuts, an On is beyond its axis, or two Partial ops meet that do not commute (sum and avg do).
  static Spec make(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                   c10::ScalarType dtype, const Labels& labels = {});

  // Contiguous strides.
  static Spec contiguous(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, c10::ScalarType dtype,
                         const Labels& labels = {});

  const SpecData* operator->() const { return data_; }
  const SpecData& operator*() const { return *data_; }
  const SpecData* get() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }
  bool operator==(const Spec& other) const { return data_ == other.data_; }

  // From now on the record is never destroyed. For what is copied often.
  void keep() const {
    if (data_) {
      data_->holders.keep();
    }
  }

  // How many records there are.
  static size_t count();

  // The same tensor, otherwise placed (or labelled, or of another dtype).
  Spec with(const Placements& placements) const;
  Spec with_dtype(c10::ScalarType dtype) const;
  Spec with_labels(const Labels& labels) const;

  // What the rank at `coord` holds of each dim of `run_sizes`: nested cuts, one contiguous run. Not for interleaved
  // cuts. Of a rank that holds no part: what it would hold. Its local sizes are {0}.
  std::vector<Range> local_ranges(const Coord& coord) const;
  // The same for all cuts: one run for each block of the dim; and the first of them.
  std::vector<std::vector<Range>> local_runs(const Coord& coord) const;
  std::vector<Range> first_runs(const Coord& coord) const;
  std::vector<int64_t> local_sizes(const Coord& coord) const;
  // Of each dim, the most that a rank holds.
  std::vector<int64_t> largest_sizes() const;

  // `{dp: S(0), tp: R}`.
  std::string layout_str() const;
  // `float32[8, 16] {dp: S(0), tp: R}` with labels where there are any.
  std::string str() const;

 private:
  explicit Spec(const SpecData* data) : data_(data) {}  // that holds it already
  void release();
  const SpecData* data_ = nullptr;
};

std::ostream& operator<<(std::ostream& out, const Spec& spec);

// The placements in the normal form of a Spec. Throws if they do not name every axis.
Placements normal_form(const Mesh& mesh, const Placements& placements);

// The sizes of a tensor with its leading dims, to this one, as one: [1, ..., all of them, rest]. 0: its own.
std::vector<int64_t> sizes_in_runs(c10::IntArrayRef sizes, int64_t last_spanned);

// Whether Spec::make accepts these placements for a tensor of these sizes.
bool is_layout_of(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes);

// Of each of `ndim` dims, how many blocks its cuts have: 1, unless they are interleaved.
std::vector<int64_t> blocks_of_dims(const Placements& placements, int64_t ndim);

// The tensor with its leading dims, to `last_spanned`, as one, without labels. Cuts of these dims must be of them
// together, or of whole rows, which are runs of them too. A rank's part is the same memory; of the result's local sizes
// if the dims are cut together.
Spec in_runs(const Spec& spec, int64_t last_spanned);
bool is_of_runs(const Placement& cut, int64_t last_spanned);

// How a tensor is seen so that what ranks hold are boxes of it: dims that are cut in blocks as two, [blocks, rest], and
// the leading dims that a cut spans as one, [1, ..., all of them].
struct BoxForm {
  std::vector<int64_t> blocks;  // of each dim
  int64_t last_spanned = 0;     // 0: none are taken together

  static BoxForm of(const Placements& placements, int64_t ndim);
  // The one in which both layouts of a tensor can be seen; nothing where they have none.
  static std::optional<BoxForm> common(const Placements& a, const Placements& b, int64_t ndim);
  // Whether cuts are boxes in it.
  bool fits(const Placement& cut) const;
  // Whether the tensor has it as it is.
  bool is_plain() const;
};

// The tensor seen so, without labels: every cut, which must fit, is a plain one of one dim. A rank's part, of the
// result's local sizes, is the same memory.
Spec taken_apart(const Spec& spec, const BoxForm& form);

// Mesh axes that cut `dim`, slowest first (explicit order, then mesh order).
std::vector<int64_t> axes_of_dim(const Mesh& mesh, const Placements& placements, int64_t dim);

// The run of a dim of `size` that the rank at `coord` holds when the given placements cut it: every axis cuts, as cut()
// does, what the slower ones left. An inner cut falls on global multiples of its unit only where the outer cuts do. Of
// an interleaved dim, the run in its first block.
Range local_range(const Mesh& mesh, const Placements& placements, int64_t dim, int64_t size, const Coord& coord);

// The global sizes where every rank has a part of these sizes; of a dim that is cut at given places, what these say.
// Throws where a cut takes dims together, which a part does not tell apart.
std::vector<int64_t> sizes_of_equal_parts(const Mesh& mesh, const Placements& placements, c10::IntArrayRef local);

// Whether every rank keeps what it has when `axis`, which cuts a dim of a tensor of these sizes, cuts it by `other`
// instead (a Shard of the same dim; its order is not looked at). Not where the sizes of a ragged one do not fit.
bool same_cuts(const Mesh& mesh, const Placements& placements, c10::IntArrayRef sizes, int64_t axis,
               const Placement& other);

// Whether every rank holds the same part under both layouts of one tensor: equal placements, or other units, places and
// orders with the same cuts.
bool same_layout(const Spec& a, const Spec& b);

// `{dp: S(0), tp: R}`, and without the axes that are Replicate; parse_placements throws with the accepted form. Axes
// that are not named are Replicate.
std::string str(const Mesh& mesh, const Placements& placements);
std::string short_str(const Mesh& mesh, const Placements& placements);
Placements parse_placements(const Mesh& mesh, std::string_view text);
Placement parse_placement(std::string_view text);

}  // namespace tessera::layout
