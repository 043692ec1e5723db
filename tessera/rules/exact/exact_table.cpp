#include "tessera/rules/exact/exact_table.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::rules {

const ExactRule* find_exact_rule(std::string_view op) { return RuleTable::instance().find_exact(op); }

ScopedExactRule::ScopedExactRule(std::string_view op, const ExactRule& rule)
    : entry_(const_cast<ExactRule*>(find_exact_rule(op))) {
  TESSERA_CHECK(entry_, "[exact] no rule of ", op, " to replace");
  before_ = std::exchange(*entry_, rule);
}

ScopedExactRule::~ScopedExactRule() { *entry_ = before_; }

}  // namespace tessera::rules
