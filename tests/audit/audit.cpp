// Every rule, for every layout of its operands, against the operator on whole tensors.
//
// audit [--full] [--op NAME] [--seed N]: the exit status is 0 if no rule is wrong and none lacks a sample. Of the
// layouts of a sample on one mesh a few are drawn, the same in every run of one seed; with --full 400, or all where
// they are fewer. --full also lists the cuts for which an operator would need no rule (the values of a sample may make
// it look so) and its rule moves something nevertheless.
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <set>

#include "tessera/base/error.h"
#include "tests/audit/samples.h"

namespace tessera::audit {

namespace {

using layout::Mesh;
using layout::Placement;
using layout::Placements;
using layout::ReduceOp;
using layout::Spec;

struct Options {
  bool is_full = false;
  std::string op;
  uint64_t seed = 1;
};

struct Count {
  int64_t ran = 0;
  int64_t free = 0;  // of those, the ones in which nothing moved
  int64_t decomposed = 0;
  int64_t refused = 0;
  int64_t wrong = 0;
};

// A run as parameters of a group have theirs: one element at the first rank, the others at the last, none between.
Placement ragged(int64_t dim, int64_t run, int64_t parts) {
  std::vector<int64_t> sizes(parts);
  sizes.front() = std::min<int64_t>(run, 1);
  sizes.back() = run - sizes.front();
  return layout::RaggedShard({dim}, sizes);
}

// The ragged cuts among these, of the runs that they are to cut.
Placements with_fitting_places(const Mesh& mesh, Placements placements, c10::IntArrayRef sizes) {
  const std::vector<int64_t> runs = layout::sizes_in_runs(sizes, layout::last_spanned_dim(placements));
  for (size_t d = 0; d < runs.size(); ++d) {
    int64_t run = runs[d];
    for (int64_t axis : layout::axes_of_dim(mesh, placements, static_cast<int64_t>(d))) {
      Placement& cut = placements[axis];
      const int64_t parts = mesh.axis(axis).size;
      const bool spans = cut.spans;
      cut = cut.is_ragged() ? ragged(cut.dim, run, parts) : cut;
      cut.spans = spans;
      run = cut.cut(run, parts).most();
    }
  }
  return placements;
}

// How a tensor may lie on one axis; places of a ragged cut are found when it is known of what.
std::vector<Placement> choices(const at::Tensor& tensor) {
  std::vector<Placement> result = {layout::Replicate(), layout::On(0), layout::On(1)};
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    result.push_back(layout::Shard(d));
    if (tensor.size(d) > 2) {
      result.push_back(layout::Shard(d, {.unit = 2}));
    }
    result.push_back(ragged(d, tensor.size(d), 2));
    for (int64_t blocks : {2, 3}) {
      if (tensor.size(d) > blocks && tensor.size(d) % blocks == 0) {
        result.push_back(layout::InterleavedShard(d, blocks));
      }
    }
  }
  for (int64_t d = 1; d < tensor.dim(); ++d) {
    result.push_back(layout::spanning(ragged(d, 1, 2)));
  }
  if (tensor.scalar_type() != at::kBool) {
    result.push_back(layout::Partial(ReduceOp::kSum));
  }
  if (tensor.scalar_type() != at::kBool && !at::isComplexType(tensor.scalar_type())) {
    result.push_back(layout::Partial(ReduceOp::kMax));
  }
  if (at::isFloatingType(tensor.scalar_type())) {
    result.push_back(layout::Partial(ReduceOp::kAvg));
  }
  return result;
}

class Auditor {
 public:
  explicit Auditor(const Options& options) : options_(options), random_(options.seed) {
    for (const char* mesh : {"tp=2", "tp=3", "tp=4", "dp=2,tp=2", "dp=2,tp=3"}) {
      meshes_.push_back(Mesh::parse(mesh));
    }
  }

