// One persistent thing of a program: its name, what it is for, and who holds which part of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/layout/spec.h"

namespace tessera::catalogue {

enum class Role : uint8_t {
  kParameter,
  kBuffer,
  kMoment,  // state of an optimizer
  kOther,
};

// Whether it belongs to the model: a parameter or a buffer.
inline bool is_of_model(Role role) { return role == Role::kParameter || role == Role::kBuffer; }

// `parameter`, `buffer`, `moment` or `other`; and back, nothing for another text.
const char* name_of(Role role);
std::optional<Role> try_parse_role(std::string_view text);

// A tensor under its logical name. A parameter that a program reaches by several names is one entry: its first name,
// the others as aliases. Moments are called `exp_avg/<name of the parameter>`; nothing here reads that.
struct Entry {
  std::string name;
  std::vector<std::string> aliases;
  Role role = Role::kParameter;
  // No axis is Partial.
  layout::Spec spec;

  bool operator==(const Entry&) const = default;
};

}  // namespace tessera::catalogue
