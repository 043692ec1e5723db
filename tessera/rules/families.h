// The families of rules: each is one file of data that fills the table.
#pragma once

#include "tessera/rules/rule.h"

namespace tessera::rules {

void add_contraction_rules(RuleTable& table);
void add_elementwise_rules(RuleTable& table);

// Every family, in alphabetical order.
void add_families(RuleTable& table);

}  // namespace tessera::rules
