#include "tessera/catalogue/entry.h"

namespace tessera::catalogue {
namespace {

constexpr Role kRoles[] = {Role::kParameter, Role::kBuffer, Role::kMoment, Role::kOther};

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::kParameter: return "parameter";
    case Role::kBuffer: return "buffer";
    case Role::kMoment: return "moment";
    case Role::kOther: return "other";
  }
  return "";
}

std::optional<Role> try_parse_role(std::string_view text) {
  for (Role role : kRoles) {
    if (text == name_of(role)) {
      return role;
    }
  }
  return std::nullopt;
}

}  // namespace tessera::catalogue
