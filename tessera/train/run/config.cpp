#include "tessera/train/run/config.h"

#include <filesystem>
#include <limits>
#include <map>
#include <variant>

#include <toml++/toml.h>

#include "tessera/base/error.h"
#include "tessera/base/read_file.h"
#include "tessera/base/text.h"
#include "tessera/layout/axis_role.h"
#include "tessera/plan/dtypes.h"
#include "tessera/schedule/families/family.h"

namespace tessera::train {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Which values a field takes: texts from a list, or numbers in [low, high], without the ends where they are open.
struct Accepted {
  std::vector<std::string> texts;
  double low = -kNoLimit;
  double high = kNoLimit;
  bool is_open = false;

  bool has(double value) const {
    return is_open ? low < value && value < high : low <= value && value <= high;  // false for NaN
  }
  std::string str() const {
    if (!texts.empty()) {
      return base::join(texts, " or ", [](std::ostream& out, const std::string& text) { out << '"' << text << '"'; });
    }
    const auto above = is_open ? " above " : " of at least ", below = is_open ? " below " : " of at most ";
    return (low > -kNoLimit ? c10::str(above, low) : "") + (low > -kNoLimit && high < kNoLimit ? " and" : "") +
           (high < kNoLimit ? c10::str(below, high) : "");
  }
};

Accepted at_least(double low) { return {.texts = {}, .low = low}; }
Accepted above(double low) { return {.texts = {}, .low = low, .is_open = true}; }
Accepted within(double low, double high) { return {.texts = {}, .low = low, .high = high}; }
Accepted one_of(std::vector<std::string> texts) { return {.texts = std::move(texts)}; }

struct Field {
  std::string name;
  std::variant<std::string*, int64_t*, double*, bool*, std::array<double, 2>*, sums::Lattice*> value;
  Accepted accepted;
};

// The one list of keys.
std::vector<Field> fields(Config& config) {
  auto& [model, data, train, optimizer, precision, recompute, offload, parallel] = config;
  return {
      {"model.kind", &model.kind, one_of({"llama", "gpt"})},
      {"model.vocab_size", &model.vocab_size, at_least(0)},
      {"model.dim", &model.dim, at_least(1)},
      {"model.layers", &model.layers, at_least(1)},
      {"model.heads", &model.heads, at_least(1)},
      {"model.kv_heads", &model.kv_heads, at_least(0)},
      {"model.hidden", &model.hidden, at_least(0)},
      {"model.dropout", &model.dropout, within(0, 0.99)},
      {"model.norm_eps", &model.norm_eps, above(0)},
      {"model.rope_theta", &model.rope_theta, above(1)},
      {"model.init_std", &model.init_std, above(0)},
      {"model.tie_embeddings", &model.tie_embeddings, {}},
      {"model.fused_attention", &model.fused_attention, {}},
      {"data.file", &data.file, {}},
      {"data.tokenizer", &data.tokenizer, {}},
      {"data.eos", &data.eos, {}},
      {"data.token_dtype", &data.token_dtype, one_of({"uint16", "uint32"})},
      {"data.held_out", &data.held_out, within(0, 0.99)},
      {"data.sequence", &data.sequence, at_least(1)},
      {"train.steps", &train.steps, at_least(1)},
      {"train.batch", &train.batch, at_least(1)},
      {"train.accumulate", &train.accumulate, at_least(1)},
      {"train.warmup", &train.warmup, at_least(0)},
      {"train.min_lr", &train.min_lr, at_least(0)},
      {"train.clip", &train.clip, at_least(0)},
      {"train.seed", &train.seed, at_least(0)},
      {"train.dtype", &train.dtype, one_of({"float32", "float64", "bfloat16"})},
      {"train.numerics", &train.numerics, one_of({"exact", "fast"})},
      {"train.lattice", &train.lattice, {}},
      {"train.eval_every", &train.eval_every, at_least(0)},
      {"train.eval_batches", &train.eval_batches, at_least(1)},
      {"train.log_every", &train.log_every, at_least(1)},
      {"train.proof", &train.proof, {}},
      {"optimizer.name", &optimizer.name, one_of({"adamw", "sgd", "lion", "adamw8bit"})},
      {"optimizer.lr", &optimizer.lr, above(0)},
      {"optimizer.betas", &optimizer.betas, within(0, 0.999999)},
      {"optimizer.eps", &optimizer.eps, above(0)},
      {"optimizer.weight_decay", &optimizer.weight_decay, at_least(0)},
      {"optimizer.momentum", &optimizer.momentum, within(0, 0.999999)},
      {"precision.storage", &precision.storage, {}},
      {"precision.compute", &precision.compute, {}},
      {"precision.reduce", &precision.reduce, {}},
      {"recompute.modules", &recompute.modules, {}},
      {"recompute.keep", &recompute.keep, {}},
      {"offload.state", &offload.state, {}},
      {"offload.activations", &offload.activations, {}},
      {"offload.folder", &offload.folder, {}},
      {"parallel.ranks", &parallel.ranks, at_least(0)},
      {"parallel.mesh", &parallel.mesh, {}},
      {"parallel.sequence_parallel", &parallel.sequence_parallel, {}},
      {"parallel.sharding", &parallel.sharding, one_of({"state", "gradients", "parameters", "secondary"})},
      {"parallel.schedule", &parallel.schedule, {}},
      {"parallel.stages_per_rank", &parallel.stages_per_rank, at_least(0)},
      {"parallel.vocabulary", &parallel.vocabulary, at_least(0)},
      {"parallel.keep_gathered", &parallel.keep_gathered, {}},
      {"parallel.plan", &parallel.plan, {}},
  };
}

const std::vector<std::string> kMoved = {"train.lr", "train.betas", "train.eps", "train.weight_decay"};

// Where a field stands that was called so; other names stay.
std::string name_today(const std::string& name) {
  const bool has_moved = std::find(kMoved.begin(), kMoved.end(), name) != kMoved.end();
  return has_moved ? "optimizer" + name.substr(name.find('.')) : name;
}

// `; did you mean "x"?`
std::string did_you_mean(const std::string& name) {
  auto names = field_names();
  const auto leaf = name.substr(name.find('.') + 1);
  const auto elsewhere = std::find_if(
      names.begin(), names.end(), [&](const std::string& other) { return other.substr(other.find('.') + 1) == leaf; });
  if (elsewhere != names.end()) {
    return "; did you mean \"" + *elsewhere + "\"?";
  }
  names.insert(names.end(), kMoved.begin(), kMoved.end());
  const auto near = base::nearest(name, names);
  return near ? "; did you mean \"" + name_today(*near) + "\"?" : "";
}

std::string what_is_accepted(const Field& field) {
  static constexpr const char* kKinds[] = {
      "a text",        "a whole number",     "a number",
      "true or false", "two numbers [a, b]", "a text of leaf counts such as \"batch=8,sequence=1,feature=8\""};
  const auto limits = field.accepted.str();
  return field.accepted.texts.empty() ? kKinds[field.value.index()] + limits : limits;
}

// A reader of one node: nothing where its type does not fit.
template <typename T>
std::optional<T> read(const toml::node& node) {
  if constexpr (std::is_same_v<T, std::array<double, 2>>) {
    const auto* list = node.as_array();
    const auto first = list && list->size() == 2 ? (*list)[0].value<double>() : std::nullopt;
    const auto second = first ? (*list)[1].value<double>() : std::nullopt;
    return second ? std::optional(std::array{*first, *second}) : std::nullopt;
  } else if constexpr (std::is_same_v<T, sums::Lattice>) {
    const auto text = node.value_exact<std::string>();
    return text ? std::optional(sums::Lattice::parse(*text)) : std::nullopt;
  } else if constexpr (std::is_same_v<T, double>) {
    return node.is_number() ? node.value<double>() : std::nullopt;
  } else {
    return node.value_exact<T>();
  }
}

bool is_accepted(const Accepted& accepted, const std::string& value) {
  return accepted.texts.empty() ||
         std::find(accepted.texts.begin(), accepted.texts.end(), value) != accepted.texts.end();
}
bool is_accepted(const Accepted&, bool) { return true; }
bool is_accepted(const Accepted&, const sums::Lattice&) { return true; }
bool is_accepted(const Accepted& accepted, int64_t value) { return accepted.has(static_cast<double>(value)); }
bool is_accepted(const Accepted& accepted, double value) { return accepted.has(value); }
bool is_accepted(const Accepted& accepted, const std::array<double, 2>& values) {
  return accepted.has(values[0]) && accepted.has(values[1]);
}

std::string text_of(const toml::node& node) {
  std::ostringstream out;
  out << toml::node_view<const toml::node>(node);
  return out.str();
}

void assign(const Field& field, const toml::node& node, const std::string& where) {
  std::visit(
      [&](auto* target) {
        std::optional<std::remove_pointer_t<decltype(target)>> value;
        try {
          value = read<std::remove_pointer_t<decltype(target)>>(node);
        } catch (const ConfigError& error) {
          TESSERA_THROW(ConfigError, "[config] ", where, ": ", field.name, ": ", base::message_of(error));
        }
        TESSERA_CHECK_AS(ConfigError, value && is_accepted(field.accepted, *value), "[config] ", where, ": ",
                         field.name, " = ", text_of(node), "; accepted: ", what_is_accepted(field));
        *target = *value;
      },
      field.value);
}

const Field& find_field(const std::vector<Field>& all, const std::string& name, const std::string& where) {
  const auto today = name_today(name);
  const auto found = std::find_if(all.begin(), all.end(), [&](const Field& field) { return field.name == today; });
  if (found != all.end()) {
    return *found;
  }
  TESSERA_THROW(ConfigError, "[config] ", where, ": unknown key \"", name, "\"", did_you_mean(name));
}

toml::table parse_toml(std::string_view text, const std::string& source) {
  try {
    return toml::parse(text, source);
  } catch (const toml::parse_error& error) {
    TESSERA_THROW(ConfigError, "[config] ", source, " line ", error.source().begin.line,
                  " is not TOML: ", error.description(),
                  "; accepted: [section] lines and key = value lines, texts in quotes");
  }
}

std::string line_of(const toml::node& node, const std::string& source) {
  return c10::str(source, " line ", node.source().begin.line);
}

}  // namespace

