// The public calls on DTensors: made, read, printed, copied; what is cached, what is merged, and what each misuse says.
#include <torch/torch.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::api_test {
namespace {

using layout::Partial;
using layout::Replicate;
using layout::Shard;

const Mesh& pair() {
  static const Mesh mesh = Mesh::parse("a=2");
  return mesh;
}

const Mesh& square() {
  static const Mesh mesh = Mesh::parse("a=2,b=2");
  return mesh;
}

comm::RankContext& context() { return comm::RankContext::require(); }

TEST(Make, DistributeKeepsThisRanksPart) {
  const at::Tensor value = integers({5, 4});
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const at::Tensor x = distribute(value, square(), placements);
      EXPECT_EQ(x.sizes(), value.sizes());
      EXPECT_EQ(x.strides(), value.strides());
      EXPECT_EQ(x.dtype(), value.dtype());
      EXPECT_TRUE(x.is_contiguous());
      EXPECT_FALSE(x.requires_grad());
      EXPECT_EQ(to_local(x).sizes(), c10::IntArrayRef(spec_of(x).local_sizes(context().coord(square()))));
      EXPECT_TRUE(at::equal(full_tensor(x), value));
    }
    EXPECT_TRUE(distribute(value.clone().requires_grad_(), square(), "{a: S(0)}").requires_grad());
    EXPECT_TRUE(distribute(value, square(), "{a: S(0)}").is_leaf());
  });
}

TEST(Make, DistributeDoesNotShareMemory) {
  run_on(pair(), [&](int64_t) {
    for (const char* placements : {"{a: R}", "{a: S(0)}", "{a: P(max)}", "{a: P}"}) {
      const at::Tensor value = integers({4, 4}), x = distribute(value, pair(), placements);
      value.fill_(100);
      EXPECT_TRUE(at::equal(full_tensor(x), integers({4, 4}))) << placements;
    }
  });
}

TEST(Make, FromLocalJoinsParts) {
  run_on(pair(), [&](int64_t rank) {
    const at::Tensor part = at::full({2, 3}, rank + 1, at::kDouble);
    EXPECT_EQ(from_local(part, pair(), {Shard(0)}).sizes(), c10::IntArrayRef({4, 3}));
    EXPECT_EQ(from_local(part, pair(), {Shard(1)}).sizes(), c10::IntArrayRef({2, 6}));
    EXPECT_TRUE(at::equal(full_tensor(from_local(part, pair(), {Partial()})), at::full({2, 3}, 3, at::kDouble)));
    EXPECT_TRUE(at::equal(full_tensor(from_local(part, pair(), {Partial(ReduceOp::kAvg)})),
                          at::full({2, 3}, 1.5, at::kDouble)));
    const at::Tensor uneven = at::full({rank == 0 ? 3 : 2, 2}, rank, at::kDouble);
    EXPECT_TRUE(at::equal(full_tensor(from_local(uneven, pair(), {Shard(0)}, Sizes{5, 2})).select(1, 0),
                          at::tensor({0., 0., 0., 1., 1.}, at::kDouble)));
    EXPECT_TRUE(from_local(part.clone().requires_grad_(), pair(), {Shard(0)}).requires_grad());
  });
}

TEST(Make, FromLocalOfAStridedPartIsRight) {
  run_on(pair(), [&](int64_t rank) {
    const at::Tensor part = integers({3, 4}).add(rank).t();
    const at::Tensor x = from_local(part, pair(), {Shard(0)});
    const at::Tensor whole = at::cat({integers({3, 4}).t(), integers({3, 4}).add(1).t()});
    EXPECT_TRUE(at::equal(full_tensor(x), whole));
    EXPECT_TRUE(at::equal(full_tensor(x.view({-1})), whole.reshape({-1})));
    x.view({-1}).add_(1);
    EXPECT_TRUE(at::equal(full_tensor(x), whole + 1));
  });
}