  void run(const Sample& sample) {
    Count& count = counts_[sample.op];
    std::vector<at::Tensor> expected;
    try {
      expected = run_whole(sample.op, sample.args);
    } catch (const std::exception& error) {
      std::printf("WRONG sample of %s: %s\n", sample.op.c_str(), base::message_of(error).c_str());
      ++count.wrong;
      return;
    }
    std::vector<std::vector<Placement>> options;
    for (const auto& [tensor, arg] : rules::testing::tensors_of(sample.args)) {
      tensors_.push_back(tensor);
      options.push_back(choices(tensor));
    }
    for (const Mesh& mesh : meshes_) {
      run_mesh(sample, expected, options, mesh, count);
    }
    if (options_.is_full) {
      find_missing(sample, expected);
    }
    tensors_.clear();
  }

  // Prints what was covered; true if nothing is wrong or missing.
  bool report() const {
    Count total;
    std::set<std::string> missing;
    for (const std::string& name : rules::RuleTable::instance().names()) {
      if (name.starts_with("aten::") && !counts_.contains(name) && options_.op.empty()) {
        missing.insert(name);
      }
    }
    for (const auto& [op, count] : counts_) {
      total.ran += count.ran;
      total.free += count.free;
      total.decomposed += count.decomposed;
      total.refused += count.refused;
      total.wrong += count.wrong;
      if (options_.is_full) {
        std::printf("%-60s %7ld ran, %6ld without a move, %6ld decomposed, %5ld refused, %4ld wrong\n", op.c_str(),
                    count.ran, count.free, count.decomposed, count.refused, count.wrong);
      }
      if (count.ran + count.decomposed == 0) {
        missing.insert(op);
      }
    }
    for (const std::string& name : missing) {
      std::printf("not audited: %s\n", name.c_str());
    }
    std::printf(
        "%zu operators, seed %lu: %ld layouts ran, %ld of them without a move, %ld decomposed, %ld in-place writes "
        "refused, %ld wrong, %zu operators not audited\n",
        counts_.size(), static_cast<unsigned long>(options_.seed), total.ran, total.free, total.decomposed,
        total.refused, total.wrong, missing.size());
    return total.wrong == 0 && missing.empty();
  }

 private:
  void run_mesh(const Sample& sample, const std::vector<at::Tensor>& expected,
                const std::vector<std::vector<Placement>>& options, const Mesh& mesh, Count& count) {
    double total = 1;
    for (const auto& option : options) {
      total *= std::pow(static_cast<double>(option.size()), static_cast<double>(mesh.ndim()));
    }
    const double limit = options_.is_full ? 400 : mesh.ndim() == 1 ? 12 : 4;
    const bool is_all = total <= limit;
    for (int64_t i = 0; i < static_cast<int64_t>(std::min(total, limit)); ++i) {
      uint64_t code = is_all ? static_cast<uint64_t>(i) : 0;
      std::vector<Spec> specs;
      for (size_t t = 0; t < options.size(); ++t) {
        Placements placements;
        for (int64_t axis = 0; axis < mesh.ndim(); ++axis) {
          const size_t size = options[t].size();
          placements.push_back(options[t][(is_all ? code : random_()) % size]);
          code /= size;
        }
        const at::Tensor& tensor = tensors_[t];
        placements = with_fitting_places(mesh, std::move(placements), tensor.sizes());
        if (!layout::is_layout_of(mesh, placements, tensor.sizes())) {
          placements.assign(mesh.ndim(), layout::Replicate());
        }
        specs.push_back(Spec::make(mesh, placements, tensor.sizes(), tensor.strides(), tensor.scalar_type()));
      }
      record(sample, outcome_of(sample, specs, expected), expected, count);
    }
  }

  // Some kernels read or write beyond the end of parts that do not fit each other: norms, and poolings that are given
  // the places of maxima.
  static bool is_safe(const Sample& sample) {
    const auto has = [&](const char* word) { return sample.op.find(word) != std::string::npos; };
    return sample.compare == Compare::kValues && !has("_norm") && !has("unpool") && !(has("pool") && has("backward"));
  }

