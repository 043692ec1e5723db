// What the engine knows about an operator.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "tessera/rules/engine/exact_rule.h"
#include "tessera/rules/engine/factor_map.h"
#include "tessera/rules/engine/facts.h"
#include "tessera/rules/engine/local_kernel.h"

namespace tessera::rules {

// Where the shapes of the outputs come from.
enum class ShapeSource : uint8_t {
  kMeta,     // the operator itself, run on meta tensors
  kFactors,  // the factor map's extents, contiguous, dtype of operand 0 (for operators without a meta kernel)
};

// The row of one operator: all that the program knows of it by name.
struct Rule {
  // The rule, which `foo_` and `foo.out` without one of their own share.
  std::function<FactorMap(const Call&)> map = {};  // null where the rule always decomposes, and in rows without a rule
  LocalKernel local = nullptr;
  // The local kernel is right for interleaved cuts too. (Without one, every operator is.)
  bool takes_interleaved = false;
  // Decompose when `decompose_when` says so (always, if it is null). It is asked first: the call has no outputs yet.
  Decomposition decompose = nullptr;
  bool (*decompose_when)(const Call&) = nullptr;
  // The map or `exact->accepts` reads number arguments (not only ints, bools, dtypes and their lists): their values
  // become part of the cache key.
  bool reads_numbers = false;
  ShapeSource shape = ShapeSource::kMeta;

  // In `exact` numerics, likewise shared; nothing: refused there.
  std::optional<ExactRule> exact = {};

  // Of this very operator; `foo_` and `foo.out` say it in rows of their own.
  Special special = Special::kNone;
  Caught caught = Caught::kNo;
  View view = View::kNone;
  Carry carry = Carry::kNo;
  Makes makes = Makes::kValues;
  StepLoss step_loss = StepLoss::kNone;
  Draws draws = {};
  bool needs_no_value = false;           // it looks at sizes and layouts only, or makes an alias
  bool permutes = false;                 // it draws a permutation
  bool copies = false;                   // the result is the operand, seen anew or converted
  bool overwrites = false;               // all that was there, by a number
  bool reshapes = false;                 // to the sizes in its second argument: a part's are given to it
  bool chooses = false;                  // its last result: places along the dim of argument 2, where programs look
  const char* becomes = "";              // Special::kViewInPlace: the view
  Decomposition out_of_place = nullptr;  // Caught::kOutOfPlace: the composite as operators that make new values
  int plain_result = -1;  // the result that stays plain, equal on every rank: the program reads it from memory
  std::vector<const char*> host_values = {};  // arguments whose values it reads from memory
  // Adds what plain arguments give to a tensor of the result's sizes, by one kernel; false: it cannot, and wrote
  // nothing. (Note [Adding in the kernel] has who asks.)
  bool (*adds_to)(const at::Tensor& sum, c10::ArrayRef<c10::IValue> args) = nullptr;

  bool is_rule() const { return map || decompose; }
  Rule in_exact(const ExactRule& rule) const;  // with that exact form
};

// All rows, by operator name with overload (`aten::add.Tensor`). Built once, then read only.
class RuleTable {
 public:
  // The table of every family (rules/families/families.cpp lists them).
  static const RuleTable& instance();

  // Throws if a name is taken, or if there is a rule for an operator that this libtorch does not have.
  void add(std::string_view op, Rule rule);
  void add_all(const std::vector<std::string>& ops, const Rule& rule);
  // For an operator that some releases of libtorch lack, or that a higher floor defines.
  void add_optional(std::string_view op, Rule rule);

  // The rule of `op`, of its functional form for an in-place or out= operator, or null. In-place operators that change
  // sizes (squeeze_) have none.
  const Rule* find(std::string_view op) const;
  // The exact form of `op`, or of its functional form; null: refused in `exact`.
  const ExactRule* find_exact(std::string_view op) const;
  // What is known of `op` itself; of an operator without a row, nothing.
  const Rule& row(std::string_view op) const;
  const Rule& row(const c10::OperatorHandle& op) const;

  const std::unordered_map<std::string, Rule>& rows() const { return rules_; }
  std::vector<std::string> names() const;  // of those with a rule, sorted

 private:
  std::unordered_map<std::string, Rule> rules_;
};

// The functional name of an in-place or out= operator (`aten::add_.Tensor` -> `aten::add.Tensor`), or the name itself.
std::string functional_name(std::string_view op);

}  // namespace tessera::rules