TEST(Make, WrongPartsAreRefused) {
  EXPECT_SAYS(
      failure_on(2,
                 [](int64_t rank) { from_local(at::zeros({rank == 0 ? 3 : 2, 2}), pair(), {Shard(0)}, Sizes{6, 2}); }),
      "pass the global sizes if the parts differ");
  EXPECT_SAYS(failure_on(2, [](int64_t) { from_local(at::zeros({2}), pair(), {Shard(1)}); }), "S(1)");
  EXPECT_SAYS(
      failure_on(2, [](int64_t) { full_tensor(from_local(at::zeros({2}), square(), {Shard(0), Replicate()})); }),
      "rank");
  EXPECT_SAYS(failure_on(2, [](int64_t) { from_local(at::zeros({2}), pair(), {Shard(0), Replicate()}); }),
              "placements");
  EXPECT_SAYS(
      failure_on(2, [](int64_t) { distribute(distribute(at::zeros({2}), pair(), "{a: R}"), pair(), "{a: R}"); }),
      "redistribute");
  EXPECT_SAYS(failure_on(2, [](int64_t) { distribute(at::zeros({2}), pair(), "{b: R}"); }), "no axis \"b\"");
  EXPECT_SAYS(failure_on(2, [](int64_t) { distribute(at::Tensor(), pair(), "{a: R}"); }), "undefined");
  EXPECT_SAYS(failure_on(2, [](int64_t) { to_local(at::zeros({2})); }), "expected a DTensor");
  EXPECT_SAYS(failure_on(2, [](int64_t) { spec_of(at::Tensor()); }), "expected a DTensor");
}

TEST(Make, UnevenPartsWithoutSizesAreToldByTheNextCollective) {
  const auto attempt = [](const char* placements, const std::function<void(const at::Tensor&)>& next) {
    return failure_on(2, [&](int64_t rank) {
      next(from_local(at::ones({rank == 0 ? 3 : 2, 2}), pair(), layout::parse_placements(pair(), placements)));
      full_tensor(distribute(at::ones({2}), pair(), "{a: P}"));
    });
  };
  const std::vector<std::function<void(const at::Tensor&)>> calls = {
      [](const at::Tensor&) {},
      [](const at::Tensor& x) { x.mul(2); },
      [](const at::Tensor& x) { x.sum().item(); },
      [](const at::Tensor& x) { full_tensor(x); },
      [](const at::Tensor& x) { redistribute(x, {Replicate()}); },
  };
  for (const char* placements : {"{a: S(0)}", "{a: R}", "{a: P}"}) {
    for (const auto& call : calls) {
      EXPECT_SAYS(attempt(placements, call), "ran from_local, rank 1 ran from_local with other shapes");
    }
    EXPECT_SAYS(attempt(placements, [](const at::Tensor& x) { x.size(0) == 3 ? x.relu() : x.exp(); }),
                "ran from_local with other shapes");
  }
}

TEST(Read, ToLocalIsDifferentiable) {
  const at::Tensor value = integers({4, 6}), weights = integers({4, 6}).mul(2);
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const at::Tensor x = spread(value, square(), placements).requires_grad_();
      const at::Tensor local = to_local(x * 1);
      EXPECT_TRUE(local.requires_grad());
      const auto ranges = spec_of(x).local_ranges(context().coord(square()));
      const at::Tensor mine =
          weights.narrow(0, ranges[0].begin, ranges[0].size()).narrow(1, ranges[1].begin, ranges[1].size());
      (local * mine).sum().backward();
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), weights)) << layout::str(square(), placements);
    }
  });
}

TEST(Read, FullTensorIsDifferentiable) {
  const at::Tensor value = integers({4, 6}), weights = integers({4, 6}).mul(2);
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const at::Tensor x = spread(value, square(), placements).requires_grad_();
      (full_tensor(x) * weights).sum().backward();
      EXPECT_TRUE(at::equal(full_tensor(x.grad()), weights)) << layout::str(square(), placements);
    }
    const at::Tensor plain = integers({2});
    EXPECT_TRUE(full_tensor(plain).is_same(plain));
  });
}

