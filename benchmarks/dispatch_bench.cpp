// What a cached operator on DTensors costs over the same operator on tensors of the local size.
//
// bench_dispatch [cuda]          times, of tensors on the CPU or on the GPU
// bench_dispatch --instructions  (under callgrind, by tools/bench_instructions.py) writes the instructions of each case
//                                to a dump named after it

#include <functional>
#include <string_view>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "benchmarks/instructions.h"
#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/front/registry.h"
#include "tessera/dtensor/plan/plan_cache.h"

namespace tessera::benchmarks {
namespace {

constexpr int64_t kCalls = 100;
constexpr int kRepeats = 400;

// x is cut by rows, w by columns, so that x @ w needs no communication; every local part is 4x4 (norm_*: 4).
struct Operands {
  at::Tensor x, y, w, square, norm_weight, norm_bias;
};

struct Case {
  const char* name;
  bool with_grad;
  std::function<void(const Operands&)> body;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (bool with_grad : {false, true}) {
    all.push_back({"add", with_grad, [](const Operands& o) { at::add(o.x, o.y); }});
    all.push_back({"mm", with_grad, [](const Operands& o) { at::mm(o.x, o.w); }});
    all.push_back({"view", with_grad, [](const Operands& o) { o.x.view({-1, 2, 2}); }});
    all.push_back({"sum", with_grad, [](const Operands& o) { at::sum(o.x); }});
    all.push_back({"mul by a number", with_grad, [](const Operands& o) { at::mul(o.x, 2.0); }});
    all.push_back({"detach", with_grad, [](const Operands& o) { o.x.detach(); }});
    all.push_back({"linear", with_grad, [](const Operands& o) { at::linear(o.x, o.square); }});
    all.push_back(
        {"layer_norm", with_grad, [](const Operands& o) { at::layer_norm(o.x, {4}, o.norm_weight, o.norm_bias); }});
  }
  all.push_back({"linear, backward", true, [](const Operands& o) {
                   const at::Tensor y = at::linear(o.x, o.square);
                   torch::autograd::grad({y}, {o.x, o.square}, {y.detach()});
                 }});
  all.push_back({"add_", false, [](const Operands& o) { at::Tensor(o.x).add_(o.y); }});
  return all;
}

Operands plain_operands(at::Device device, bool with_grad) {
  const auto ones = [&](at::IntArrayRef sizes) { return at::ones(sizes, device).requires_grad_(with_grad); };
  return {ones({4, 4}), ones({4, 4}), ones({4, 4}), ones({4, 4}), ones({4}), ones({4})};
}

Operands distributed_operands(const layout::Mesh& mesh, at::Device device, bool with_grad) {
  const bool flat = mesh.ndim() == 1;
  const char* rows = flat ? "{tp: S(0)}" : "{dp: S(0)}";
  const char* columns = flat ? "{}" : "{tp: S(1)}";
  const auto make = [&](at::IntArrayRef sizes, const char* placements) {
    return dtensor::distribute(at::ones(sizes, device), mesh, placements).requires_grad_(with_grad);
  };
  return {make({8, 4}, rows), make({8, 4}, rows), make({4, flat ? 4 : 8}, columns),
          make({4, 4}, "{}"), make({4}, "{}"),    make({4}, "{}")};
}

// Waits until the device has done what it was given, so that its queue never is what a call waits for.
void finish(const at::Tensor& any) {
  if (!any.is_cpu()) {
    any.flatten()[0].item();
  }
}

void time_mesh(const layout::Mesh& mesh, at::Device device, const std::vector<Case>& all) {
  print_header(mesh.str() + " on " + device.str(), {"plain us", "DTensor us", "extra us"});
  std::vector<Least> plain(all.size()), distributed(all.size());
  for (int repeat = 0; repeat < kRepeats; ++repeat) {
    for (bool with_grad : {false, true}) {
      const at::AutoGradMode mode(with_grad);
      const Operands operands = plain_operands(device, with_grad);
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i].with_grad == with_grad) {
          plain[i].add(microseconds(kCalls, [&] { all[i].body(operands); }));
          finish(operands.x);
        }
      }
      comm::run_fake(mesh.size(), 0, [&] {
        const Operands operands = distributed_operands(mesh, device, with_grad);
        for (size_t i = 0; i < all.size(); ++i) {
          if (all[i].with_grad != with_grad) {
            continue;
          }
          all[i].body(operands);
          distributed[i].add(microseconds(kCalls, [&] { all[i].body(operands); }));
          finish(dtensor::to_local(operands.x));
        }
      });
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    print_row(std::string(all[i].name) + (all[i].with_grad ? ", grad" : ""),
              {plain[i].value(), distributed[i].value(), distributed[i].value() - plain[i].value()});
  }
}

