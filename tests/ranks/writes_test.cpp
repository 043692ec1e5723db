// In-place operators and writes through views, in every layout, against plain tensors. A write that cannot reach its
// base throws before anything changed.
#include <c10/core/InferenceMode.h>

#include "tests/ranks/support.h"

namespace tessera::ranks::writes_test {
namespace {

using layout::Partial;
using layout::Replicate;
using layout::Shard;

const char* const kMeshes[] = {"a=2", "a=3", "a=2,b=2"};

// Calls `body` for every layout of a tensor of `ndim` dims on every mesh, on every rank.
void on_layouts(int64_t ndim, const std::function<void(const Mesh&, const Placements&)>& body) {
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t) {
      for (const Placements& placements : plain_layouts(mesh, ndim)) {
        SCOPED_TRACE(
            c10::str(layout::str(mesh, placements), " on ", mesh.str(), ", rank ", comm::RankContext::require().rank));
        body(mesh, placements);
      }
    });
  }
}

using Write = std::function<void(const at::Tensor& x, const at::Tensor& other)>;

const std::vector<std::pair<const char*, Write>>& binary_writes() {
  static const std::vector<std::pair<const char*, Write>> all = {
      {"add_", [](const at::Tensor& x, const at::Tensor& y) { x.add_(y, 2); }},
      {"sub_", [](const at::Tensor& x, const at::Tensor& y) { x.sub_(y); }},
      {"mul_", [](const at::Tensor& x, const at::Tensor& y) { x.mul_(y); }},
      {"div_", [](const at::Tensor& x, const at::Tensor& y) { x.div_(y.square().add(1)); }},
      {"copy_", [](const at::Tensor& x, const at::Tensor& y) { x.copy_(y); }},
      {"addcmul_", [](const at::Tensor& x, const at::Tensor& y) { x.addcmul_(y, y, 0.5); }},
      {"addcdiv_", [](const at::Tensor& x, const at::Tensor& y) { x.addcdiv_(y, y.square().add(1), 0.5); }},
      {"lerp_", [](const at::Tensor& x, const at::Tensor& y) { x.lerp_(y, 0.25); }},
      {"masked_fill_", [](const at::Tensor& x, const at::Tensor& y) { x.masked_fill_(y.gt(0), 3); }},
      {"out=",
       [](const at::Tensor& x, const at::Tensor& y) {
         at::Tensor out = x;
         at::add_out(out, y, y);
       }},
  };
  return all;
}

TEST(Writes, OfTwoOperandsInEveryLayout) {
  const at::Tensor value = waves({5, 4}), other = waves({5, 4}, 0.91);
  for (const char* text : kMeshes) {
    const Mesh mesh = Mesh::parse(text);
    run_on(mesh, [&](int64_t rank) {
      const auto layouts = plain_layouts(mesh, 2);
      for (size_t i = 0; i < layouts.size(); ++i) {
        for (size_t k = i % 3; k < layouts.size(); k += mesh.ndim() == 1 ? 1 : 3) {
          for (const auto& [name, write] : binary_writes()) {
            const at::Tensor plain = value.clone(), x = spread(value, mesh, layouts[i]),
                             y = spread(other, mesh, layouts[k]);
            write(plain, other);
            write(x, y);
            EXPECT_LE(error_of(full_tensor(x), plain), 1e-14)
                << name << " " << layout::str(mesh, layouts[i]) << " with " << layout::str(mesh, layouts[k])
                << ", rank " << rank;
            if (!Spec::contiguous(mesh, layouts[i], value.sizes(), at::kDouble)->has_partial) {
              EXPECT_EQ(spec_of(x)->placements, layouts[i]) << name << ": a written tensor stays where it is";
            }
          }
        }
      }
    });
  }
}

