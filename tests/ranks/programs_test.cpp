// Ranks that do not run one program, or of which one fails: every rank is told why, by name, and none hangs.
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::programs_test {
namespace {

const Mesh& mesh() {
  static const Mesh mesh = Mesh::parse("a=2,b=2");
  return mesh;
}

at::Tensor rows() { return distribute(waves({4, 6}), mesh(), "{a: S(0)}"); }

// Rank 3's program differs from `one`; everybody ends with a sum that all ranks need.
std::string parted(const std::function<void(const at::Tensor& x)>& one,
                   const std::function<void(const at::Tensor& x)>& other) {
  return failure_on(4, [&](int64_t rank) {
    const at::Tensor x = rows();
    (rank == 3 ? other : one)(x);
    full_tensor(x.sum());
  });
}

// The message names both operators, and ranks.
void expect_names(const std::string& error, const std::string& one, const std::string& other) {
  EXPECT_SAYS(error, one);
  EXPECT_SAYS(error, other);
  EXPECT_SAYS(error, "rank");
}

TEST(Programs, OneOperatorMore) {
  expect_names(parted([](const at::Tensor&) {}, [](const at::Tensor& x) { x.relu(); }), "aten::relu", "aten::sum");
  expect_names(parted([](const at::Tensor& x) { x.sin(); }, [](const at::Tensor&) {}), "aten::sin", "aten::sum");
}

TEST(Programs, AnotherOperator) {
  expect_names(parted([](const at::Tensor& x) { x.exp(); }, [](const at::Tensor& x) { x.sin(); }), "aten::exp",
               "aten::sin");
  expect_names(parted([](const at::Tensor& x) { x.add_(1); }, [](const at::Tensor& x) { x.mul_(1); }), "aten::add_",
               "aten::mul_");
}

TEST(Programs, AnotherOrder) {
  expect_names(parted([](const at::Tensor& x) { x.exp(), x.sin(); }, [](const at::Tensor& x) { x.sin(), x.exp(); }),
               "aten::exp", "aten::sin");
}

TEST(Programs, AnotherShape) {
  expect_names(
      parted([](const at::Tensor& x) { x.slice(1, 0, 3).exp(); }, [](const at::Tensor& x) { x.slice(1, 0, 4).exp(); }),
      "aten::slice", "aten::slice");
  EXPECT_NE(
      failure_on(
          4, [](int64_t rank) { full_tensor(distribute(waves({4, rank == 1 ? 5 : 6}), mesh(), "{a: S(0)}").sum()); }),
      "");
}

TEST(Programs, AnotherDistribution) {
  EXPECT_SAYS(parted([](const at::Tensor& x) { redistribute(x, "{a: S(0), b: S(1)}"); },
                     [](const at::Tensor& x) { redistribute(x, "{a: S(0), b: S(0)}"); }),
              "redistribute");
  EXPECT_SAYS(parted([](const at::Tensor& x) { redistribute(x, "{}"); }, [](const at::Tensor& x) { full_tensor(x); }),
              "full_tensor");
  EXPECT_NE(parted([](const at::Tensor&) {}, [](const at::Tensor& x) { redistribute(x, "{a: S(0), b: S(1)}"); }), "");
}

TEST(Programs, OneStepMore) {
  const std::string error = failure_on(4, [](int64_t rank) {
    const at::Tensor w = rows().requires_grad_();
    for (int step = 0; step < (rank == 0 ? 3 : 2); ++step) {
      w.square().sum().backward();
      at::NoGradGuard no_grad;
      w.add_(w.grad(), -0.1);
      full_tensor(w.sum());
    }
  });
  expect_names(error, "full_tensor", "finished");
}

TEST(Programs, NoBackwardOnOneRank) {
  const std::string error = failure_on(4, [](int64_t rank) {
    const at::Tensor x = rows().requires_grad_(), w = distribute(waves({6, 3}), mesh(), "{b: S(0)}").requires_grad_();
    const at::Tensor loss = at::mm(x, w).square().sum();
    if (rank != 2) {
      loss.backward();
    }
    full_tensor(loss);
  });
  EXPECT_SAYS(error, "rank");
  EXPECT_SAYS(error, "full_tensor");
}

TEST(Programs, ABranchOnOwnData) {
  const std::string error = failure_on(4, [](int64_t) {
    at::Tensor x = rows();
    if (to_local(x)[0][0].item<double>() > 0) {
      x = x * 2;
    }
    full_tensor(x);
  });
  EXPECT_SAYS(error, "aten::mul");
}

TEST(Programs, OneRankLeavesEarly) {
  EXPECT_SAYS(failure_on(4,
                         [](int64_t rank) {
                           if (rank != 1) {
                             full_tensor(rows());
                           }
                         }),
              "finished");
}

TEST(Programs, ThatAreOneAreNotAccused) {
  EXPECT_EQ(failure_on(4,
                       [](int64_t rank) {
                         const at::Tensor x = rows();
                         const double mine = to_local(x).sum().item<double>();
                         at::full({}, mine).exp();  // what ranks do with plain tensors is their own business
                         if (rank == 0) {
                           dtensor::to_string(x);  // and so is looking
                         }
                         x.mul(2.0 + 0 * mine).slice(0, 1, 3).add_(1);
                         full_tensor(x.sum());
                       }),
            "");
}

[[noreturn]] void fail() { throw std::runtime_error("the disk is full"); }

// A function whose gradient fails on rank 2.
class FailsInBackward : public torch::autograd::Function<FailsInBackward> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    if (comm::RankContext::require().rank == 2) {
      fail();
    }
    return {grads[0] * 2};
  }
};