TEST(Read, ItemIsTheValueOnEveryRank) {
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 0)) {
      EXPECT_EQ(spread(at::full({}, 7, at::kDouble), square(), placements).item<double>(), 7);
    }
    for (const Placements& placements : plain_layouts(square(), 2)) {
      EXPECT_EQ(spread(at::full({1, 1}, 7, at::kDouble), square(), placements).item<double>(), 7);
      EXPECT_EQ(spread(integers({3, 4}), square(), placements)[2][1].item<double>(),
                integers({3, 4})[2][1].item<double>());
      EXPECT_TRUE(
          at::equal(spread(integers({3, 4}), square(), placements), distribute(integers({3, 4}), square(), "{}")));
      EXPECT_TRUE(spread(at::ones({1, 1}), square(), placements).is_nonzero());
    }
  });
  EXPECT_SAYS(failure_on(2, [](int64_t) { distribute(at::zeros({4}), pair(), "{a: S(0)}").item(); }), "4 elements");
}

TEST(Read, PrintingNamesLayoutAndPart) {
  run_on(pair(), [&](int64_t rank) {
    const std::string text = dtensor::to_string(distribute(integers({4, 2}, at::kFloat), pair(), "{a: S(0)}"));
    EXPECT_NE(text.find("DTensor float32[4, 2] {a: S(0)} on a=2, rank " + std::to_string(rank) + "'s part:"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find(rank == 0 ? "-9" : "-4"), std::string::npos) << text;
  });
}

TEST(Copy, IsIndependentAndKeepsEverything) {
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      at::Tensor x = spread(integers({3, 4}), square(), placements).requires_grad_();
      (x * 2).sum().backward();
      const at::Tensor copy = dtensor::deep_copy(x);
      EXPECT_TRUE(copy.requires_grad() && copy.is_leaf());
      EXPECT_EQ(spec_of(copy), spec_of(x));
      EXPECT_TRUE(at::equal(full_tensor(copy.grad()), full_tensor(x.grad())));
      at::NoGradGuard no_grad;
      x.mul_(5);
      x.mutable_grad().zero_();
      EXPECT_TRUE(at::equal(full_tensor(copy), integers({3, 4})));
      EXPECT_TRUE(at::equal(full_tensor(copy.grad()), at::full({3, 4}, 2, at::kDouble)));
    }
  });
}

TEST(Plain, OperandsCountAsReplicated) {
  const at::Tensor value = integers({3, 4}), other = integers({3, 4}).add(1);
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const at::Tensor x = spread(value, square(), placements);
      EXPECT_TRUE(at::equal(full_tensor(x + other), value + other));
      EXPECT_TRUE(at::equal(full_tensor(other * x), value * other));
      EXPECT_TRUE(at::equal(full_tensor(at::mm(x, other.t())), at::mm(value, other.t())));
      EXPECT_TRUE(at::equal(full_tensor(at::cat({other, x})), at::cat({other, value})));
      EXPECT_TRUE(at::equal(full_tensor(at::where(other > 0, x, other)), at::where(other > 0, value, other)));
    }
  });
}

// The strides of a plain operand are part of what a call is.
TEST(Plain, OperandsOfOtherStridesMakeOtherResults) {
  run_on(pair(), [&](int64_t) {
    const at::Tensor x = distribute(integers({3, 4}), pair(), "{a: S(1)}");
    const at::Tensor turned = integers({4, 3}).t(), straight = turned.contiguous();
    EXPECT_EQ((turned + x).strides(), (turned + integers({3, 4})).strides());
    EXPECT_EQ((straight + x).strides(), (straight + integers({3, 4})).strides());
    EXPECT_EQ((turned + x).strides(), (turned + integers({3, 4})).strides());
  });
}

