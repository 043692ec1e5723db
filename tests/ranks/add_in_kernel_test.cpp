// Gradients of micro-batches that a product's kernel adds up: the bits of a product and an addition.

#include <torch/torch.h>

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include <ATen/record_function.h>

#include "tessera/tessera.h"

namespace tessera::add_in_kernel_test {
namespace {

constexpr int64_t kInner = 64, kMicroBatches = 4;

// As PyTorch's multiplies: C++'s transposes its weight first, and its gradient afterwards.
struct UpImpl : torch::nn::Module {
  UpImpl() {
    weight = register_parameter("weight", at::empty({kInner, 48}));
    bias = register_parameter("bias", at::empty({kInner}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias); }
  at::Tensor weight, bias;
};
TORCH_MODULE(Up);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(at::ScalarType dtype = at::kFloat) {
    up = register_module("up", Up());
    down = register_module("down", torch::nn::Linear(kInner, 32));
    const at::NoGradGuard no_grad;
    int64_t first = 0;
    for (at::Tensor& parameter : parameters()) {
      parameter.set_data(numbers(parameter.sizes(), first += 1000, dtype).mul(0.2));
    }
  }
  static at::Tensor numbers(c10::IntArrayRef sizes, int64_t first, at::ScalarType dtype) {
    const int64_t count = c10::multiply_integers(sizes);
    return at::arange(first, first + count, at::kDouble).mul(0.37).sin().reshape(sizes).to(dtype);
  }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return at::mse_loss(down(torch::gelu(up(x))), y); }
  Up up{nullptr};
  torch::nn::Linear down{nullptr};
};
TORCH_MODULE(Net);

struct Size {
  int64_t rows;  // of a micro-batch
  at::ScalarType dtype = at::kFloat;
  at::Tensor x() const { return NetImpl::numbers({rows * kMicroBatches, 48}, 7, dtype); }
  at::Tensor y() const { return NetImpl::numbers({rows * kMicroBatches, 32}, 70007, dtype); }
};

// As libtorch adds them up.
std::vector<at::Tensor> gradients_of_loop(const Size& size) {
  Net net(size.dtype);
  for (int64_t k = 0; k < kMicroBatches; ++k) {
    const auto rows = [&](const at::Tensor& of) { return of.narrow(0, k * size.rows, size.rows); };
    net(rows(size.x()), rows(size.y())).div(kMicroBatches).backward();
  }
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : net->parameters()) {
    gradients.push_back(parameter.grad());
  }
  return gradients;
}

// The same as steps of a job; the last one's. `between` is called on each rank before that.
std::vector<at::Tensor> gradients_of_job(
    const Size& size, const std::string& mesh_text, const std::string& schedule,
    const std::function<void()>& between = [] {}) {
  const Mesh mesh = Mesh::parse(mesh_text);
  std::vector<at::Tensor> gradients;
  run_ranks(mesh.size(), [&] {
    Net net(size.dtype);
    const Plan plan = generate_plan(*net, {.mesh = mesh, .schedule = schedule});
    place(*net, plan);
    Job job(net.ptr(), plan, [net](const std::vector<at::Tensor>& batch) mutable { return net(batch[0], batch[1]); },
            {.accumulate = kMicroBatches});
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      if (step == 1) {
        between();
      }
      job(size.x(), size.y()).backward();
    }
    std::vector<at::Tensor> whole;
    for (const at::Tensor& parameter : net->parameters()) {
      whole.push_back(full_tensor(parameter.grad()));
    }
    if (comm::RankContext::require().rank == 0) {
      gradients = whole;
    }
  });
  return gradients;
}

void expect_bits_of_loop(const Size& size, const std::string& mesh, const std::string& schedule) {
  SCOPED_TRACE(c10::str(size.rows, " rows of ", size.dtype, " on ", mesh, " ", schedule));
  std::vector<at::Tensor> expected;
  run_ranks(Mesh::parse(mesh).size(), [&] {  // on as many threads: the BLAS cuts long sums by them
    if (comm::RankContext::require().rank == 0) {
      expected = gradients_of_loop(size);
    }
  });
  const std::vector<at::Tensor> found = gradients_of_job(size, mesh, schedule);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], expected[i])) << "parameter " << i;
  }
}

// Where the kernel sums all rows at once, where it goes by blocks of them, and where it rounds more often.
const std::vector<Size> kSizes = {{1}, {2}, {32}, {300, at::kDouble}, {1024}, {32, at::kBFloat16}};

TEST(AddInKernel, HasTheBitsOfALoop) {
  for (const Size& size : kSizes) {
    expect_bits_of_loop(size, "1", "");
  }
}

TEST(AddInKernel, InSchedules) {
  for (const Size& size : kSizes) {
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1"}) {
      expect_bits_of_loop(size, "pp=2", schedule);
    }
  }
}

// Calls of one operator in a step of a job on one rank.
int64_t count_in_step(const Size& size, const char* op) {
  static std::atomic<int64_t> calls;
  static const char* counted;
  counted = op;
  at::CallbackHandle handle = 0;
  gradients_of_job(size, "1", "", [&] {
    calls = 0;
    handle = at::addGlobalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
                                     calls += std::string_view(call.name()) == counted;
                                     return std::unique_ptr<at::ObserverContext>();
                                   }).scopes({at::RecordScope::FUNCTION}));
  });
  at::removeCallback(handle);
  return calls;
}

TEST(AddInKernel, HappensAfterTheFirstMicroBatch) {
  // Whether the kernel adds with the bits of an addition was tried in the step before.
  EXPECT_EQ(count_in_step({32}, "aten::addmm_"), kMicroBatches - 1);
}

TEST(AddInKernel, IsNotTriedAgainInVain) { EXPECT_EQ(count_in_step({32, at::kBFloat16}, "aten::addmm_"), 0); }

}  // namespace
}  // namespace tessera::add_in_kernel_test
