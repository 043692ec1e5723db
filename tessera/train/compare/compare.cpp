#include "tessera/train/compare/compare.h"

#include <cmath>
#include <limits>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/layout/axis_role.h"
#include "tessera/layout/mesh.h"
#include "tessera/train/run/loop.h"
#include "tessera/train/run/setup.h"

namespace tessera::train {
namespace {

// More elements than this, over all steps, and parameters are kept after the last step only.
constexpr int64_t kMostKept = int64_t{1} << 26;

using Parameters = std::map<std::string, at::Tensor>;

struct Run {
  std::vector<StepRecord> steps;
  std::vector<Parameters> parameters;  // after every step, or after the last
};

// Rank 0 keeps; all ranks gather.
class Recorder : public Observer {
 public:
  Recorder(Run* run, int64_t steps) : run_(run), steps_(steps) {}

  void on_step(const StepRecord& record, const Training& training) override {
    const auto& model = training.model;
    if (run_ != nullptr) {
      run_->steps.push_back(record);
    }
    if (record.step != steps_ && models::parameter_count(model) * steps_ > kMostKept) {
      return;
    }
    Parameters all;
    for (const auto& parameter : model.named_parameters()) {
      all[parameter.key()] = dtensor::full_tensor(parameter.value().detach()).clone();
    }
    if (run_ != nullptr) {
      run_->parameters.push_back(std::move(all));
    }
  }