TEST(Plain, CheckModeFindsTheRankThatDiffers) {
  const std::string error = failure_on(4, [](int64_t rank) {
    dtensor::set_check_plain(true);
    const at::Tensor x = distribute(integers({3, 4}), square(), "{a: S(0)}");
    x.add(at::ones({3, 4}, at::kDouble)).add(2.0);
    x.mul(at::full({3, 4}, rank == 2 ? 1 : 2, at::kDouble));
  });
  EXPECT_SAYS(error, "aten::mul.Tensor");
  EXPECT_SAYS(error, "rank 2");
  EXPECT_SAYS(error, "every rank must compute the same value");
}

TEST(Modes, ExplicitShowsTheLineToWrite) {
  const auto body = [](dtensor::Mode mode, bool cached) {
    return failure_on(2, [=](int64_t) {
      const at::Tensor x = distribute(integers({4, 4}), pair(), "{a: S(0)}"),
                       y = distribute(integers({4, 4}), pair(), "{a: S(1)}");
      if (cached) {
        x.add(y);
      }
      dtensor::ModeScope scope(mode);
      x.add(dtensor::redistribute(y, "{a: S(0)}"));
      x.add(y);
    });
  };
  for (bool cached : {false, true}) {
    const std::string error = body(dtensor::Mode::kExplicit, cached);
    EXPECT_SAYS(error, "[add.Tensor {a: S(0)} x {a: S(1)}]");
    EXPECT_SAYS(error, "= tessera::redistribute(");
    EXPECT_SAYS(error, "{a: S(1)}");
    EXPECT_EQ(body(dtensor::Mode::kWarn, cached), "");
    EXPECT_EQ(body(dtensor::Mode::kImplicit, cached), "");
  }
}

TEST(Modes, ExplicitCoversReadingAPartial) {
  EXPECT_SAYS(
      failure_on(2,
                 [](int64_t) {
                   const at::Tensor sum = distribute(integers({4, 4}), pair(), "{a: S(0)}").sum(), other = sum * 2;
                   dtensor::ModeScope scope(dtensor::Mode::kExplicit);
                   EXPECT_EQ(dtensor::redistribute(sum, "{a: R}").item<double>(),
                             integers({4, 4}).sum().item<double>());
                   EXPECT_EQ(sum.item<double>(), integers({4, 4}).sum().item<double>());  // merged where it stands
                   other.item();
                 }),
      "tessera::redistribute(");
}

TEST(Modes, ScopesNestAndEnd) {
  run_on(pair(), [](int64_t) {
    const at::Tensor x = distribute(integers({4, 4}), pair(), "{a: S(0)}"),
                     y = distribute(integers({4, 4}), pair(), "{a: S(1)}");
    dtensor::ModeScope strict(dtensor::Mode::kExplicit);
    {
      dtensor::ModeScope lenient(dtensor::Mode::kImplicit);
      EXPECT_NO_THROW(x.add(y));
    }
    EXPECT_ANY_THROW(x.add(y));
  });
}

TEST(Cost, APartialIsMergedOnce) {
  run_on(pair(), [](int64_t) {
    const at::Tensor x = distribute(integers({4, 6}), pair(), "{a: S(1)}"),
                     w = distribute(integers({6, 4}), pair(), "{a: S(0)}");
    const at::Tensor product = at::mm(x, w), alias = product.detach();
    ASSERT_TRUE(spec_of(product)->has_partial);
    context().ledger.clear();
    const at::Tensor a = product.exp(), b = product.sin(), c = at::relu(product), d = alias.cos(),
                     e = product.mul(product);
    EXPECT_EQ(context().ledger.calls_of("all_reduce", "a") + context().ledger.calls_of("reduce_scatter", "a"), 1);
    full_tensor(product);
    full_tensor(alias);
    EXPECT_EQ(context().ledger.calls_of("all_reduce", "a") + context().ledger.calls_of("reduce_scatter", "a"), 1);
    EXPECT_TRUE(at::equal(full_tensor(e), at::mm(integers({4, 6}), integers({6, 4})).square()));
  });
}