TEST(Writes, OfOneOperandInEveryLayout) {
  const at::Tensor value = waves({5, 4});
  const std::vector<std::function<void(at::Tensor)>> writes = {
      [](at::Tensor x) { x.zero_(); },
      [](at::Tensor x) { x.fill_(3); },
      [](at::Tensor x) { x.fill_(at::full({}, 2.5, at::kDouble)); },
      [](at::Tensor x) { x.exp_(); },
      [](at::Tensor x) { x.clamp_(-0.5, 0.5); },
      [](at::Tensor x) { x.mul_(-2); },
      [](at::Tensor x) { x.relu_(); },
      [](at::Tensor x) { x.add_(1).sqrt_(); },
      [](at::Tensor x) { x.tril_(); },
      [](at::Tensor x) { x.index_fill_(0, at::full({1}, 2, at::kLong), 9); },
      [](at::Tensor x) { x.index_put_({at::full({2}, 4, at::kLong), at::arange(2)}, at::full({2}, 7, at::kDouble)); },
      [](at::Tensor x) { x.mul_(x); },
      [](at::Tensor x) { x.add_(x); },
      [](at::Tensor x) { x.addcmul_(x, x); },
  };
  on_layouts(2, [&](const Mesh& mesh, const Placements& placements) {
    for (size_t i = 0; i < writes.size(); ++i) {
      const at::Tensor plain = value.clone(), x = spread(value, mesh, placements), alias = x.detach();
      writes[i](plain);
      writes[i](x);
      EXPECT_LE(error_of(full_tensor(x), plain), 1e-13) << i;
      EXPECT_LE(error_of(full_tensor(alias), plain), 1e-13) << i << ": a detached tensor is the same memory";
    }
  });
}

using View = std::function<at::Tensor(const at::Tensor&)>;

const std::vector<std::pair<const char*, View>>& views() {
  static const std::vector<std::pair<const char*, View>> all = {
      {"view", [](const at::Tensor& x) { return x.view({-1}); }},
      {"view to 3 dims", [](const at::Tensor& x) { return x.view({x.size(0), 2, 2}); }},
      {"t", [](const at::Tensor& x) { return x.t(); }},
      {"t t", [](const at::Tensor& x) { return x.t().t(); }},
      {"slice rows", [](const at::Tensor& x) { return x.slice(0, 1, 4); }},
      {"slice columns", [](const at::Tensor& x) { return x.narrow(1, 2, 2); }},
      {"every second", [](const at::Tensor& x) { return x.slice(0, 0, 5, 2); }},
      {"select row", [](const at::Tensor& x) { return x.select(0, 1); }},
      {"select column", [](const at::Tensor& x) { return x.select(1, -1); }},
      {"select row, unsqueeze", [](const at::Tensor& x) { return x.select(0, 2).unsqueeze(0); }},
      {"select element", [](const at::Tensor& x) { return x.select(0, 4).select(0, 3); }},
      {"unsqueeze", [](const at::Tensor& x) { return x.unsqueeze(1); }},
      {"permute", [](const at::Tensor& x) { return x.permute({1, 0}); }},
      {"diagonal", [](const at::Tensor& x) { return x.diagonal(); }},
      {"index", [](const at::Tensor& x) { return x.index({3}); }},
      {"index slice", [](const at::Tensor& x) { return x.index({at::indexing::Slice(1, 3), 2}); }},
      {"chunk", [](const at::Tensor& x) { return x.chunk(2, 1)[1]; }},
      {"unbind", [](const at::Tensor& x) { return x.unbind(0)[3]; }},
      {"split", [](const at::Tensor& x) { return x.split(2, 0)[1]; }},
      {"t, slice", [](const at::Tensor& x) { return x.t().slice(1, 2, 5); }},
      {"slice, slice", [](const at::Tensor& x) { return x.slice(0, 1, 5).slice(0, 1, 3); }},
      {"slice, view", [](const at::Tensor& x) { return x.slice(0, 1, 4).view({-1}); }},
  };
  return all;
}

const std::string kCannotWrite = "cannot write through a view";