Config parse_config(std::string_view text, const std::string& source) {
  static const std::vector<std::string> kSections = {"model",     "data",      "train",   "optimizer",
                                                     "precision", "recompute", "offload", "parallel"};
  Config config;
  const auto all = fields(config);
  std::map<const Field*, std::string> given;
  for (const auto& [section, node] : parse_toml(text, source)) {
    const std::string name(section.str());
    TESSERA_CHECK_AS(ConfigError,
                     node.is_table() && std::find(kSections.begin(), kSections.end(), name) != kSections.end(),
                     "[config] ", line_of(node, source), ": \"", name, "\" is no section",
                     base::did_you_mean(name, kSections), "; accepted: [", base::join(kSections, "], ["), "]");
    for (const auto& [key, value] : *node.as_table()) {
      const auto where = line_of(value, source);
      const auto full = name + "." + std::string(key.str());
      const Field& field = find_field(all, full, where);
      const auto [known, is_new] = given.emplace(&field, full);
      TESSERA_CHECK_AS(ConfigError, is_new, "[config] ", where, ": ", full, " is ", known->second,
                       ", which is given as well; accepted: ", field.name, " alone");
      assign(field, value, where);
    }
  }
  return config;
}

Config read_config(const std::string& path) {
  const auto text = base::try_read_file(path);
  TESSERA_CHECK_AS(ConfigError, text, "[config] cannot read \"", path,
                   "\"; accepted: a TOML file such as examples/llama.toml");
  auto config = parse_config(*text, path);
  const auto folder = std::filesystem::path(path).parent_path();
  for (auto* file_name : {&config.data.file, &config.data.tokenizer, &config.parallel.plan}) {
    *file_name = file_name->empty() ? "" : (folder / *file_name).lexically_normal().string();
  }
  return config;
}

