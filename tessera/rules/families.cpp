#include "tessera/rules/families.h"

namespace tessera::rules {

void add_families(RuleTable& table) {
  add_contraction_rules(table);
  add_elementwise_rules(table);
}

}  // namespace tessera::rules