TEST(Writes, ThroughViewsReachTheBaseOrThrow) {
  const at::Tensor value = integers({5, 4}), zero = at::zeros({}, at::kDouble);
  std::atomic<int64_t> reached = 0, refused = 0;
  on_layouts(2, [&](const Mesh& mesh, const Placements& placements) {
    for (const auto& [name, view] : views()) {
      const at::Tensor plain = value.clone(), x = spread(value, mesh, placements);
      view(plain).mul_(3).add_(1);
      const at::Tensor through = view(x);
      try {
        through.mul_(3).add_(1);
        ++reached;
      } catch (const c10::Error& error) {
        ++refused;
        EXPECT_SAYS(base::message_of(error), kCannotWrite);
        EXPECT_TRUE(at::equal(full_tensor(x), value)) << name << ": a refused write changes nothing";
        continue;
      }
      EXPECT_TRUE(at::equal(full_tensor(x), plain)) << name << "\n" << full_tensor(x);
      EXPECT_TRUE(at::equal(full_tensor(through), view(plain))) << name;
      EXPECT_TRUE(at::equal(full_tensor(view(x)), view(plain))) << name;
    }
  });
  testing::Test::RecordProperty("reached", static_cast<int>(reached));
  testing::Test::RecordProperty("refused", static_cast<int>(refused));
  std::cout << reached << " writes reached their base, " << refused << " were refused\n";
  EXPECT_GT(reached, 4 * refused);
}

// A view of the tensor, of which the part may be one too or have to be copied.
TEST(Writes, ThroughViewsOfStridedParts) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    const at::Tensor kept = at::arange(24, at::kDouble).view({2, 12});
    for (const at::Tensor& part : {kept.narrow(1, 3, 6), kept.view({12, 2}).t().narrow(1, 0, 6)}) {
      const at::Tensor x = dtensor::from_local(part.detach(), mesh, {Shard(0)}), before = full_tensor(x).clone();
      for (const at::Tensor& through : {x.view({-1}), x.view({4, 3, 2}), x.view({2, 2, 6})}) {
        through.mul_(2);
        through.add_(1);
      }
      EXPECT_TRUE(at::equal(full_tensor(x), before * 8 + 7)) << full_tensor(x);
      EXPECT_TRUE(at::equal(dtensor::to_local(x), part));
    }
  });
}

TEST(Writes, ThroughSelectedRowsAndElementsAlwaysWork) {
  const at::Tensor value = integers({5, 4, 3});
  on_layouts(3, [&](const Mesh& mesh, const Placements& placements) {
    const at::Tensor plain = value.clone(), x = spread(value, mesh, placements);
    for (const at::Tensor& t : {plain, x}) {
      t.index({4}).fill_(0);
      t[1][3][2] = 5;
      t.select(1, 1).slice(0, 0, 2).add_(1);
      t.slice(2, 1, 3).select(0, 0).mul_(2);
    }
    EXPECT_TRUE(at::equal(full_tensor(x), plain)) << full_tensor(x);
  });
}

// A view that was made before its base changed shows the base's new values, or throws.
TEST(Writes, ToTheBaseAreSeenByViewsOrThrow) {
  const at::Tensor value = integers({5, 4});
  std::atomic<int64_t> seen = 0, refused = 0;
  on_layouts(2, [&](const Mesh& mesh, const Placements& placements) {
    for (const auto& [name, view] : views()) {
      for (int way = 0; way < 4; ++way) {
        const at::Tensor plain = value.clone(), x = spread(value, mesh, placements);
        const at::Tensor of_plain = view(plain), of_x = view(x);
        try {
          if (way == 1) {
            x.relu();  // merges a Partial
          }
          if (way == 3) {
            of_x.relu();
          }
          for (const at::Tensor& t : {plain, x}) {
            way == 2 ? t.data().add_(1) : t.add_(1);
          }
          EXPECT_TRUE(at::equal(full_tensor(of_x), of_plain)) << name << " " << way << "\n" << full_tensor(of_x);
          ++seen;
        } catch (const c10::Error& error) {
          ++refused;
          EXPECT_SAYS(base::message_of(error), "view");
        }
      }
    }
  });
  std::cout << seen << " views saw the write, " << refused << " were refused\n";
  EXPECT_GT(seen, 10 * refused);
}