 private:
  Run* run_;
  int64_t steps_;
};

Run run_side(const Side& side, int64_t steps) {
  const auto sampler = make_sampler(side.config);
  Run run;
  comm::run_ranks(side.config.ranks(), [&](int64_t rank) {
    Recorder recorder(rank == 0 ? &run : nullptr, steps);
    run_loop(side.config, sampler, {.steps = steps, .evaluate = false}, recorder);
  });
  return run;
}

double relative(double a, double b) { return a == b ? 0 : std::abs(a - b) / std::abs(a); }

double largest(const at::Tensor& tensor) { return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>(); }

struct ParameterPart {
  std::string name;
  at::Tensor value;
  bool has_zero_gradient = false;
};

// A parameter, with the rows whose gradient is zero in exact arithmetic apart: a bias of K shifts all scores of a query
// alike.
std::vector<ParameterPart> parts_of(const Config& config, const std::string& name, const at::Tensor& value) {
  if (config.model.kind != "gpt" || !name.ends_with("attn.c_attn.bias")) {
    return {{name, value}};
  }
  const auto rows = value.unflatten(0, {config.model.heads, 3, -1});
  return {
      {name + " (q)", rows.select(1, 0)}, {name + " (k)", rows.select(1, 1), true}, {name + " (v)", rows.select(1, 2)}};
}

ParameterError error_of(const ParameterPart& a, const ParameterPart& b, double tolerance, double absolute_limit) {
  const auto wide = a.value.to(at::kDouble);
  const auto difference = largest(wide - b.value.to(at::kDouble));
  if (a.has_zero_gradient) {
    return {a.name, difference, absolute_limit, true};
  }
  return {a.name, difference == 0 ? 0 : difference / largest(wide), tolerance};
}

// The first thing that differs in any bit after step `i`.
std::string what_differs(const Run& a, const Run& b, size_t i, bool every_step) {
  if (a.steps[i].loss != b.steps[i].loss) {
    return "loss";
  }
  if (a.steps[i].grad_norm != b.steps[i].grad_norm) {
    return "grad_norm";
  }
  if (every_step || i + 1 == a.steps.size()) {
    const auto at = every_step ? i : 0;
    for (const auto& [name, value] : a.parameters[at]) {
      if (!value.equal(b.parameters[at].at(name))) {
        return name;
      }
    }
  }
  return "";
}

SideResult result_of(const Side& side, const Run& a, const Run& b, double tolerance, bool every_step) {
  SideResult result;
  result.text = side.text;
  for (size_t i = 0; i < a.steps.size(); ++i) {
    result.loss = std::max(result.loss, relative(a.steps[i].loss, b.steps[i].loss));
    result.grad_norm = std::max(result.grad_norm, relative(a.steps[i].grad_norm, b.steps[i].grad_norm));
    if (result.first_step == 0) {
      result.first_what = what_differs(a, b, i, every_step);
      result.first_step = result.first_what.empty() ? 0 : static_cast<int64_t>(i) + 1;
    }
  }
  const auto limit = side.config.optimizer.lr * static_cast<double>(a.steps.size());
  for (const auto& [name, value] : a.parameters.back()) {
    const auto of_a = parts_of(side.config, name, value),
               of_b = parts_of(side.config, name, b.parameters.back().at(name));
    for (size_t part = 0; part < of_a.size(); ++part) {
      result.parameters.push_back(error_of(of_a[part], of_b[part], tolerance, limit));
    }
  }
  result.is_inside = result.loss <= tolerance && result.grad_norm <= tolerance &&
                     std::all_of(result.parameters.begin(), result.parameters.end(),
                                 [](const ParameterError& error) { return error.error <= error.limit; });
  return result;
}

// Whether the mesh of a side has stages, and its text does not say their schedule.
bool wants_schedule(const std::string& text) {
  const auto mesh = layout::Mesh::parse(base::trim(base::split(text, ';').front()));
  return layout::ranks_along(mesh, layout::AxisRole::kPipeline) > 1 && text.find("schedule=") == std::string::npos;
}

}  // namespace

Side parse_side(const Config& base, const std::string& text) {
  const auto parts = base::split(text, ';');
  Side side{text, base};
  side.config.parallel.mesh = std::string(base::trim(parts.front()));
  side.config.parallel.ranks = 0;
  side.config.parallel.plan.clear();
  side.config.mesh();
  for (size_t i = 1; i < parts.size(); ++i) {
    const std::string option(base::trim(parts[i]));
    if (option == "sp") {
      side.config.parallel.sequence_parallel = true;
    } else if (option == "regather") {
      side.config.parallel.keep_gathered = false;
    } else if (option.starts_with("accumulate=")) {
      set_field(side.config, "train." + option);
    } else if (option.starts_with("schedule=")) {
      set_field(side.config, "parallel." + option);
    } else {
      TESSERA_CHECK_AS(ConfigError, option.find('.') < option.find('='), "[compare] \"", option, "\" in \"", text,
                       "\" is no option of a side; accepted: sp, regather, accumulate=2, schedule=1f1b, "
                       "section.key=value");
      set_field(side.config, option);
    }
  }
  verify_run(side.config);
  return side;
}

std::vector<Side> parse_sides(const Config& base, const std::vector<std::string>& texts,
                              const std::vector<std::string>& schedules) {
  std::vector<Side> sides;
  for (const std::string& text : texts) {
    if (schedules.empty() || !wants_schedule(text)) {
      sides.push_back(parse_side(base, text));
      continue;
    }
    for (const std::string& schedule : schedules) {
      sides.push_back(parse_side(base, text + ";schedule=" + schedule));
    }
  }
  return sides;
}

void verify_sides(const std::vector<Side>& sides, int64_t steps) {
  TESSERA_CHECK_AS(ConfigError, sides.size() >= 2, "[compare] ", sides.size(),
                   " layout to compare; accepted: at least two, as in --mesh 1 --mesh dp=2,tp=2");
  for (const auto& side : sides) {
    const auto most = side.config.train.steps;
    TESSERA_CHECK_AS(ConfigError, steps >= 1 && steps <= most, "[compare] ", steps,
                     " steps; accepted: 1 to the configuration's train.steps ", most);
  }
}

Comparison compare(const std::vector<Side>& sides, const CompareOptions& options) {
  verify_sides(sides, options.steps);
  const auto& config = sides.front().config;
  Comparison comparison{
      .reference = sides.front().text,
      .dtype = config.train.dtype,
      .steps = options.steps,
      .tolerance = options.tolerance > 0 ? options.tolerance : default_tolerance(config),
      .sides = {},
  };
  const auto reference = run_side(sides.front(), options.steps);
  comparison.every_step = reference.parameters.size() == reference.steps.size();
  for (size_t i = 1; i < sides.size(); ++i) {
    const auto run = run_side(sides[i], options.steps);
    comparison.sides.push_back(result_of(sides[i], reference, run, comparison.tolerance, comparison.every_step));
  }
  return comparison;
}

const ParameterError& SideResult::worst() const {
  TESSERA_ASSERT(!parameters.empty());
  return *std::max_element(parameters.begin(), parameters.end(), [](const ParameterError& a, const ParameterError& b) {
    return a.error / a.limit < b.error / b.limit;
  });
}

bool Comparison::is_inside() const {
  return std::all_of(sides.begin(), sides.end(), [](const SideResult& side) { return side.is_inside; });
}

}  // namespace tessera::train
