// Whether what is found is what is wanted, said in one text before anything is changed.
#pragma once

#include <string>
#include <vector>

#include "tessera/catalogue/catalogue.h"

namespace tessera::catalogue {

// What two catalogues differ in besides layouts, roles and values; all lists in the order of the names. An entry is
// found under its name or one of its aliases (Catalogue::find_match).
struct Differences {
  // A tensor that is wanted and found with other sizes or another dtype.
  struct Misshapen {
    Entry wanted;
    Entry found;
  };

  std::vector<std::string> missing;  // wanted, not found
  std::vector<std::string> extra;    // found; what is wanted comes from other entries
  std::vector<Misshapen> misshapen;

  bool is_none() const { return missing.empty() && extra.empty() && misshapen.empty(); }

  // `2 missing: a, b; 1 misshapen: c is float32[8], wanted float32[9]`, of each kind at most `most` names `and 113
  // more`.
  std::string str(size_t most = 20) const;
};

Differences differences_of(const Catalogue& wanted, const Catalogue& found);

struct FitOptions {
  bool allows_extra = false;  // what is found may be more than is wanted
};

// Throws DataError with all differences if there are any; `source` names what was found.
void verify_fits(const Catalogue& wanted, const Catalogue& found, const std::string& source, FitOptions options = {});

}  // namespace tessera::catalogue
