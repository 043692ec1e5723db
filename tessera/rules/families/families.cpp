#include "tessera/rules/families/families.h"

namespace tessera::rules {

void add_families(RuleTable& table) {
  add_attention_rules(table);
  add_batch_norm_rules(table);
  add_complex_rules(table);
  add_contraction_rules(table);
  add_convolution_rules(table);
  add_elementwise_rules(table);
  add_factory_rules(table);
  add_grouped_rules(table);
  add_indexing_rules(table);
  add_list_rules(table);
  add_loss_rules(table);
  add_norm_rules(table);
  add_plane_rules(table);
  add_random_rules(table);
  add_reduction_rules(table);
  add_scatter_rules(table);
  add_slice_rules(table);
  add_view_rules(table);
  add_whole_rules(table);
}

const RuleTable& RuleTable::instance() {
  static const RuleTable& table = *[] {
    auto* made = new RuleTable;
    add_families(*made);
    return made;
  }();
  return table;
}

}  // namespace tessera::rules