TEST(Cost, LinearOperatorsKeepAPartial) {
  run_on(pair(), [](int64_t) {
    const at::Tensor x = distribute(integers({4, 6}), pair(), "{a: S(1)}");
    context().ledger.clear();
    const at::Tensor sum = (x.sum(1) * 2 + x.sum(1)).neg().sum();
    EXPECT_EQ(context().ledger.total_bytes(), 0);
    EXPECT_EQ(sum.item<double>(), -3 * integers({4, 6}).sum().item<double>());
    EXPECT_GT(context().ledger.total_bytes(), 0);
  });
}

TEST(Cost, OneOperandInTwoRolesOfACall) {
  const at::Tensor value = integers({4, 4});
  run_on(square(), [&](int64_t) {
    for (const Placements& placements : plain_layouts(square(), 2)) {
      const auto x = [&] { return spread(value, square(), placements); };
      const at::Tensor a = x(), b = x(), c = x();
      EXPECT_TRUE(at::equal(full_tensor(at::mm(a, a)), at::mm(value, value))) << layout::str(square(), placements);
      EXPECT_TRUE(at::equal(full_tensor(b * b.t()), value * value.t())) << layout::str(square(), placements);
      EXPECT_TRUE(at::equal(full_tensor(at::cat({c, c.detach(), c}, 1)), at::cat({value, value, value}, 1)));
      EXPECT_TRUE(at::equal(full_tensor(at::addcmul(c, c, c)), at::addcmul(value, value, value)));
    }
  });
}

// A gathered copy serves later readers until anything writes to the tensor, by whatever way.
TEST(Cost, AGatheredCopyIsShared) {
  struct Write {
    const char* line;
    std::function<void()> run;
  };
  const auto gathers = [] { return context().ledger.calls_of("all_gather", "a"); };
  run_on(pair(), [&](int64_t rank) {
    const at::Tensor w = distribute(integers({8}), pair(), "{a: S(0)}").requires_grad_();
    const std::vector<Write> writes = {
        {"w.add_(1)", [&] { w.add_(1); }},
        {"w.data().add_(1)", [&] { w.data().add_(1); }},
        {"w.detach().mul_(2)", [&] { w.detach().mul_(2); }},
        {"w.view({2, 4}).add_(1)", [&] { w.view({2, 4}).add_(1); }},
        {"w.data().view({2, 4}).t().add_(1)", [&] { w.data().view({2, 4}).t().add_(1); }},
        {"w.data().slice(0, 1, 3).add_(1)", [&] { w.data().slice(0, 1, 3).add_(1); }},
        {"w.narrow(0, 2, 1).fill_(3)", [&] { w.narrow(0, 2, 1).fill_(3); }},
        {"to_local(w).add_(1)", [&] { to_local(w).add_(1); }},
        {"the part of w, detached, .add_(1)", [&] { dtensor::meta_of(w)->local.detach().add_(1); }},
        {"w.set_data(another)", [&] { w.set_data(distribute(integers({8}).mul(3), pair(), "{a: S(0)}")); }},
    };
    for (const Write& write : writes) {
      SCOPED_TRACE(c10::str("rank ", rank, ", ", write.line));
      at::NoGradGuard no_grad;
      const int64_t before = gathers();
      at::cumsum(w, 0);
      const int64_t after = gathers();
      at::logcumsumexp(w, 0);
      EXPECT_EQ(gathers(), after)
          << "before it, the second reader of w gathered again instead of sharing the first one's copy";
      EXPECT_LE(after - before, 1) << "before it, one reader of w gathered more than once";
      write.run();
      const at::Tensor found = full_tensor(at::cumsum(w, 0)), wanted = at::cumsum(full_tensor(w), 0);
      EXPECT_TRUE(at::equal(found, wanted)) << "after it, cumsum(w) read a copy gathered before:\n"
                                            << found << "\ninstead of\n"
                                            << wanted;
    }
  });
}