TEST(Writes, ThroughOneViewAreSeenByAnother) {
  const at::Tensor value = integers({6, 4});
  on_layouts(2, [&](const Mesh& mesh, const Placements& placements) {
    const at::Tensor plain = value.clone(), x = spread(value, mesh, placements);
    const auto run = [](const at::Tensor& t) {
      const at::Tensor rows = t.slice(0, 1, 5), column = t.select(1, 2);
      rows.add_(1);
      column.mul_(2);
      rows.select(0, 2).fill_(7);
      return rows.sum() + column.sum() * 100;
    };
    const at::Tensor expected = run(plain);
    EXPECT_TRUE(at::equal(full_tensor(run(x)), expected)) << full_tensor(run(x)) << expected;
  });
}

TEST(Writes, ThroughViewsAreDifferentiable) {
  const at::Tensor value = waves({5, 4}), weights = waves({5, 4}, 0.77);
  on_layouts(2, [&](const Mesh& mesh, const Placements& placements) {
    for (const auto& [name, view] : views()) {
      const at::Tensor plain = value.clone().requires_grad_(), x = spread(value, mesh, placements).requires_grad_();
      const auto run = [&](const at::Tensor& t) {
        const at::Tensor y = t * 1;
        view(y).mul_(3);
        (y * weights).sum().backward();
      };
      if (std::string(name) == "chunk" || std::string(name) == "unbind" || std::string(name) == "split") {
        EXPECT_ANY_THROW(run(plain));  // libtorch refuses outputs of functions that return several views
        continue;
      }
      run(plain);
      try {
        run(x);
      } catch (const c10::Error& error) {
        EXPECT_SAYS(base::message_of(error), kCannotWrite);
        continue;
      }
      EXPECT_LE(error_of(full_tensor(x.grad()), plain.grad()), 1e-14) << name;
    }
  });
}

TEST(Writes, OfSeveralOutArgumentsThrowWhereTheOperatorIsTakenApart) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto attempt = [&](const char* placements) {
    return failure_on(2, [&](int64_t) {
      const at::Tensor x = distribute(integers({4, 4}), mesh, placements);
      at::Tensor var = distribute(at::zeros({4}, at::kDouble), mesh, "{a: R}"),
                 mean = distribute(at::zeros({4}, at::kDouble), mesh, "{a: R}");
      at::var_mean_out(var, mean, x, c10::IntArrayRef({1}), 1);
      EXPECT_LE(error_of(full_tensor(mean), integers({4, 4}).mean(1)), 1e-14);
    });
  };
  EXPECT_SAYS(attempt("{a: S(1)}"), "Call it without out=");
  EXPECT_EQ(attempt("{a: R}"), "");
}

TEST(Writes, OfOutArgumentsThatTheOperatorCannotFillSayWhatToCall) {
  const Mesh mesh = Mesh::parse("a=2");
  const auto make = [&](c10::IntArrayRef sizes) { return distribute(at::zeros(sizes, at::kDouble), mesh, "{a: R}"); };
  using Attempt = std::function<void(const at::Tensor& x)>;
  const std::vector<std::tuple<const char*, const char*, Attempt>> attempts = {
      {"add", "not resized",
       [&](const at::Tensor& x) {
         at::Tensor out = make({0});
         at::add_out(out, x, x);
       }},
      {"add", "[4, 4], and out= is float64[0, 4] {a: R}",
       [&](const at::Tensor& x) {
         at::Tensor out = make({0, 4});
         at::add_out(out, x, x);
       }},
      {"mm", "not resized",
       [&](const at::Tensor& x) {
         at::Tensor out = make({0});
         at::mm_out(out, x, x);
       }},
      {"sum", "not resized",
       [&](const at::Tensor& x) {
         at::Tensor out = make({0});
         at::sum_out(out, x, c10::IntArrayRef({0}));
       }},
      {"cat", "not resized",
       [&](const at::Tensor& x) {
         at::Tensor out = make({0});
         at::cat_out(out, {x, x});
       }},
      {"stack", "not resized",
       [&](const at::Tensor& x) {
         at::Tensor out = make({0});
         at::stack_out(out, {x, x});
       }},
      {"stack", "new results only",
       [&](const at::Tensor& x) {
         at::Tensor out = make({2, 4, 4});
         at::stack_out(out, {x, x});
       }},
  };
  for (const char* placements : {"{a: R}", "{a: S(0)}", "{a: P}"}) {
    for (const auto& [name, words, attempt] : attempts) {
      const std::string message = failure_on(
          2, [&](int64_t) { attempt(spread(integers({4, 4}), mesh, layout::parse_placements(mesh, placements))); });
      EXPECT_SAYS(message, std::string("[") + name);
      EXPECT_SAYS(message, words);
      EXPECT_SAYS(message, "Call it without out=, and copy_ the result.");
    }
  }
  const std::string of_norm = failure_on(2, [&](int64_t) {
    at::Tensor out = make({4, 3, 2}), mean = make({3}), deviation = make({3});
    at::native_batch_norm_out(out, mean, deviation, distribute(waves({4, 3, 2}), mesh, "{a: R}"), {}, {}, make({3}),
                              make({3}), true, 0.1, 1e-5);
  });
  EXPECT_SAYS(of_norm, "[native_batch_norm");
  EXPECT_SAYS(of_norm, "Call it without out=, and copy_ the result.");
  run_on(mesh, [&](int64_t) {
    at::Tensor out = make({8, 4});
    const at::Tensor x = distribute(integers({4, 4}), mesh, "{a: S(0)}");
    at::cat_out(out, {x, x});
    EXPECT_TRUE(at::equal(full_tensor(out), at::cat({integers({4, 4}), integers({4, 4})})));
  });
}