  // Cuts of the operands under which the operator is right as it is, but its rule moves something.
  void find_missing(const Sample& sample, const std::vector<at::Tensor>& expected) {
    const Mesh& mesh = meshes_.front();
    int64_t total = 1;
    for (const at::Tensor& tensor : tensors_) {
      total *= tensor.dim() + 1;
    }
    constexpr int64_t limit = 4096;
    for (int64_t i = 0; i < std::min(total, limit) && is_safe(sample); ++i) {
      uint64_t code = total <= limit ? static_cast<uint64_t>(i) : random_() % static_cast<uint64_t>(total);
      std::vector<Spec> specs;
      std::string text;
      for (const at::Tensor& tensor : tensors_) {
        const auto choice = static_cast<int64_t>(code % (tensor.dim() + 1));
        code /= tensor.dim() + 1;
        const Placement placement = choice == 0 ? layout::Replicate() : layout::Shard(choice - 1);
        specs.push_back(Spec::make(mesh, {placement}, tensor.sizes(), tensor.strides(), tensor.scalar_type()));
        text += (text.empty() ? "" : " x ") + placement.str();
      }
      const Outcome outcome = outcome_of(sample, specs, expected);
      if (outcome.kind != Outcome::Kind::kRan || !outcome.moved) {
        continue;
      }
      if (const auto layouts = try_without_rule(sample.op, sample.args, specs, expected)) {
        if (missing_.insert(sample.op + " " + text + " -> " + *layouts).second) {
          std::printf("needs no move: %s %s -> %s\n", sample.op.c_str(), text.c_str(), layouts->c_str());
        }
      }
    }
  }

  static Outcome outcome_of(const Sample& sample, const std::vector<Spec>& specs,
                            const std::vector<at::Tensor>& expected) {
    try {
      return run_ranks(sample.op, sample.args, specs, expected, sample.compare);
    } catch (const std::exception& error) {
      return {.kind = Outcome::Kind::kWrong, .message = base::message_of(error)};
    }
  }

  void record(const Sample& sample, const Outcome& outcome, const std::vector<at::Tensor>& expected, Count& count) {
    std::optional<std::string> wrong;
    switch (outcome.kind) {
      case Outcome::Kind::kRan:
        ++count.ran;
        count.free += outcome.moved ? 0 : 1;
        return;
      case Outcome::Kind::kRefused: ++count.refused; return;
      case Outcome::Kind::kDecomposed:
        ++count.decomposed;
        if (!decomposed_.insert(&sample).second) {
          return;
        }
        wrong = difference(run_decomposition(sample.op, sample.args), expected, sample.compare);
        break;
      case Outcome::Kind::kWrong: wrong = outcome.message; break;
    }
    if (wrong) {
      ++count.wrong;
      if (count.wrong <= 3) {
        std::printf("WRONG %s: %s\n", sample.op.c_str(), wrong->c_str());
      }
    }
  }

  Options options_;
  std::mt19937_64 random_;
  std::vector<Mesh> meshes_;
  std::vector<at::Tensor> tensors_;
  std::map<std::string, Count> counts_;
  std::set<const Sample*> decomposed_;
  std::set<std::string> missing_;
};

}  // namespace

}  // namespace tessera::audit

// Warnings of libtorch about deprecated operators and outputs of other sizes.
class Silence : public c10::WarningHandler {
 public:
  void process(const c10::Warning&) override {}
};

int main(int argc, char** argv) {
  tessera::audit::Options options;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--full") == 0) {
      options.is_full = true;
    } else if (std::strcmp(argv[i], "--op") == 0 && i + 1 < argc) {
      options.op = argv[++i];
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      options.seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::fprintf(stderr, "audit [--full] [--op NAME] [--seed N]\n");
      return 2;
    }
  }
  Silence silence;
  const c10::WarningUtils::WarningHandlerGuard quiet(&silence);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  tessera::audit::Auditor auditor(options);
  const tessera::audit::Samples samples = tessera::audit::all_samples();
  for (const tessera::audit::Sample& sample : samples) {
    if (options.op.empty() || sample.op == options.op) {
      auditor.run(sample);
    }
  }
  return auditor.report() ? 0 : 1;
}
