#include "tessera/checkpoint/folder/names.h"

#include "tessera/base/text.h"
#include "tessera/checkpoint/store/store.h"

namespace tessera::checkpoint {
namespace {

std::string digits(int64_t number, size_t width) {
  const auto text = std::to_string(number);
  return text.size() < width ? std::string(width - text.size(), '0') + text : text;
}

// The number in `before`, digits, `after`, if `name_for` gives that very name for it.
template <typename Name>
std::optional<int64_t> number_in(const std::string& name, size_t before, size_t after, Name name_for) {
  if (name.size() <= before + after) {
    return std::nullopt;
  }
  const auto number = base::try_parse_int(name.substr(before, name.size() - before - after));
  return number && *number >= 0 && name_for(*number) == name ? number : std::nullopt;
}

}  // namespace

std::string step_folder(const std::string& run, int64_t step) { return path_in(run, "step_" + digits(step, 6)); }

std::optional<int64_t> try_step_of(const std::string& name) {
  return number_in(name, 5, 0, [](int64_t step) { return step_folder("", step); });
}

std::string receipt_name(int64_t rank) { return "receipt-" + digits(rank, 5) + ".json"; }

std::optional<int64_t> try_receipt_rank(const std::string& name) { return number_in(name, 8, 5, receipt_name); }

std::string state_part_name(int64_t rank) { return "state-" + digits(rank, 5) + ".safetensors"; }

std::string model_part_name(int64_t index, int64_t count) {
  return "model-" + digits(index + 1, 5) + "-of-" + digits(count, 5) + ".safetensors";
}

}  // namespace tessera::checkpoint