TEST(Writes, OfTheResultOfRedistributeAndFullTensorStayThere) {
  const at::Tensor value = integers({5, 4});
  on_layouts(2, [&](const Mesh& mesh, const Placements& placements) {
    for (const Placements& to : plain_layouts(mesh, 2)) {
      const at::Tensor x = spread(value, mesh, placements);
      redistribute(x, to).add_(1);
      EXPECT_TRUE(at::equal(full_tensor(x), value)) << layout::str(mesh, to);
      full_tensor(x).add_(1);
      EXPECT_TRUE(at::equal(full_tensor(x), value));
    }
  });
}

TEST(Writes, ReachTheLocalPart) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t rank) {
    const at::Tensor x = distribute(integers({4, 2}), mesh, "{a: S(0)}");
    const at::Tensor gathered = at::cumsum(x.flatten(), 0);
    to_local(x).fill_(rank);
    EXPECT_TRUE(at::equal(full_tensor(x).select(1, 0), at::tensor({0., 0., 1., 1.}, at::kDouble)));
    EXPECT_EQ(at::cumsum(x.flatten(), 0).select(0, 7).item<double>(), 4);
  });
}

TEST(Writes, OfStorageAreRefused) {
  const Mesh mesh = Mesh::parse("a=2");
  for (const auto& write : std::vector<std::function<void(at::Tensor)>>{
           [](at::Tensor x) { x.resize_({2, 2}); }, [](at::Tensor x) { x.set_(at::zeros({4, 4}, at::kDouble)); }}) {
    EXPECT_SAYS(failure_on(2, [&](int64_t) { write(distribute(integers({4, 4}), mesh, "{a: S(0)}")); }), "no storage");
  }
  EXPECT_SAYS(failure_on(2, [&](int64_t) { distribute(integers({4, 4}), mesh, "{a: S(0)}").data_ptr(); }), "storage");
}

TEST(Writes, InInferenceMode) {
  const Mesh mesh = Mesh::parse("a=2");
  run_on(mesh, [&](int64_t) {
    c10::InferenceMode guard;
    const at::Tensor x = distribute(integers({4, 4}), mesh, "{a: S(0)}");
    const at::Tensor before = at::cumsum(x.flatten(), 0);
    x.add_(1);
    x.select(0, 1).fill_(2);
    EXPECT_TRUE(at::equal(full_tensor(at::cumsum(x.flatten(), 0)), at::cumsum(full_tensor(x).flatten(), 0)));
    EXPECT_TRUE(at::equal(full_tensor(x).select(0, 1), at::full({4}, 2, at::kDouble)));
  });
}

}  // namespace
}  // namespace tessera::ranks::writes_test