void set_field(Config& config, std::string_view assignment) {
  const auto equals = assignment.find('=');
  const auto where = c10::str("--set ", assignment);
  TESSERA_CHECK_AS(ConfigError, equals != std::string_view::npos, "[config] ", where,
                   " has no value; accepted: section.key=value, as in optimizer.lr=1e-3");
  const auto all = fields(config);
  const auto& field = find_field(all, std::string(base::trim(assignment.substr(0, equals))), where);
  const auto value = base::trim(assignment.substr(equals + 1));
  const bool is_bare_text =
      (std::holds_alternative<std::string*>(field.value) || std::holds_alternative<sums::Lattice*>(field.value)) &&
      !value.starts_with('"');
  const toml::table table = is_bare_text ? toml::table{{"value", value}} : [&] {
    try {
      return toml::parse(c10::str("value = ", value));
    } catch (const toml::parse_error&) {
      return toml::table{{"value", value}};
    }
  }();
  assign(field, *table.get("value"), where);
}

std::string to_toml(const Config& config) {
  auto copy = config;
  toml::table sections;
  for (const auto& field : fields(copy)) {
    const auto dot = field.name.find('.');
    auto& section = *sections.emplace<toml::table>(field.name.substr(0, dot)).first->second.as_table();
    std::visit(
        [&](const auto* value) {
          using T = std::decay_t<decltype(*value)>;
          const auto key = field.name.substr(dot + 1);
          if constexpr (std::is_same_v<T, std::array<double, 2>>) {
            section.insert(key, toml::array{(*value)[0], (*value)[1]});
          } else if constexpr (std::is_same_v<T, sums::Lattice>) {
            section.insert(key, value->str());
          } else {
            section.insert(key, *value);
          }
        },
        field.value);
  }
  std::ostringstream out;
  out << sections << "\n";
  return out.str();
}

