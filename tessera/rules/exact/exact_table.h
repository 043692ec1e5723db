// Which operators have an exact rule.
#pragma once

#include <string_view>

#include "tessera/rules/exact/exact.h"

namespace tessera::rules {

// The exact rule of `op`, of its functional form for an in-place or out= operator; null: refused in `exact`.
const ExactRule* find_exact_rule(std::string_view op);

// For tests: while it lives, calls of `op` that are seen for the first time on a rank run by `rule`. `op` must be in
// the table, and ranks start and end inside its life.
class ScopedExactRule {
 public:
  ScopedExactRule(std::string_view op, const ExactRule& rule);
  ~ScopedExactRule();
  ScopedExactRule(const ScopedExactRule&) = delete;
  ScopedExactRule& operator=(const ScopedExactRule&) = delete;

 private:
  ExactRule* entry_;
  ExactRule before_;
};

}  // namespace tessera::rules
