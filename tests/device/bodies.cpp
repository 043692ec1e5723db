// What the ranks of these tests run. All have the one GPU that is here.
#include "tests/launch/bodies.h"

#include <algorithm>
#include <cstdlib>

#include <ATen/cuda/Sleep.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/ones.h>

#include "tessera/base/error.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/layout/mesh.h"
#include "tests/unit/comm/collective_cases.h"
#include "tests/unit/comm/support.h"

namespace tessera::launch {
namespace {

using comm::Outcomes;
using comm::ReduceOp;
using comm::Sample;
using comm::Tensors;
using comm::world;

const at::Device kGpu(at::kCUDA, 0);

// NCCL refuses two ranks with one GPU, unless it takes them for two hosts.
void be_a_host(int64_t rank) {
  ::setenv("NCCL_HOSTID", ("host" + std::to_string(rank)).c_str(), 1);
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  ::setenv("NCCL_IB_DISABLE", "1", 1);
  ::setenv("NCCL_DEBUG", "WARN", 1);
}

// NCCL's sums begin with a member of its choice. Of three values that is all the freedom there is.
std::function<at::Tensor(Tensors, ReduceOp, bool)> beginning_with(size_t first) {
  return [first](Tensors values, ReduceOp op, bool is_even) {
    const auto dtype = values[0].scalar_type();
    const bool is_sum = op == ReduceOp::kSum || op == ReduceOp::kAvg;
    const bool is_real = dtype == at::kFloat || dtype == at::kDouble;
    if (is_even && ((is_real && (is_sum || op == ReduceOp::kProd)) || (at::isComplexType(dtype) && is_sum))) {
      std::rotate(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(first), values.end());
    }
    return comm::combined(values, op);
  };
}

// Each element is, bit for bit, that of one of the orders.
void verify(const comm::CollectiveCase& each, Sample sample, std::ostream& out) {
  sample.device = kGpu;
  std::vector<Outcomes> orders;
  for (size_t first = 0; first < static_cast<size_t>(world().size()); ++first) {
    sample.combine = beginning_with(first);
    orders.push_back(each.run(world(), sample));
  }
  for (size_t i = 0; i < orders[0].size(); ++i) {
    const auto& outcome = orders[0][i];
    const auto what = comm::describe(each, world(), sample, outcome);
    TESSERA_CHECK(
        outcome.got.sizes() == outcome.expected.sizes() && outcome.got.scalar_type() == outcome.expected.scalar_type(),
        what, " has another shape");
    at::Tensor is_right = outcome.got.eq(outcome.expected);
    for (const auto& order : orders) {
      is_right = is_right.logical_or(outcome.got.eq(order[i].expected));
    }
    TESSERA_CHECK(is_right.all().item<bool>(), what,
                  " is not what the table says: ", is_right.logical_not().sum().item<int64_t>(), " of ",
                  is_right.numel(), " elements differ");
    out << what << "\n";
  }
}

void table(int64_t rank, std::ostream& out) {
  be_a_host(rank);
  for (const auto& each : comm::collective_cases()) {
    const auto sizes = each.depends_on_sample ? std::vector<int64_t>{0, 1, 3, 1031, 40013} : std::vector<int64_t>{1031};
    for (const auto size : sizes) {
      for (const auto dtype : each.depends_on_sample ? comm::collective_types() : std::vector{at::kFloat}) {
        verify(each, {.size = size, .dtype = dtype, .combine = {}}, out);
      }
    }
  }
}

// Until a rank is killed.
void circle(int64_t rank, std::ostream& out) {
  be_a_host(rank);
  for (int64_t i = 0;; ++i) {
    const auto tensor = at::ones({1000}, kGpu);
    world().all_reduce(tensor, ReduceOp::kSum)->wait();
    TESSERA_CHECK(tensor.sum().item<float>() == 1000.0f * static_cast<float>(world().size()), "round ", i);
    out << (i == 3 ? "started\n" : "") << std::flush;
  }
}

// The last rank's device is busy for longer than the deadline; its host is not.
void busy(int64_t rank, std::ostream&) {
  be_a_host(rank);
  const auto reduce = [] {
    const auto tensor = at::ones({1000}, kGpu);
    world().all_reduce(tensor, ReduceOp::kSum)->wait();
    return tensor.sum().item<float>();
  };
  reduce();
  if (rank + 1 == world().size()) {
    at::cuda::sleep(int64_t{40} * 1000 * 1000 * 1000);
  }
  reduce();
  world().barrier();
}

// The last rank reduces more than the others.
void divergent(int64_t rank, std::ostream&) {
  be_a_host(rank);
  for (const int64_t size : {8, 8, rank + 1 == world().size() ? 9 : 8}) {
    world().all_reduce(at::ones({size}, kGpu), ReduceOp::kSum)->wait();
  }
}

at::Tensor whole(uint64_t key, at::IntArrayRef sizes) {
  return comm::values_of(key, sizes, at::kDouble).to(kGpu).requires_grad_(true);
}

// Two layers cut by columns and then by rows, forward and backward: the numbers of the whole tensors.
void layers(int64_t rank, std::ostream& out) {
  be_a_host(rank);
  const auto loss_of = [](const at::Tensor& x, const at::Tensor& up, const at::Tensor& down) {
    return at::linear(at::gelu(at::linear(x, up)), down).pow(2).mean();
  };
  const auto x = whole(1, {12, 16}), up = whole(2, {24, 16}), down = whole(3, {8, 24});
  const auto loss = loss_of(x, up, down);
  loss.backward();

  const auto mesh = layout::Mesh::parse("tp=" + std::to_string(world().size()));
  const auto put = [&](const at::Tensor& tensor, const char* placements) {
    return dtensor::distribute(tensor.detach(), mesh, placements).requires_grad_(true);
  };
  const auto placed_x = put(x, "{}"), placed_up = put(up, "{tp: S(0)}"), placed_down = put(down, "{tp: S(1)}");
  const auto placed_loss = loss_of(placed_x, placed_up, placed_down);
  TESSERA_CHECK(placed_loss.device() == kGpu, "the loss lies on ", placed_loss.device());
  placed_loss.backward();
  const auto verify_one = [&](const char* what, const at::Tensor& placed, const at::Tensor& plain) {
    const at::Tensor got = dtensor::full_tensor(placed);
    TESSERA_CHECK(got.device() == kGpu, what, " lies on ", got.device());
    TESSERA_CHECK(at::allclose(got, plain, 1e-12, 1e-12), what, " is ", (got - plain).abs().max().item<double>(),
                  " away from plain libtorch");
    out << what << "\n";
  };
  verify_one("loss", placed_loss.detach(), loss.detach());
  verify_one("gradient of x", placed_x.grad(), x.grad());
  verify_one("gradient of up", placed_up.grad(), up.grad());
  verify_one("gradient of down", placed_down.grad(), down.grad());
}

}  // namespace

const std::map<std::string, Body>& bodies() {
  static const std::map<std::string, Body> all = {
      {"table", table}, {"circle", circle}, {"busy", busy}, {"divergent", divergent}, {"layers", layers}};
  return all;
}

}  // namespace tessera::launch