std::vector<std::string> field_names() {
  Config config;
  std::vector<std::string> names;
  for (const auto& field : fields(config)) {
    names.push_back(field.name);
  }
  return names;
}

at::ScalarType Config::dtype() const {
  return train.dtype == "float64" ? at::kDouble : train.dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

layout::Mesh Config::mesh() const {
  const auto mesh = parallel.mesh.empty() ? layout::Mesh() : layout::Mesh::parse(parallel.mesh);
  layout::verify_roles(mesh);
  return mesh;
}

int64_t Config::ranks() const {
  if (parallel.mesh.empty()) {
    return std::max<int64_t>(parallel.ranks, 1);
  }
  const auto size = mesh().size();
  TESSERA_CHECK_AS(ConfigError, parallel.ranks == 0 || parallel.ranks == size, "[config] parallel.mesh {",
                   parallel.mesh, "} has ", size, " ranks, but parallel.ranks is ", parallel.ranks,
                   "; accepted: parallel.ranks = ", size, ", or a mesh whose sizes multiply to ", parallel.ranks);
  return size;
}

void Config::verify_lattice() const {
  const layout::Mesh own = mesh();
  const int64_t tp = layout::ranks_along(own, layout::AxisRole::kTensor);
  const auto verify_ranks = [](int64_t ranks, const char* kind, const char* what, int64_t leaves) {
    TESSERA_CHECK_AS(ConfigError, ranks <= leaves, "[config] numerics exact: ", ranks, " ranks cut ", what,
                     ", of which the lattice has ", leaves, leaves == 1 ? " leaf" : " leaves",
                     "; accepted: a lattice with at least ", ranks, ", as in --lattice ", kind, "=", ranks,
                     " (the same for every run to be compared), a smaller mesh, or --numerics fast");
  };
  verify_ranks(layout::ranks_along(own, layout::AxisRole::kData) * layout::ranks_along(own, layout::AxisRole::kSharded),
               "batch", "the samples of a step", train.lattice.batch);
  verify_ranks(tp, "feature", "features", train.lattice.feature);
  if (parallel.sequence_parallel) {
    verify_ranks(tp, "sequence", "positions (sequence parallelism)", train.lattice.sequence);
  }
}

void Config::verify_optimizer() const {
  const OptimizerConfig defaults;
  const auto has_no_effect = [&](const char* field, bool is_default, const char* has_it) {
    TESSERA_CHECK_AS(ConfigError, is_default, "[config] optimizer.", field, " has no effect on ", optimizer.name,
                     "; accepted: leave it out, or optimizer.name = ", has_it);
  };
  const bool is_sgd = optimizer.name == "sgd", has_eps = !is_sgd && optimizer.name != "lion";
  has_no_effect("momentum", is_sgd || optimizer.momentum == defaults.momentum, "\"sgd\"");
  has_no_effect("betas", !is_sgd || optimizer.betas == defaults.betas, "\"adamw\" or \"lion\"");
  has_no_effect("eps", has_eps || optimizer.eps == defaults.eps, "\"adamw\"");
  TESSERA_CHECK_AS(ConfigError, train.min_lr <= optimizer.lr, "[config] train.min_lr ", train.min_lr,
                   " is above optimizer.lr ", optimizer.lr, "; accepted: a floor of at most the peak");
}

void Config::verify_schedule(const layout::Mesh& own, const std::string& name, int64_t stages_per_rank,
                             int64_t vocabulary, plan::Deal deal) const {
  schedule::family_of(name);
  const int64_t ranks = layout::ranks_along(own, layout::AxisRole::kPipeline);
  if (ranks == 1) {
    return;
  }
  const auto lattice = is_exact() ? std::optional(train.lattice) : std::nullopt;
  const plan::Rows rows =
      plan::deal_rows(own, layout::batch_axes_of(own), train.batch, train.accumulate,
                      plan::sample_unit(train.batch, lattice), is_exact() ? deal : plan::Deal::kByBlock);
  try {
    schedule::make_schedule(
        name, {.ranks = ranks, .micro_batches = rows.filled(), .per_rank = stages_per_rank, .barriers = vocabulary});
  } catch (const ConfigError& error) {
    TESSERA_THROW(ConfigError, "[config] mesh {", own.str(), "} with train.batch ", train.batch,
                  " and train.accumulate ", train.accumulate, ": ", base::message_of(error));
  }
}

void Config::verify() const {
  ranks();
  const ModelConfig defaults;
  const auto has_no_effect = [&](const char* field, bool is_default, const char* has_it) {
    TESSERA_CHECK_AS(ConfigError, is_default, "[config] ", field, " has no effect on a ", model.kind,
                     "; accepted: leave it out, or model.kind = \"", has_it, "\"");
  };
  if (model.kind == "llama") {
    has_no_effect("model.dropout", model.dropout == defaults.dropout, "gpt");
  } else {
    has_no_effect("model.kv_heads", model.kv_heads == defaults.kv_heads, "llama");
    has_no_effect("model.hidden", model.hidden == defaults.hidden, "llama");
    has_no_effect("model.rope_theta", model.rope_theta == defaults.rope_theta, "llama");
  }
  TESSERA_CHECK_AS(ConfigError, !data.file.empty(),
                   "[config] data.file is not given; accepted: the path of a text file");
  TESSERA_CHECK_AS(
      ConfigError, model.vocab_size == 0 || model.vocab_size >= 256 || data.file.ends_with(".bin"),
      "[config] model.vocab_size ", model.vocab_size,
      " is less than the 256 bytes that a text is made of; accepted: leave it out, or a whole number of at least 256");
  TESSERA_CHECK_AS(ConfigError, data.eos.empty() || !data.tokenizer.empty(), "[config] data.eos \"", data.eos,
                   "\" has no effect without data.tokenizer; accepted: leave it out, or the path of a tokenizer.json");
  TESSERA_CHECK_AS(ConfigError, data.token_dtype == "uint16" || data.file.ends_with(".bin"),
                   "[config] data.token_dtype has no effect on \"", data.file,
                   "\"; accepted: leave it out, or a .bin file of tokens");
  for (const auto& [field, value, key] : {std::tuple("recompute.modules", recompute.modules, "recompute"),
                                          std::tuple("recompute.keep", recompute.keep, "recompute_keep"),
                                          std::tuple("offload.activations", offload.activations, "offload"),
                                          std::tuple("parallel.schedule", parallel.schedule, "schedule")}) {
    TESSERA_CHECK_AS(ConfigError, value.empty() || parallel.plan.empty(), "[config] ", field,
                     " has no effect beside parallel.plan; accepted: leave it out, and say \"", key,
                     "\" in the plan file");
  }
  TESSERA_CHECK_AS(
      ConfigError, recompute.keep.empty() || !recompute.modules.empty(),
      "[config] recompute.keep has no effect without recompute.modules; accepted: leave it out, or patterns "
      "of modules such as model.layers.*");
  TESSERA_CHECK_AS(ConfigError, offload.folder.empty() || !offload.activations.empty() || !parallel.plan.empty(),
                   "[config] offload.folder has no effect without offload.activations; accepted: leave it out, or "
                   "patterns of modules such as model.layers.*");
  TESSERA_CHECK_AS(
      ConfigError,
      parallel.plan.empty() || (precision.storage.empty() && precision.compute.empty() && precision.reduce.empty()),
      "[config] precision has no effect beside parallel.plan; accepted: leave it out, and say "
      "\"compute_dtype\" and its like in the plan file");
  for (const auto& [name, text] : {std::pair("storage", precision.storage), std::pair("compute", precision.compute),
                                   std::pair("reduce", precision.reduce)}) {
    TESSERA_CHECK_AS(ConfigError, text.empty() || plan::try_parse_dtype(text), "[config] precision.", name, " \"", text,
                     "\"; accepted: ", plan::accepted_dtypes());
  }
  TESSERA_CHECK_AS(ConfigError, train.batch >= train.accumulate, "[config] train.batch ", train.batch,
                   " is smaller than train.accumulate ", train.accumulate,
                   "; accepted: at least one sample for each micro-batch");
  TESSERA_CHECK_AS(ConfigError, parallel.stages_per_rank == 0 || !parallel.schedule.empty(),
                   "[config] parallel.stages_per_rank has no effect without parallel.schedule; accepted: leave it out, "
                   "or parallel.schedule = \"interleaved\"");
  TESSERA_CHECK_AS(ConfigError, parallel.vocabulary <= 2, "[config] parallel.vocabulary ", parallel.vocabulary,
                   "; accepted: 1 or 2 barriers, or 0, where embedding and head are not cut over stages");
  TESSERA_CHECK_AS(ConfigError, parallel.vocabulary == 0 || parallel.plan.empty(),
                   "[config] parallel.vocabulary has no effect beside parallel.plan; accepted: leave it out, and say "
                   "\"vocabulary\" in the plan file");
  if (!parallel.schedule.empty()) {
    const bool merges_in_passes =
        layout::ranks_along(mesh(), layout::AxisRole::kSharded) > 1 && parallel.sharding != "state";
    verify_schedule(mesh(), parallel.schedule, parallel.stages_per_rank, parallel.vocabulary,
                    merges_in_passes ? plan::Deal::kByPass : plan::Deal::kByBlock);
  }
  verify_optimizer();
  if (is_exact()) {
    verify_lattice();
  }
}

}  // namespace tessera::train
