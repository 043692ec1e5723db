#include "tessera/rules/families/kernel_memory.h"

#include <string>
#include <unordered_set>

namespace tessera::rules {

bool kernel_takes_memory(const c10::OperatorName& op) {
  static const std::unordered_set<std::string> names = {"aten::addmm",
                                                        "aten::baddbmm",
                                                        "aten::bmm",
                                                        "aten::copy_",
                                                        "aten::mm",
                                                        "aten::_scaled_dot_product_flash_attention_for_cpu",
                                                        "aten::_scaled_dot_product_flash_attention_for_cpu_backward"};
  return names.contains(op.name);
}

}  // namespace tessera::rules
