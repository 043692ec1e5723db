#include "tessera/rules/engine/call.h"

#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::rules {

namespace {

int find_arg(const Call& call, const char* name) {
  const auto& arguments = call.schema->arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

}  // namespace

int Call::arg_index(const char* name) const {
  const int index = find_arg(*this, name);
  TESSERA_ASSERT(index >= 0, this->name, " has no argument ", name);
  return index;
}

const c10::IValue& Call::arg(const char* name) const { return args.at(arg_index(name)); }

bool Call::has_arg(const char* name) const { return find_arg(*this, name) >= 0; }

std::vector<int64_t> Call::ints(const char* name) const {
  const c10::IValue& value = arg(name);
  if (value.isNone()) {
    return {};
  }
  return value.isInt() ? std::vector<int64_t>{value.toInt()} : value.toIntVector();
}

int64_t Call::integer(const char* name, int64_t if_none) const {
  const c10::IValue& value = arg(name);
  return value.isNone() ? if_none : value.toInt();
}

bool Call::flag(const char* name) const {
  const c10::IValue& value = arg(name);
  return value.isBool() && value.toBool();
}

int Call::operand_of(const char* name) const {
  const int index = arg_index(name);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].arg == index) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::vector<int64_t> Call::dims(const char* name, int64_t ndim) const {
  std::vector<int64_t> result = ints(name);
  if (result.empty()) {
    result.resize(ndim);
    std::iota(result.begin(), result.end(), 0);
    return result;
  }
  for (int64_t& dim : result) {
    dim = wrap_dim(dim, ndim);
  }
  std::sort(result.begin(), result.end());
  if (ndim == 0) {
    result.clear();
  }
  return result;
}

std::string short_name(const Call& call) { return call.name.starts_with("aten::") ? call.name.substr(6) : call.name; }

std::string describe(const Call& call) {
  const auto write = [](std::ostream& out, const Operand& operand) { out << operand.spec.layout_str(); };
  return short_name(call) + " " + base::join(call.operands, " x ", write);
}

int64_t wrap_dim(int64_t dim, int64_t ndim) {
  const int64_t count = std::max<int64_t>(ndim, 1);
  TESSERA_CHECK(dim >= -count && dim < count, "[rules] dim ", dim, " of a tensor with ", ndim,
                " dims; accepted: ", -count, " to ", count - 1);
  return dim < 0 ? dim + count : dim;
}

}  // namespace tessera::rules
