#include "tessera/schedule/families/family.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::schedule {
namespace {

constexpr int64_t kFarthest = 4096;  // how far sizes that fit are looked for

bool fits_family(const Family& family, const Sizes& sizes) {
  return sizes.ranks > 0 && sizes.micro_batches > 0 && (family.fits == nullptr || family.fits(sizes));
}

// The nearest values of one size that fit while the others stay, below and above.
std::vector<int64_t> fitting(const Family& family, const Sizes& sizes, int64_t Sizes::* size) {
  std::vector<int64_t> found;
  for (const int64_t step : {-1, 1}) {
    Sizes other = sizes;
    for (int64_t tries = 0; tries < kFarthest && (step > 0 || other.*size > 1); ++tries) {
      other.*size += step;
      if (fits_family(family, other)) {
        found.push_back(other.*size);
        break;
      }
    }
  }
  return found;
}

std::string fitting_text(const Family& family, const Sizes& sizes) {
  std::vector<std::string> parts;
  if (const auto found = fitting(family, sizes, &Sizes::micro_batches); !found.empty()) {
    parts.push_back(c10::str(base::join(found, " or "), " micro-batches on ", sizes.ranks, " ranks"));
  }
  if (const auto found = fitting(family, sizes, &Sizes::ranks); !found.empty()) {
    parts.push_back(c10::str(sizes.micro_batches, " micro-batches on ", base::join(found, " or "), " ranks"));
  }
  return parts.empty() ? "one rank and one micro-batch, or more" : base::join(parts, ", ");
}

}  // namespace

const Family& family_of(const std::string& name) {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (family.name == name) {
      return family;
    }
    names.emplace_back(family.name);
  }
  TESSERA_THROW(ConfigError, "[schedule] there is no schedule \"", name, "\"; accepted: ", base::join(names, ", "),
                base::did_you_mean(name, names));
}

Schedule make_schedule(const std::string& name, const Sizes& sizes) {
  const Family& family = family_of(name);
  Sizes filled = sizes;
  filled.per_rank = sizes.per_rank == 0 ? family.per_rank : sizes.per_rank;
  TESSERA_CHECK_AS(ConfigError, filled.per_rank == family.per_rank || (family.takes_per_rank && filled.per_rank > 0),
                   "[schedule] ", name, " with ", filled.per_rank, " stages on each rank; accepted: ",
                   family.takes_per_rank ? "one or more" : std::to_string(family.per_rank));
  TESSERA_CHECK_AS(ConfigError,
                   sizes.barriers == 0 || (family.takes_barriers && sizes.barriers > 0 && sizes.barriers < 3),
                   "[schedule] ", name, " with embedding and head cut over ranks by ", sizes.barriers,
                   " barriers; accepted: ", family.takes_barriers ? "0, 1 or 2" : "0");
  TESSERA_CHECK_AS(ConfigError, fits_family(family, filled), "[schedule] ", name, " of ", sizes.micro_batches,
                   " micro-batches on ", sizes.ranks, " ranks", *family.wants == '\0' ? "" : ", which wants ",
                   family.wants, "; accepted: ", fitting_text(family, filled));
  return family.make(filled);
}

}  // namespace tessera::schedule
