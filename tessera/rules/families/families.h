// The families of operators: each is one file of data that fills the table, and no other source names an operator
// (tools/check_operators.py).
#pragma once

#include "tessera/rules/engine/rule.h"

namespace tessera::rules {

void add_attention_rules(RuleTable& table);
void add_batch_norm_rules(RuleTable& table);
void add_complex_rules(RuleTable& table);
void add_contraction_rules(RuleTable& table);
void add_convolution_rules(RuleTable& table);
void add_elementwise_rules(RuleTable& table);
void add_factory_rules(RuleTable& table);
void add_grouped_rules(RuleTable& table);
void add_indexing_rules(RuleTable& table);
void add_list_rules(RuleTable& table);
void add_loss_rules(RuleTable& table);
void add_norm_rules(RuleTable& table);
void add_plane_rules(RuleTable& table);
void add_random_rules(RuleTable& table);
void add_reduction_rules(RuleTable& table);
void add_scatter_rules(RuleTable& table);
void add_slice_rules(RuleTable& table);
void add_view_rules(RuleTable& table);
void add_whole_rules(RuleTable& table);

// Every family, in alphabetical order.
void add_families(RuleTable& table);

}  // namespace tessera::rules