TEST(Errors, OfOperatorsWithoutARule) {
  const std::string error = failure_on(2, [](int64_t) {
    at::_masked_softmax(distribute(waves({4, 4}), pair(), "{a: S(0)}"), at::ones({4, 4}, at::kBool));
  });
  EXPECT_SAYS(error, "[_masked_softmax");
  EXPECT_SAYS(error, "{a: S(0)}");
  EXPECT_SAYS(error, "full_tensor(x)");
}

// `call` of a tensor whose rows are cut, where nothing may be moved.
std::string refusal_of(const std::function<void(const at::Tensor& x)>& call) {
  return failure_on(2, [&](int64_t) {
    const at::Tensor x = distribute(waves({4, 4}), pair(), "{a: S(1)}").requires_grad_();
    const dtensor::ModeScope scope(dtensor::Mode::kExplicit);
    call(x);
  });
}

TEST(Errors, NameTheCallThatTheProgramWrote) {
  EXPECT_SAYS(refusal_of([](const at::Tensor& x) { at::cdist(x, x); }),
              "[cdist -> _cdist_forward {a: S(1)} x {a: S(1)}] needs a redistribution");
  EXPECT_SAYS(refusal_of([](const at::Tensor& x) { at::layer_norm(x, {4}); }),
              "[layer_norm -> native_layer_norm {a: S(1)}]");
  EXPECT_SAYS(refusal_of([](const at::Tensor& x) { at::log_softmax(x, 1); }), "[log_softmax -> ");
  EXPECT_SAYS(refusal_of([](const at::Tensor& x) { at::cumsum(x, 1); }), "[cumsum {a: S(1)}]");
  EXPECT_SAYS(refusal_of([](const at::Tensor& x) {
                at::Tensor y;
                {
                  const dtensor::ModeScope scope(dtensor::Mode::kImplicit);
                  y = at::layer_norm(x, {4});
                }
                y.sum().backward();
              }),
              "[NativeLayerNormBackward0 -> native_layer_norm_backward {a: ");
}

TEST(Errors, OfDifferentMeshes) {
  const std::string error = failure_on(4, [](int64_t) {
    distribute(integers({4, 4}), square(), "{a: S(0)}")
        .add(distribute(integers({4, 4}), Mesh::parse("x=4"), "{x: S(0)}"));
  });
  EXPECT_SAYS(error, "aten::add.Tensor");
  EXPECT_SAYS(error, "a=2,b=2 and x=4");
}

TEST(Errors, OutsideOfARank) {
  at::Tensor kept;
  run_on(pair(), [&](int64_t rank) {
    const at::Tensor x = distribute(integers({4, 4}), pair(), "{a: S(0)}");
    if (rank == 0) {
      kept = x;
    }
  });
  const auto says = [](const std::function<void()>& body) {
    try {
      body();
    } catch (const std::exception& error) {
      return base::message_of(error);
    }
    return std::string();
  };
  EXPECT_SAYS(says([&] { kept.add(1); }), "outside of a rank");
  EXPECT_SAYS(says([&] { at::linear(kept, kept); }), "outside of a rank");
  EXPECT_SAYS(says([&] { full_tensor(kept); }), "rank");
  EXPECT_SAYS(says([&] { distribute(integers({2}), pair(), "{a: R}"); }), "rank");
  EXPECT_NE(dtensor::to_string(kept).find("{a: S(0)}"), std::string::npos);
}

