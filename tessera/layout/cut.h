// The places at which one axis cuts a run of elements.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera::layout {

namespace detail {
struct GivenPlaces;
}  // namespace detail

// A contiguous run [begin, end) of one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Where an axis cuts a run: as torch.chunk cuts, on multiples of a unit, or into parts of given sizes. A value; 8
// bytes.
//
// Given sizes are interned and live as long as the process: equal ones are one record, and copies cost nothing.
class Places {
 public:
  Places() = default;  // as torch.chunk cuts

  // Cuts fall on multiples of `unit` elements, which is 1 or more.
  static Places in_units(int64_t unit);
  // Part i is `sizes[i]` elements long, 0 or more. Throws if there are none, or one is negative, or they are too many.
  static Places of_sizes(const std::vector<int64_t>& sizes);

  bool are_given() const { return (code_ & 1) == 0; }
  int64_t unit() const { return are_given() ? 1 : code_ >> 1; }
  // Of given places: the sizes of the parts, where part i ends in a run that is long enough, and where the last one
  // does.
  const std::vector<int64_t>& sizes() const;
  const std::vector<int64_t>& ends() const;
  int64_t total() const { return ends().back(); }

  // Those of a run that has `each` elements for each element of this one; and the other way round, nothing where a cut
  // falls inside of an element.
  Places times(int64_t each) const;
  std::optional<Places> divided_by(int64_t each) const;
  // The same on multiples of `unit` too; nothing where given places are not.
  std::optional<Places> on_multiples_of(int64_t unit) const;

  bool operator==(const Places&) const = default;
  // The same in every process.
  uint64_t hash() const;

 private:
  explicit Places(int64_t code) : code_(code) {}
  const detail::GivenPlaces& given() const;

  int64_t code_ = 3;  // twice the unit and 1; or the address of what is given, which is even
};

// [0, size) in `parts` parts, one after the other. A value.
//
// Cut evenly, as torch.chunk cuts, on multiples of a unit: ceil(ceil(size / unit) / parts) units each, the last parts
// short or empty (empty parts are [size, size)). Or cut at given places: as many as there are parts; those beyond the
// end of the run are its end, and the last part ends there. Nobody else knows that: whoever wants places asks a Cut.
class Cut {
 public:
  Cut(int64_t size, int64_t parts, Places places = {});
  Cut(int64_t size, int64_t parts, int64_t unit) : Cut(size, parts, Places::in_units(unit)) {}

  int64_t size() const { return size_; }
  int64_t parts() const { return parts_; }
  bool is_even() const { return !places_.are_given(); }
  Range operator[](int64_t index) const;
  // The size of the largest part; of an even cut, of the first.
  int64_t most() const;
  // The part in which an element of the run lies.
  int64_t part_of(int64_t element) const;
  // Of an even cut, how many parts, the first ones, are as large as the first; none if that is empty. And the size of
  // the part after those; 0 if there is none, or it is empty.
  int64_t full_parts() const { return size_ == 0 ? 0 : size_ / most(); }
  int64_t rest() const { return size_ == 0 ? 0 : size_ % most(); }
  // The sizes of its parts, each once, the largest first.
  std::vector<int64_t> different_sizes() const;
  // Whether every part is the same run.
  bool operator==(const Cut& other) const;

 private:
  int64_t size_;
  int64_t parts_;
  Places places_;
  int64_t step_;  // of an even cut
};

// Part `index` of an even cut.
inline Range cut(int64_t size, int64_t parts, int64_t index) { return Cut(size, parts)[index]; }

// The runs in every one of the `blocks` blocks of a dim of `size`, which are cut alike; `first` is that in the first.
std::vector<Range> in_blocks(const Range& first, int64_t size, int64_t blocks);

// How several axes cut one run, each what the ones before it left: slowest first.
struct NestedCut {
  int64_t parts = 1;
  Places places = {};
  bool operator==(const NestedCut&) const = default;
};

// Whether two lists of as many cuts of [0, size) leave every rank the same run.
bool same_places(int64_t size, const std::vector<NestedCut>& a, const std::vector<NestedCut>& b);

}  // namespace tessera::layout
