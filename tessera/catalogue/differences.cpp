#include "tessera/catalogue/differences.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::catalogue {
namespace {

std::string shape_of(const layout::Spec& spec) {
  return std::string(c10::getDtypeNames(spec->dtype).first) + "[" + base::join(spec->sizes, ", ") + "]";
}

// `2 missing: a, b` at the end of `text`.
void append_group(std::string& text, const std::vector<std::string>& items, const char* kind, size_t most) {
  if (items.empty()) {
    return;
  }
  const std::vector<std::string> first(items.begin(), items.begin() + std::min(most, items.size()));
  text += (text.empty() ? "" : "; ") + std::to_string(items.size()) + " " + kind + ": " + base::join(first, ", ");
  if (items.size() > first.size()) {
    text += " and " + std::to_string(items.size() - first.size()) + " more";
  }
}

}  // namespace

std::string Differences::str(size_t most) const {
  std::vector<std::string> shapes;
  for (const Misshapen& one : misshapen) {
    shapes.push_back(one.wanted.name + " is " + shape_of(one.found.spec) + ", wanted " + shape_of(one.wanted.spec));
  }
  std::string text;
  append_group(text, missing, "missing", most);
  append_group(text, extra, "extra", most);
  append_group(text, shapes, "misshapen", most);
  return text.empty() ? "no differences" : text;
}

Differences differences_of(const Catalogue& wanted, const Catalogue& found) {
  Differences result;
  std::set<const Entry*> used;
  for (const Entry& entry : wanted.entries()) {
    const Entry* match = found.find_match(entry);
    if (match == nullptr) {
      result.missing.push_back(entry.name);
      continue;
    }
    used.insert(match);
    if (match->spec->sizes != entry.spec->sizes || match->spec->dtype != entry.spec->dtype) {
      result.misshapen.push_back({entry, *match});
    }
  }
  for (const Entry& entry : found.entries()) {
    if (!used.contains(&entry)) {
      result.extra.push_back(entry.name);
    }
  }
  return result;
}

void verify_fits(const Catalogue& wanted, const Catalogue& found, const std::string& source, FitOptions options) {
  Differences differences = differences_of(wanted, found);
  if (options.allows_extra) {
    differences.extra.clear();
  }
  TESSERA_CHECK_AS(DataError, differences.is_none(), "[catalogue] ", source,
                   " is not what is wanted: ", differences.str(), "; accepted: the ", wanted.entries().size(),
                   " tensors that are wanted, of the same sizes and dtypes; nothing was changed");
}

}  // namespace tessera::catalogue
