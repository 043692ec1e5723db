// The places at which one axis cuts a run of elements.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::layout {

// A contiguous run [begin, end) of one dim.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// [0, size) in `parts` parts, one after the other. A value.
//
// Cut as torch.chunk cuts, on multiples of `unit`: ceil(ceil(size / unit) / parts) units each, the last parts short or
// empty (empty parts are [size, size)). Nobody else knows that: whoever wants places asks a Cut for them.
class Cut {
 public:
  Cut(int64_t size, int64_t parts, int64_t unit = 1);

  int64_t size() const { return size_; }
  int64_t parts() const { return parts_; }
  Range operator[](int64_t index) const;
  // The size of the first part; none is larger.
  int64_t most() const { return (*this)[0].size(); }
  // The part in which an element of the run lies.
  int64_t part_of(int64_t element) const { return element / step_; }
  // How many parts, the first ones, are as large as the first; none if that is empty.
  int64_t full_parts() const { return size_ == 0 ? 0 : size_ / most(); }
  // The size of the part after those; 0 if there is none, or it is empty.
  int64_t rest() const { return size_ == 0 ? 0 : size_ % most(); }
  // Whether every part is the same run.
  bool operator==(const Cut& other) const;

 private:
  int64_t size_;
  int64_t parts_;
  int64_t step_;
};

// Part `index` of an even cut.
inline Range cut(int64_t size, int64_t parts, int64_t index) { return Cut(size, parts)[index]; }

// The runs in every one of the `blocks` blocks of a dim of `size`, which are cut alike; `first` is that in the first.
std::vector<Range> in_blocks(const Range& first, int64_t size, int64_t blocks);

// How several axes cut one run, each what the ones before it left: slowest first.
struct NestedCut {
  int64_t parts = 1;
  int64_t unit = 1;
};

// Whether two lists of as many cuts of [0, size) leave every rank the same run.
bool same_places(int64_t size, const std::vector<NestedCut>& a, const std::vector<NestedCut>& b);

}  // namespace tessera::layout
