// Every persistent thing of a program under one name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/catalogue/entry.h"

namespace tessera::catalogue {

// Named values that are no tensors, each as JSON text: the step, settings of the optimizer, random state, the position
// in the data, the lattice and version of `exact`, whatever the program adds.
using Values = std::map<std::string, std::string>;

// What checkpoints, moves to other meshes, recovery and serving read: entries by name, and values. The same on every
// rank.
//
// A value: knows no file and no communicator. Thread-safe. Strides and labels of a tensor do not persist: the Specs of
// a catalogue are contiguous and have none.
class Catalogue {
 public:
  Catalogue() = default;

  // In any order. Throws if an entry has no Spec or one with a Partial axis or of quantised numbers, if a name is empty
  // or stands twice, be it as an alias, if a value is not JSON, or if all tensors have more bytes than int64 counts.
  explicit Catalogue(std::vector<Entry> entries, Values values = {});

  // Sorted by name; the values each as JSON without spaces.
  const std::vector<Entry>& entries() const { return entries_; }
  const Values& values() const { return values_; }

  // The entry that has this name or this alias, or null; `at` throws with the name that is near.
  const Entry* find(std::string_view name) const;
  const Entry& at(std::string_view name) const;

  // The entry here for one of another catalogue: that which has its name, or else the first of its aliases that is
  // here.
  const Entry* find_match(const Entry& other) const;

  // Of all tensors, each once and whole.
  int64_t bytes() const;

  // The entries that `is_kept` says, and those of some names or aliases (throws if one is not here); with all values.
  Catalogue subset(const std::function<bool(const Entry&)>& is_kept) const;
  Catalogue subset(const std::vector<std::string>& names) const;

  // Every name and alias that begins with `from` begins with `to` instead. Throws if none does or two names become one.
  // Moments have other prefixes than their parameters: `exp_avg/model.` is one of its own.
  Catalogue with_prefix(std::string_view from, std::string_view to) const;

  bool operator==(const Catalogue& other) const { return entries_ == other.entries_ && values_ == other.values_; }

 private:
  std::vector<Entry> entries_;
  Values values_;
  std::map<std::string, size_t, std::less<>> positions_;  // of every name and alias
};

}  // namespace tessera::catalogue
