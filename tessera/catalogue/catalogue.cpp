#include "tessera/catalogue/catalogue.h"

#include <algorithm>

#include <c10/core/ScalarType.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::catalogue {
namespace {

void verify_entry(const Entry& entry) {
  TESSERA_CHECK(!entry.name.empty(), "[catalogue] an entry without a name");
  TESSERA_CHECK(entry.spec, "[catalogue] ", entry.name, " has no Spec");
  TESSERA_CHECK(!entry.spec->has_partial, "[catalogue] ", entry.name, " is ", entry.spec.str(),
                ": what persists is no term of a sum; accepted: R, S and On");
  TESSERA_CHECK(!c10::isQIntType(entry.spec->dtype) && entry.spec->dtype != c10::ScalarType::Undefined, "[catalogue] ",
                entry.name, " has the dtype ", entry.spec->dtype, "; accepted: dtypes that are not quantised");
}

std::string without_spaces(const std::string& name, const std::string& text) {
  const auto value = nlohmann::json::parse(text, nullptr, false);
  TESSERA_CHECK(!value.is_discarded(), "[catalogue] the value ", name, " is not JSON: ", text);
  return value.dump();
}

bool has_prefix(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

}  // namespace

Catalogue::Catalogue(std::vector<Entry> entries, Values values)
    : entries_(std::move(entries)), values_(std::move(values)) {
  for (Entry& entry : entries_) {
    verify_entry(entry);
    const layout::SpecData& spec = *entry.spec;
    entry.spec = layout::Spec::contiguous(spec.mesh, spec.placements, spec.sizes, spec.dtype);
    std::sort(entry.aliases.begin(), entry.aliases.end());
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.name < b.name; });
  int64_t total = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    TESSERA_CHECK(!__builtin_add_overflow(total, entries_[i].spec->bytes(), &total),
                  "[catalogue] more bytes than int64 counts, with ", entries_[i].name, " ", entries_[i].spec.str());
    const auto add = [&](const std::string& name) {
      TESSERA_CHECK(!name.empty(), "[catalogue] an alias of ", entries_[i].name, " is empty");
      const auto [at, is_new] = positions_.emplace(name, i);
      TESSERA_CHECK(is_new, "[catalogue] ", name, " names ", entries_[at->second].name, " ",
                    entries_[at->second].spec.str(), " and ", entries_[i].name, " ", entries_[i].spec.str(),
                    "; accepted: every name and alias once");
    };
    add(entries_[i].name);
    std::for_each(entries_[i].aliases.begin(), entries_[i].aliases.end(), add);
  }
  for (auto& [name, text] : values_) {
    text = without_spaces(name, text);
  }
}

const Entry* Catalogue::find(std::string_view name) const {
  const auto found = positions_.find(name);
  return found == positions_.end() ? nullptr : &entries_[found->second];
}

const Entry& Catalogue::at(std::string_view name) const {
  const Entry* found = find(name);
  if (found == nullptr) {
    std::vector<std::string> names;
    for (const auto& [known, unused] : positions_) {
      names.push_back(known);
    }
    TESSERA_CHECK(false, "[catalogue] nothing is called ", name, " among ", entries_.size(), " entries",
                  base::did_you_mean(name, names));
  }
  return *found;
}

const Entry* Catalogue::find_match(const Entry& other) const {
  const Entry* found = find(other.name);
  for (size_t i = 0; found == nullptr && i < other.aliases.size(); ++i) {
    found = find(other.aliases[i]);
  }
  return found;
}

int64_t Catalogue::bytes() const {
  int64_t result = 0;
  for (const Entry& entry : entries_) {
    result += entry.spec->bytes();
  }
  return result;
}

Catalogue Catalogue::subset(const std::function<bool(const Entry&)>& is_kept) const {
  std::vector<Entry> kept;
  std::copy_if(entries_.begin(), entries_.end(), std::back_inserter(kept), is_kept);
  return Catalogue(std::move(kept), values_);
}

Catalogue Catalogue::subset(const std::vector<std::string>& names) const {
  std::vector<const Entry*> wanted;
  for (const std::string& name : names) {
    wanted.push_back(&at(name));
  }
  std::sort(wanted.begin(), wanted.end());
  return subset([&](const Entry& entry) { return std::binary_search(wanted.begin(), wanted.end(), &entry); });
}

Catalogue Catalogue::with_prefix(std::string_view from, std::string_view to) const {
  bool is_any = false;
  const auto rename = [&](std::string& name) {
    if (has_prefix(name, from)) {
      name = std::string(to) + name.substr(from.size());
      is_any = true;
    }
  };
  std::vector<Entry> renamed = entries_;
  for (Entry& entry : renamed) {
    rename(entry.name);
    std::for_each(entry.aliases.begin(), entry.aliases.end(), rename);
  }
  TESSERA_CHECK(is_any, "[catalogue] no name begins with \"", from, "\", which was to become \"", to, "\"");
  return Catalogue(std::move(renamed), values_);
}

}  // namespace tessera::catalogue
