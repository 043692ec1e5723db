#include "tessera/rules/engine/factor_map.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::rules {

namespace {

std::string name_of_factor(int factor) {
  return factor < 26 ? std::string(1, static_cast<char>('a' + factor)) : c10::str("f", factor);
}

std::string str(const TensorFactors& tensor) {
  const auto write_dim = [](std::ostream& out, const DimFactors& dim) {
    out << (dim.empty() ? "1" : base::join(dim, "*", [](std::ostream& o, int factor) { o << name_of_factor(factor); }));
  };
  return "(" + base::join(tensor, ",", write_dim) + ")";
}

std::string str(const std::vector<TensorFactors>& tensors) {
  return base::join(tensors, ",", [](std::ostream& out, const TensorFactors& tensor) { out << str(tensor); });
}

// Reads the notation from left to right.
class Parser {
 public:
  Parser(std::string_view text, const Call& call) : text_(text), call_(call) {
    names_.reserve(kUsual);
    map_.factors.reserve(kUsual);
  }

  FactorMap parse() {
    map_.operands = parse_tensors();
    expect('-');
    expect('>');
    map_.outputs = parse_tensors();
    while (take(';') || take(',')) {
      expect('!');
      map_.factors[factor(parse_name())].can_shard = false;
    }
    TESSERA_ASSERT(at_ == text_.size(), "factors ", text_, " of ", call_.name, ": unexpected text at ", at_);
    set_extents();
    return std::move(map_);
  }

 private:
  bool take(char c) {
    if (at_ < text_.size() && text_[at_] == c) {
      ++at_;
      return true;
    }
    return false;
  }

  void expect(char c) { TESSERA_ASSERT(take(c), "factors ", text_, " of ", call_.name, ": expected ", c, " at ", at_); }

  std::string_view parse_name() {
    const size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0)) {
      ++at_;
    }
    TESSERA_ASSERT(at_ > begin, "factors ", text_, " of ", call_.name, ": expected a name at ", at_);
    return text_.substr(begin, at_ - begin);
  }

  int factor(std::string_view name) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it != names_.end()) {
      return static_cast<int>(it - names_.begin());
    }
    names_.push_back(name);
    map_.add(-1);
    return static_cast<int>(names_.size()) - 1;
  }

  std::vector<TensorFactors> parse_tensors() {
    std::vector<TensorFactors> tensors;
    tensors.reserve(kUsual);
    do {
      if (!take('(')) {
        break;
      }
      TensorFactors tensor;
      tensor.reserve(kUsual);
      while (!take(')')) {
        DimFactors dim;
        if (!take('1')) {
          do {
            dim.push_back(factor(parse_name()));
          } while (take('*'));
        }
        tensor.push_back(std::move(dim));
        take(',');
      }
      tensors.push_back(std::move(tensor));
    } while (take(','));
    return tensors;
  }

  // Learns the one unknown extent of each dim, if it has one. True if something was learned.
  bool learn(const TensorFactors& tensor, c10::IntArrayRef sizes) {
    TESSERA_CHECK(tensor.size() == sizes.size(), "[", call_.name, "] a tensor of sizes ", sizes, " where one of ",
                  tensor.size(), " dims is taken: ", text_);
    bool learned = false;
    for (size_t d = 0; d < tensor.size(); ++d) {
      int unknown = -1;
      int64_t known = 1;
      int count = 0;
      for (int f : tensor[d]) {
        map_.factors[f].extent < 0 ? (unknown = f, ++count) : (known *= map_.factors[f].extent);
      }
      if (count == 1 && known > 0) {
        map_.factors[unknown].extent = sizes[d] / known;
        learned = true;
      }
    }
    return learned;
  }

  void set_extents() {
    const auto& operands = call_.operands;
    TESSERA_ASSERT(operands.size() >= map_.operands.size(), "factors ", text_, " of ", call_.name, ": ",
                   operands.size(), " operands");
    bool learned = true;
    while (learned) {
      learned = false;
      for (size_t i = 0; i < map_.operands.size(); ++i) {
        learned |= learn(map_.operands[i], operands[i].spec->sizes);
      }
      for (size_t i = 0; i < std::min(map_.outputs.size(), call_.outputs.size()); ++i) {
        learned |= learn(map_.outputs[i], call_.outputs[i].sizes);
      }
    }
    for (size_t f = 0; f < map_.factors.size(); ++f) {
      TESSERA_ASSERT(map_.factors[f].extent >= 0, "factors ", text_, " of ", call_.name, ": no extent of ", names_[f]);
    }
  }

  static constexpr size_t kUsual = 4;  // dims of a tensor, and tensors

  std::string_view text_;
  const Call& call_;
  size_t at_ = 0;
  std::vector<std::string_view> names_;
  FactorMap map_;
};

}  // namespace

int FactorMap::add(int64_t extent, bool can_shard) {
  factors.push_back({.extent = extent, .can_shard = can_shard});
  return static_cast<int>(factors.size()) - 1;
}

TensorFactors FactorMap::add_all(c10::IntArrayRef sizes) {
  TensorFactors tensor;
  tensor.reserve(sizes.size());
  for (int64_t size : sizes) {
    tensor.push_back({add(size)});
  }
  return tensor;
}

void FactorMap::set_operand(const Call& call, const char* arg, TensorFactors tensor) {
  const int operand = call.has_arg(arg) ? call.operand_of(arg) : -1;
  if (operand >= 0) {
    operands.resize(std::max(operands.size(), static_cast<size_t>(operand) + 1));
    operands[operand] = std::move(tensor);
  }
}

void FactorMap::block(const DimFactors& dim) {
  for (int factor : dim) {
    factors[factor].can_shard = false;
  }
}

std::string FactorMap::str() const {
  std::string result = rules::str(operands) + "->" + rules::str(outputs);
  char separator = ';';
  for (size_t f = 0; f < factors.size(); ++f) {
    if (!factors[f].can_shard) {
      result += separator;
      result += "!" + name_of_factor(static_cast<int>(f));
      separator = ',';
    }
  }
  return result;
}

FactorMap parse_factors(std::string_view notation, const Call& call) { return Parser(notation, call).parse(); }

FactorMap broadcast_factors(const Call& call) {
  std::vector<int64_t> sizes;
  for (const Operand& operand : call.operands) {
    const auto& from = operand.spec->sizes;
    sizes.insert(sizes.begin(), from.size() > sizes.size() ? from.size() - sizes.size() : 0, 1);
    for (size_t i = 1; i <= from.size(); ++i) {
      int64_t& size = sizes[sizes.size() - i];
      size = size == 1 ? from[from.size() - i] : size;
    }
  }
  FactorMap map;
  map.is_by_element = true;
  const TensorFactors result = map.add_all(sizes);
  for (const Operand& operand : call.operands) {
    const auto& from = operand.spec->sizes;
    TensorFactors tensor(result.end() - static_cast<int64_t>(from.size()), result.end());
    for (size_t d = 0; d < from.size(); ++d) {
      if (from[d] == 1 && sizes[sizes.size() - from.size() + d] != 1) {
        tensor[d].clear();
      }
    }
    map.operands.push_back(std::move(tensor));
  }
  map.outputs.assign(call.outputs.empty() ? call.schema->returns().size() : call.outputs.size(), result);
  return map;
}

}  // namespace tessera::rules
