// Samples of reads and writes at indices, and of joining tensors.
#include "tests/audit/samples.h"

namespace tessera::audit {

using rules::testing::Named;

namespace {

using Tensors = std::vector<at::Tensor>;

void add_reads(Samples& samples) {
  for (const int64_t vocabulary : {6, 5, 2}) {
    const at::Tensor ids = integers(vocabulary, {5, 3});
    samples.push_back(sample("aten::embedding", {reals({vocabulary, 4}), ids}));
    for (const bool by_frequency : {false, true}) {
      samples.push_back(
          sample("aten::embedding_dense_backward", {reals({5, 3, 4}), ids},
                 {{"num_weights", vocabulary}, {"padding_idx", 1}, {"scale_grad_by_freq", by_frequency}}));
    }
  }
  samples.push_back(sample("aten::embedding_dense_backward", {reals({5, 4}), integers(6, {5})},
                           {{"num_weights", 6}, {"padding_idx", -1}, {"scale_grad_by_freq", false}}));
  samples.push_back(sample("aten::gather", {reals({5, 4}), integers(5, {3, 4})}, {{"dim", 0}}));
  samples.push_back(sample("aten::gather", {reals({5, 4}), integers(4, {5, 1})}, {{"dim", -1}}));
  samples.push_back(sample("aten::gather", {reals({5, 4}), integers(4, {3, 2})}, {{"dim", 1}}));
  samples.push_back(sample("aten::gather", {reals({}), integers(1, {3})}, {{"dim", 0}}));
  samples.push_back(sample("aten::gather", {reals({5}), integers(5, {2, 0})}, {{"dim", 0}}));
  for (const int64_t dim : {0, -1}) {
    samples.push_back(sample("aten::index_select", {reals({5, 4}), integers(4, {6})}, {{"dim", dim}}));
    samples.push_back(sample("aten::index_select", {reals({5, 4}), integers(4, {})}, {{"dim", dim}}));
  }
  samples.push_back(
      sample("aten::cat", {}, {{"tensors", Tensors{reals({5, 4}), reals({5, 1}), reals({5, 3})}}, {"dim", 1}}));
  samples.push_back(
      sample("aten::cat", {}, {{"tensors", Tensors{reals({0}), reals({5, 4}), reals({2, 4})}}, {"dim", 0}}));
  samples.push_back(sample("aten::stack", {}, {{"tensors", Tensors{reals({5, 4}), reals({5, 4})}}, {"dim", 1}}));
  samples.push_back(sample("aten::stack", {}, {{"tensors", Tensors{reals({5, 4}), reals({5, 4})}}, {"dim", -1}}));
  samples.push_back(sample("aten::isin.Tensor_Tensor", {integers(9, {5, 4}), integers(9, {3})}));
  samples.push_back(sample("aten::isin.Tensor_Scalar", {integers(9, {5, 4})}, {{"test_element", 3}}));
  samples.push_back(sample("aten::isin.Scalar_Tensor", {integers(9, {5, 4})}, {{"element", 3}}));
  samples.push_back(sample("aten::bucketize.Scalar", {std::get<0>(reals({6}).sort())}, {{"self", 0.4}}));
  samples.push_back(
      sample("aten::searchsorted.Scalar", {std::get<0>(reals({6}).sort())}, {{"self", 0.4}, {"out_int32", true}}));
  samples.push_back(sample("aten::bucketize.Tensor", {reals({5, 4}), std::get<0>(reals({6}).sort())}));
  samples.push_back(sample("aten::searchsorted.Tensor", {std::get<0>(reals({6}).sort()), reals({5, 4})}));
  samples.push_back(
      sample("aten::searchsorted.Tensor", {std::get<0>(reals({5, 6}).sort()), reals({5, 4})}, {{"right", true}}));
  samples.push_back(sample("aten::take", {reals({5, 4}), integers(20, {3, 2})}));
  samples.push_back(sample("aten::masked_scatter", {reals({5, 4}), bools({5, 4}), reals({20})}));
  samples.push_back(sample("aten::masked_scatter_", {reals({5, 4}), bools({5, 4}), reals({20})}));
  for (const char* op : {"aten::put", "aten::put_"}) {
    samples.push_back(sample(op, {reals({5, 4}), integers(20, {3, 2}), reals({3, 2})}, {{"accumulate", true}}));
  }
  samples.push_back(sample("aten::renorm_", {reals({5, 4})}, {{"p", 2}, {"dim", 0}, {"maxnorm", 0.5}}));
  for (const double norm : {1.0, 2.0}) {
    samples.push_back(sample("aten::embedding_renorm_", {reals({5, 4}), integers(5, {3, 2})},
                             {{"max_norm", 0.5}, {"norm_type", norm}}));
  }
  samples.push_back(sample("aten::linalg_qr", {reals({6, 4})}));
  samples.push_back(sample("aten::trace", {reals({5, 4})}));
}

void add_index_lists(Samples& samples) {
  const at::Tensor none;
  const at::Tensor x = reals({5, 4, 3});
  const at::Tensor rows = integers(5, {6}).sub(2), columns = integers(4, {2, 6}), last = integers(3, {6, 1});
  struct List {
    Tensors list;
    std::vector<int64_t> values;
  };
  for (const List& at : {List{{rows}, {6, 4, 3}}, List{{none, columns}, {5, 2, 6, 3}}, List{{rows, columns}, {2, 6, 3}},
                         List{{rows, none, last}, {6, 6, 4}}, List{{none, columns, rows.abs()}, {5, 2, 6}},
                         List{{rows}, {}}, List{{none, columns}, {3}}}) {
    for (const char* op : {"aten::index.Tensor", "aten::_unsafe_index.Tensor"}) {
      samples.push_back(sample(op, {x}, {{"indices", indices(at.list)}}));
    }
    for (const char* op : {"aten::index_put", "aten::_unsafe_index_put", "aten::index_put_", "aten::_index_put_impl"}) {
      Named rest = {{"indices", indices(at.list)}, {"accumulate", true}};
      samples.push_back(sample(op, {x, reals(at.values)}, rest));
    }
  }
  const at::Tensor distinct = integers(1000, {4}).argsort();
  samples.push_back(sample("aten::index_put", {x, reals({5, 4, 3})}, {{"indices", indices({none, distinct})}}));
  samples.push_back(sample("aten::index_put_", {x, reals({3})}, {{"indices", indices({distinct})}}));
  samples.push_back(sample("aten::index.Tensor", {x}, {{"indices", indices({bools({5, 4})})}}));
  samples.push_back(sample("aten::index_put", {x, reals({})}, {{"indices", indices({bools({5, 4})})}}));
  samples.push_back(sample("aten::index_put", {x, reals({3})}, {{"indices", indices({bools({5, 4})})}}));
  samples.push_back(sample("aten::index_put", {x, reals({1})}, {{"indices", indices({none, bools({4})})}}));
}

void add_writes(Samples& samples) {
  for (const int64_t dim : {0, 1}) {
    const Named along = {{"dim", dim}};
    const at::Tensor x = reals({5, 4}), index = integers(4, {5, 4});
    const at::Tensor line = integers(1000, {4}).argsort();
    const at::Tensor source = dim == 0 ? reals({4, 4}) : reals({5, 4});
    const auto with = [&](const char* name, c10::IValue value) {
      Named rest = along;
      rest.emplace_back(name, std::move(value));
      return rest;
    };
    samples.push_back(sample("aten::scatter_add", {x, index, reals({5, 4})}, along));
    samples.push_back(sample("aten::scatter_add_", {x, index, reals({5, 4})}, along));
    samples.push_back(sample("aten::scatter_add", {x, integers(4, {3, 2}), reals({5, 3})}, along));
    samples.push_back(sample("aten::scatter.value", {x, index}, with("value", 2.5)));
    const at::Tensor order = reals({5, 4}).argsort(dim);
    samples.push_back(sample("aten::scatter.src", {x, order, reals({5, 4})}, along));
    samples.push_back(sample("aten::scatter.reduce", {x, index, reals({5, 4})}, with("reduce", "multiply")));
    Named reduce = with("reduce", "multiply");
    reduce.emplace_back("value", 1.5);
    samples.push_back(sample("aten::scatter.value_reduce", {x, index}, reduce));
    for (const char* kind : {"sum", "prod", "mean", "amax"}) {
      Named rest = with("reduce", kind);
      rest.emplace_back("include_self", false);
      samples.push_back(sample("aten::scatter_reduce.two", {x, index, reals({5, 4})}, rest));
      samples.push_back(sample("aten::scatter_reduce.two", {x, index, reals({5, 4})}, with("reduce", kind)));
    }
    samples.push_back(sample("aten::index_add", {x, line, source}, with("alpha", 2)));
    samples.push_back(sample("aten::index_add_", {x, line, source}, along));
    samples.push_back(sample("aten::index_copy", {x, line, source}, along));
    samples.push_back(sample("aten::index_fill.int_Scalar", {x, line}, with("value", 3)));
    samples.push_back(sample("aten::index_fill.int_Tensor", {x, line, reals({})}, along));
    samples.push_back(sample("aten::index_reduce", {x, line, source}, with("reduce", "prod")));
    samples.push_back(sample("aten::scatter.value_out", {x, index, reals({5, 4})}, with("value", 2.5)));
  }
}

}  // namespace

void add_indexing_samples(Samples& samples) {
  add_reads(samples);
  add_index_lists(samples);
  add_writes(samples);
}

}  // namespace tessera::audit
