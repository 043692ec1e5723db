#include "tessera/layout/cut.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/base/text.h"
#include "tessera/layout/intern.h"

namespace tessera::layout {

namespace detail {

struct GivenPlaces {
  std::vector<int64_t> sizes;
  std::vector<int64_t> ends;
  uint64_t hash = 0;
};

}  // namespace detail

namespace {

static_assert(alignof(detail::GivenPlaces) % 2 == 0, "Places tells addresses from units by their lowest bit");

detail::InternTable<detail::GivenPlaces>& given_places() {
  static auto& instance = *new detail::InternTable<detail::GivenPlaces>;
  return instance;
}

void verify_part_sizes(const std::vector<int64_t>& sizes) {
  int64_t left = std::numeric_limits<int64_t>::max() / 2;
  const bool fits = !sizes.empty() && std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) {
    left -= std::clamp<int64_t>(size, 0, left);
    return size >= 0 && left > 0;
  });
  TESSERA_CHECK(fits, "[layout] a cut into parts of sizes [", base::join(sizes, ", "),
                "]; accepted: one size for each rank of the axis, each 0 or more");
}

}  // namespace

Places Places::in_units(int64_t unit) {
  TESSERA_ASSERT(unit >= 1, "cuts in units of ", unit);
  return Places(2 * unit + 1);
}

Places Places::of_sizes(const std::vector<int64_t>& sizes) {
  verify_part_sizes(sizes);
  const uint64_t hash = base::hash_range(sizes);
  const auto* record = given_places().find_or_make(
      hash, [&](const detail::GivenPlaces& places) { return places.sizes == sizes; },
      [&] {
        std::vector<int64_t> ends(sizes.size());
        std::partial_sum(sizes.begin(), sizes.end(), ends.begin());
        return detail::GivenPlaces{sizes, std::move(ends), hash};
      });
  return Places(std::bit_cast<int64_t>(record));
}

const detail::GivenPlaces& Places::given() const {
  TESSERA_ASSERT(are_given(), "the places of a cut in units of ", unit());
  return *std::bit_cast<const detail::GivenPlaces*>(code_);
}

const std::vector<int64_t>& Places::sizes() const { return given().sizes; }

const std::vector<int64_t>& Places::ends() const { return given().ends; }

Places Places::times(int64_t each) const {
  if (!are_given()) {
    return in_units(unit() * std::max<int64_t>(each, 1));
  }
  std::vector<int64_t> scaled = sizes();
  std::for_each(scaled.begin(), scaled.end(), [&](int64_t& size) { size *= each; });
  return of_sizes(scaled);
}

std::optional<Places> Places::divided_by(int64_t each) const {
  if (!are_given()) {
    return unit() % each == 0 ? std::optional(in_units(unit() / each)) : std::nullopt;
  }
  std::vector<int64_t> scaled = sizes();
  for (int64_t& size : scaled) {
    if (size % each != 0) {
      return std::nullopt;
    }
    size /= each;
  }
  return of_sizes(scaled);
}

std::optional<Places> Places::on_multiples_of(int64_t multiple) const {
  if (!are_given()) {
    return in_units(std::lcm(unit(), multiple));
  }
  const auto is_multiple = [&](int64_t end) { return end % multiple == 0 || end == total(); };
  return std::all_of(ends().begin(), ends().end(), is_multiple) ? std::optional(*this) : std::nullopt;
}

uint64_t Places::hash() const { return are_given() ? given().hash : static_cast<uint64_t>(unit()); }

Cut::Cut(int64_t size, int64_t parts, Places places) : size_(size), parts_(parts), places_(places), step_(0) {
  if (is_even()) {
    const int64_t units = (size + places.unit() - 1) / places.unit();
    step_ = (units + parts - 1) / parts * places.unit();
  } else {
    TESSERA_CHECK(static_cast<int64_t>(places.sizes().size()) == parts, "[layout] a cut at the places of ",
                  places.sizes().size(), " parts for ", parts, " ranks; accepted: one part for each rank");
  }
}

Range Cut::operator[](int64_t index) const {
  if (is_even()) {
    return {std::min(index * step_, size_), std::min((index + 1) * step_, size_)};
  }
  const std::vector<int64_t>& ends = places_.ends();
  const int64_t begin = index == 0 ? 0 : std::min(ends[index - 1], size_);
  return {begin, index == parts_ - 1 ? size_ : std::min(ends[index], size_)};
}

int64_t Cut::most() const { return is_even() ? (*this)[0].size() : different_sizes().front(); }

int64_t Cut::part_of(int64_t element) const {
  if (is_even()) {
    return element / step_;
  }
  const std::vector<int64_t>& ends = places_.ends();
  return std::upper_bound(ends.begin(), ends.end() - 1, element) - ends.begin();
}

std::vector<int64_t> Cut::different_sizes() const {
  std::vector<int64_t> sizes;
  // Of even parts one after the full ones is another, and all after that are empty.
  const int64_t last = is_even() ? std::min(parts_, full_parts() + 2) : parts_;
  for (int64_t i = is_even() ? std::max<int64_t>(full_parts() - 1, 0) : 0; i < last; ++i) {
    sizes.push_back((*this)[i].size());
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

bool Cut::operator==(const Cut& other) const {
  if (size_ != other.size_ || parts_ != other.parts_) {
    return false;
  }
  if (is_even() && other.is_even()) {
    return most() == other.most();
  }
  int64_t same = 0;
  while (same < parts_ && (*this)[same] == other[same]) {
    ++same;
  }
  return same == parts_;
}

std::vector<Range> in_blocks(const Range& first, int64_t size, int64_t blocks) {
  std::vector<Range> runs;
  const int64_t step = size / blocks;
  for (int64_t i = 0; i < blocks; ++i) {
    runs.push_back({first.begin + i * step, first.end + i * step});
  }
  return runs;
}

namespace {

bool same_from(int64_t size, const std::vector<NestedCut>& a, const std::vector<NestedCut>& b, size_t level) {
  if (level == a.size() || size == 0) {
    return true;
  }
  const Cut cut(size, a[level].parts, a[level].places);
  const std::vector<int64_t> sizes = cut.different_sizes();
  return cut == Cut(size, b[level].parts, b[level].places) &&
         std::all_of(sizes.begin(), sizes.end(), [&](int64_t left) { return same_from(left, a, b, level + 1); });
}

}  // namespace

bool same_places(int64_t size, const std::vector<NestedCut>& a, const std::vector<NestedCut>& b) {
  return a == b || same_from(size, a, b, 0);
}

}  // namespace tessera::layout