void expect_failure_of_rank_2(const std::function<void(int64_t rank)>& body) {
  const std::string error = failure_on(4, body);
  EXPECT_SAYS(error, "rank 2: the disk is full");
}

TEST(Failures, InForward) {
  expect_failure_of_rank_2([](int64_t rank) {
    const at::Tensor x = rows();
    if (rank == 2) {
      fail();
    }
    full_tensor(x.sum());
  });
}

TEST(Failures, BeforeAnything) {
  expect_failure_of_rank_2([](int64_t rank) {
    if (rank == 2) {
      fail();
    }
    full_tensor(rows());
  });
}

TEST(Failures, InBackward) {
  expect_failure_of_rank_2([](int64_t) {
    const at::Tensor x = rows().requires_grad_(), w = distribute(waves({6, 3}), mesh(), "{b: S(0)}").requires_grad_();
    at::mm(FailsInBackward::apply(at::mm(x, w).exp()), w.t()).exp().sum().backward();
    full_tensor(x.grad());
    full_tensor(w.grad());
  });
}

TEST(Failures, InAHook) {
  expect_failure_of_rank_2([](int64_t rank) {
    const at::Tensor x = rows().requires_grad_(), w = distribute(waves({6, 3}), mesh(), "{b: S(0)}").requires_grad_();
    const at::Tensor y = at::mm(x, w);
    y.register_hook([rank](const at::Tensor&) {
      if (rank == 2) {
        fail();
      }
    });
    y.exp().sum().backward();
    full_tensor(x.grad());
    full_tensor(w.grad());
  });
}

TEST(Failures, InsideRecompute) {
  expect_failure_of_rank_2([](int64_t rank) {
    const at::Tensor x = rows().requires_grad_();
    int runs = 0;
    dtensor::recompute(
        [&](const std::vector<at::Tensor>& in) {
          if (++runs == 2 && rank == 2) {
            fail();
          }
          return in[0].exp();
        },
        {x})
        .sum()
        .backward();
    full_tensor(x.grad().sum());
  });
}

TEST(Failures, OfOneRankLetANewJobRun) {
  for (int i = 0; i < 3; ++i) {
    expect_failure_of_rank_2([](int64_t rank) {
      full_tensor(rows());
      if (rank == 2) {
        fail();
      }
      full_tensor(rows());
    });
    EXPECT_EQ(failure_on(4, [](int64_t) { EXPECT_LE(error_of(full_tensor(rows()), waves({4, 6})), 0); }), "");
  }
}

TEST(Failures, ThatEveryRankCatchesLeaveThemInStep) {
  EXPECT_EQ(failure_on(4,
                       [](int64_t) {
                         const at::Tensor x = rows();
                         EXPECT_ANY_THROW(at::cholesky(x));
                         EXPECT_ANY_THROW(at::mm(x, x));
                         EXPECT_ANY_THROW(redistribute(x, "{c: R}"));
                         EXPECT_ANY_THROW(x.select(0, 1).expand({3, 6}).add_(1));
                         EXPECT_LE(error_of(full_tensor(x.sum()), waves({4, 6}).sum()), 1e-14);
                       }),
            "");
}

}  // namespace
}  // namespace tessera::ranks::programs_test