// Of operands on a stage, on a rank of that stage or of another one, where nothing runs.
void time_stage(const char* name, const char* placements, const std::vector<Case>& all) {
  print_header(name, {"fast us", "exact us"});
  std::vector<Least> fast(all.size()), exact(all.size());
  const layout::Mesh mesh = layout::Mesh::parse("pp=2");
  for (const bool is_exact : {false, true}) {
    for (const bool with_grad : {false, true}) {
      const at::AutoGradMode mode(with_grad);
      comm::run_fake(mesh.size(), 0, [&] {
        if (is_exact) {
          dtensor::set_numerics(dtensor::Numerics::kExact);
        }
        const auto make = [&](at::IntArrayRef sizes) {
          return dtensor::distribute(at::ones(sizes), mesh, placements).requires_grad_(with_grad);
        };
        const Operands operands = {make({4, 4}), make({4, 4}), make({4, 4}), make({4, 4}), make({4}), make({4})};
        for (int repeat = 0; repeat < kRepeats; ++repeat) {
          for (size_t i = 0; i < all.size(); ++i) {
            if (all[i].with_grad == with_grad) {
              (is_exact ? exact : fast)[i].add(microseconds(kCalls, [&] { all[i].body(operands); }));
            }
          }
        }
      });
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    print_row(std::string(all[i].name) + (all[i].with_grad ? ", grad" : ""), {fast[i].value(), exact[i].value()});
  }
}

// A plan is kept once as many others were made as a program of some layers has (Note [Plans that do not come back]).
void make_other_plans(const Operands& operands) {
  for (int64_t i = 1; i <= 2 * static_cast<int64_t>(dtensor::PlanCache::kYoung); ++i) {
    at::unsqueeze(operands.x, 0).expand({i, -1, -1});
  }
}

// The instructions of kCalls calls, in a dump named `kind/case`.
void count(const std::string& kind, const Case& one, const Operands& operands) {
  for (int i = 0; i < 3; ++i) {
    one.body(operands);
    make_other_plans(operands);
  }
  count_instructions(kind + "/" + one.name + (one.with_grad ? ", grad" : ""), kCalls, [&] { one.body(operands); });
}

void count_all(const std::vector<layout::Mesh>& meshes, const std::vector<Case>& all) {
  std::printf("calls %ld\n", static_cast<long>(kCalls));
  for (const Case& one : all) {
    const at::AutoGradMode mode(one.with_grad);
    count("plain", one, plain_operands(at::kCPU, one.with_grad));
    for (const layout::Mesh& mesh : meshes) {
      comm::run_fake(mesh.size(), 0,
                     [&] { count(mesh.str(), one, distributed_operands(mesh, at::kCPU, one.with_grad)); });
    }
  }
}

int run(std::string_view what) {
  dtensor::ensure_registered();
  at::set_num_threads(1);
  const std::vector<layout::Mesh> meshes = {layout::Mesh::parse("tp=2"), layout::Mesh::parse("dp=2,tp=2")};
  if (what == "--instructions") {
    count_all(meshes, cases());
    return 0;
  }
  for (const layout::Mesh& mesh : meshes) {
    time_mesh(mesh, what == "cuda" ? at::kCUDA : at::kCPU, cases());
  }
  time_stage("pp=2, own stage", "{pp: On(0)}", cases());
  time_stage("pp=2, other stage", "{pp: On(1)}", cases());
  return 0;
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) { return tessera::benchmarks::run(argc > 1 ? argv[1] : ""); }