TEST(Errors, OfWrongShapesAreThoseOfLibtorch) {
  const at::Tensor a = integers({4, 3}), b = integers({4, 2});
  std::string plain;
  try {
    a.add(b);
  } catch (const std::exception& error) {
    plain = base::message_of(error);
  }
  EXPECT_SAYS(
      failure_on(2, [&](int64_t) { distribute(a, pair(), "{a: S(0)}").add(distribute(b, pair(), "{a: S(0)}")); }),
      plain.substr(0, 40));
  EXPECT_SAYS(
      failure_on(2, [&](int64_t) { at::linear(distribute(a, pair(), "{a: S(0)}"), distribute(b, pair(), "{a: R}")); }),
      "does not fit");
}

TEST(Regions, PlainTensorsComputeInPlainMemory) {
  run_on(pair(), [&](int64_t) {
    const at::Tensor counts = torch::tensor({3, 1, 3}), weights = torch::tensor({0.5, 1.5, 2.5});
    dtensor::RankState::require().pass.set_region(pair());
    EXPECT_TRUE(dtensor::is_dtensor(at::zeros({2})));
    const at::Tensor sum = counts + weights;  // casts into memory of its own
    EXPECT_FALSE(dtensor::is_dtensor(sum));
    EXPECT_EQ(sum[2].item<double>(), 5.5);
    EXPECT_EQ(std::get<0>(at::_unique(counts)).numel(), 2);
  });
}

TEST(Modules, ConvertAndUseBuffers) {
  const at::Tensor input = waves({6, 4});
  torch::nn::BatchNorm1d plain(torch::nn::BatchNormOptions(4));
  plain->to(at::kDouble);
  plain->forward(input).sum().backward();
  run_on(pair(), [&](int64_t) {
    torch::nn::BatchNorm1d norm(torch::nn::BatchNormOptions(4));
    for (const at::Tensor& tensor : norm->parameters()) {
      dtensor::become(tensor, distribute(tensor.detach(), pair(), "{a: R}").set_requires_grad(true));
    }
    for (const at::Tensor& tensor : norm->buffers()) {
      dtensor::become(tensor, distribute(tensor, pair(), "{a: R}"));
    }
    norm->to(at::kDouble);
    EXPECT_EQ(norm->weight.scalar_type(), at::kDouble);
    EXPECT_TRUE(dtensor::is_dtensor(norm->weight) && dtensor::is_dtensor(norm->running_mean));
    norm->forward(distribute(input, pair(), "{a: S(0)}")).sum().backward();
    EXPECT_LE(error_of(full_tensor(norm->running_mean), plain->running_mean), 1e-14);
    EXPECT_LE(error_of(full_tensor(norm->running_var), plain->running_var), 1e-14);
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
    EXPECT_LE(error_of(full_tensor(norm->bias.grad()), plain->bias.grad()), 1e-14);
    EXPECT_EQ(norm->parameters().size(), 2u);
  });
}

TEST(Modules, SetDataAndToDtype) {
  run_on(pair(), [](int64_t) {
    at::Tensor x = distribute(integers({4, 4}), pair(), "{a: S(0)}").requires_grad_();
    x.set_data(distribute(integers({4, 4}).mul(2), pair(), "{a: S(1)}"));
    EXPECT_EQ(spec_of(x).layout_str(), "{a: S(1)}");
    (x * x).sum().backward();
    EXPECT_TRUE(at::equal(full_tensor(x.grad()), integers({4, 4}) * 4));
    const at::Tensor half = x.to(at::kFloat);
    EXPECT_EQ(spec_of(half).layout_str(), "{a: S(1)}");
    EXPECT_EQ(half.scalar_type(), at::kFloat);
    EXPECT_TRUE(x.to(at::kDouble).is_same(x));
    EXPECT_ANY_THROW(x.set_data(integers({4, 4})));
    EXPECT_TRUE(at::equal(full_tensor(x.detach().to(at::kLong)), integers({4, 4}, at::kLong) * 2));
  });
}

}  // namespace
}  // namespace tessera::ranks::api_test
