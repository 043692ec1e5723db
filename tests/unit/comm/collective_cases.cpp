#include "tests/unit/comm/collective_cases.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include <ATen/ops/full.h>

#include "tessera/comm/core/gather_numbers.h"
#include "tests/unit/comm/support.h"

namespace tessera::comm {
namespace {

// What member `from` gives to member `to`: of any size the beginning of the same values, which each thread makes once.
at::Tensor given(const Sample& sample, int64_t from, int64_t to, at::IntArrayRef sizes, at::ScalarType dtype) {
  thread_local std::map<std::pair<uint64_t, at::ScalarType>, at::Tensor> made;
  const auto key = static_cast<uint64_t>(from * 100 + to + 1);
  const auto wide = dtype == at::kBool ? at::kBool : at::isIntegralType(dtype, false) ? at::kLong : at::kDouble;
  const auto numel = c10::multiply_integers(sizes);
  auto& values = made[{key, wide}];
  if (!values.defined() || values.numel() < numel) {
    values = values_of(key, {std::max<int64_t>(2 * numel, 4096)}, wide);
  }
  return values.narrow(0, 0, numel).to(sample.device, dtype, /*non_blocking=*/false, /*copy=*/true).view(sizes);
}

// What all members give to `to`.
Tensors given_by_all(const Sample& sample, int64_t members, int64_t to, at::IntArrayRef sizes, at::ScalarType dtype) {
  Tensors values;
  for (int64_t from = 0; from < members; ++from) {
    values.push_back(given(sample, from, to, sizes, dtype));
  }
  return values;
}

at::Tensor zeros_of(const Sample& sample, at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::zeros(sizes, at::TensorOptions().dtype(dtype).device(sample.device));
}

at::Tensor full_of(const Sample& sample, int64_t size, int64_t value) {
  return at::full({size}, static_cast<double>(value), at::TensorOptions().device(sample.device));
}

std::vector<ReduceOp> ops_of(at::ScalarType dtype) {
  using enum ReduceOp;
  return at::isComplexType(dtype)    ? std::vector{kSum, kProd}
         : at::isFloatingType(dtype) ? std::vector{kSum, kProd, kMax, kMin, kAvg}
                                     : std::vector{kSum, kProd, kMax, kMin};
}

std::string from(int64_t member) { return "from " + std::to_string(member); }

Outcomes all_reduce(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  const auto all = given_by_all(sample, group.size(), 0, {sample.size}, sample.dtype);
  for (const auto op : ops_of(sample.dtype)) {
    const auto tensor = all[static_cast<size_t>(group.rank())].clone();
    group.all_reduce(tensor, op)->wait();
    outcomes.push_back({layout::name_of(op), tensor, sample.combine(all, op, true)});
  }
  return outcomes;
}

Outcomes reduce_scatter(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  for (const bool is_even : {true, false}) {
    const auto length = [&](int64_t to) { return sample.size + (is_even ? 0 : to % 2); };
    Tensors inputs;
    for (int64_t to = 0; to < group.size(); ++to) {
      inputs.push_back(given(sample, group.rank(), to, {length(to)}, sample.dtype));
    }
    const auto all = given_by_all(sample, group.size(), group.rank(), {length(group.rank())}, sample.dtype);
    for (const auto op : ops_of(sample.dtype)) {
      const auto output = zeros_of(sample, {length(group.rank())}, sample.dtype);
      group.reduce_scatter(output, inputs, op)->wait();
      outcomes.push_back({std::string(layout::name_of(op)) + (is_even ? "" : " of uneven parts"), output,
                          sample.combine(all, op, is_even || group.size() == 1)});
    }
  }
  return outcomes;
}

// Pieces of one tensor need not be copied together first.
Outcomes reduce_scatter_of_one_tensor(Communicator& group, const Sample& sample) {
  const std::vector<int64_t> sizes = {group.size(), 7};
  Tensors pieces;
  for (const auto& whole : given_by_all(sample, group.size(), 0, sizes, sample.dtype)) {
    pieces.push_back(whole[group.rank()]);
  }
  const auto output = zeros_of(sample, {7}, sample.dtype);
  group.reduce_scatter(output, given(sample, group.rank(), 0, sizes, sample.dtype).unbind(), ReduceOp::kSum)->wait();
  return {{"sum", output, sample.combine(pieces, ReduceOp::kSum, true)}};
}

// Every member's own shape: as many rows as its position, or two of each.
Outcomes all_gather(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  for (const bool is_even : {true, false}) {
    const auto sizes = [&](int64_t member) { return std::vector<int64_t>{is_even ? 2 : member, sample.size / 2}; };
    Tensors outputs;
    for (int64_t member = 0; member < group.size(); ++member) {
      outputs.push_back(zeros_of(sample, sizes(member), sample.dtype));
    }
    group.all_gather(outputs, given(sample, group.rank(), 0, sizes(group.rank()), sample.dtype))->wait();
    for (int64_t member = 0; member < group.size(); ++member) {
      outcomes.push_back({from(member) + (is_even ? "" : " of uneven parts"), outputs[static_cast<size_t>(member)],
                          given(sample, member, 0, sizes(member), sample.dtype)});
    }
  }
  return outcomes;
}

Outcomes all_gather_into_one_tensor(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  const auto whole = zeros_of(sample, {group.size(), 5}, at::kFloat);
  group.all_gather(whole.unbind(), given(sample, group.rank(), 0, {5}, at::kFloat))->wait();
  for (int64_t member = 0; member < group.size(); ++member) {
    outcomes.push_back({from(member), whole[member], given(sample, member, 0, {5}, at::kFloat)});
  }
  return outcomes;
}

Outcomes all_to_all(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  const auto sizes = [&](int64_t giver, int64_t taker) {
    return std::vector<int64_t>{giver + 2 * taker, sample.size / 4};
  };
  Tensors inputs, outputs;
  for (int64_t other = 0; other < group.size(); ++other) {
    inputs.push_back(given(sample, group.rank(), other, sizes(group.rank(), other), sample.dtype));
    outputs.push_back(zeros_of(sample, sizes(other, group.rank()), sample.dtype));
  }
  group.all_to_all(outputs, inputs)->wait();
  for (int64_t other = 0; other < group.size(); ++other) {
    outcomes.push_back({from(other), outputs[static_cast<size_t>(other)],
                        given(sample, other, group.rank(), sizes(other, group.rank()), sample.dtype)});
  }
  return outcomes;
}

Outcomes broadcast(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  for (int64_t root = 0; root < group.size(); ++root) {
    const auto tensor = given(sample, group.rank(), root, {sample.size}, sample.dtype);
    group.broadcast(tensor, root)->wait();
    outcomes.push_back(
        {"root " + std::to_string(root), tensor, given(sample, root, root, {sample.size}, sample.dtype)});
  }
  return outcomes;
}

// Round a ring, whichever is issued first. A send has taken its message when it is done.
Outcomes messages(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  const auto size = group.size(), next = (group.rank() + 1) % size, before = (group.rank() + size - 1) % size;
  if (size == 1) {
    return outcomes;  // no member sends to itself
  }
  for (const bool is_receive_first : {true, false}) {
    const auto gift = given(sample, group.rank(), 0, {sample.size, 2}, sample.dtype);
    const auto got = zeros_of(sample, {sample.size, 2}, sample.dtype);
    auto receive = is_receive_first ? group.receive(got, before, 7) : nullptr;
    group.send(gift, next, 7)->wait();
    gift.zero_();
    receive = receive ? std::move(receive) : group.receive(got, before, 7);
    receive->wait();
    outcomes.push_back({is_receive_first ? "receive first" : "send first", got,
                        given(sample, before, 0, {sample.size, 2}, sample.dtype)});
  }
  return outcomes;
}

// Messages with several tags, received by tag in the order sent, whatever is waited for first.
Outcomes messages_within_tags(Communicator& group, const Sample& sample) {
  constexpr int64_t kCount = 12;
  Outcomes outcomes;
  const auto size = group.size(), next = (group.rank() + 1) % size, before = (group.rank() + size - 1) % size;
  const auto gift = [&](int64_t member, int64_t i) {
    return given(sample, member, i, {i * 10}, i % 2 ? at::kFloat : at::kBFloat16);
  };
  for (uint64_t seed = 0; seed < 10 && size > 1; ++seed) {
    std::mt19937_64 random(seed);
    for (int64_t i = 0; i < kCount; ++i) {
      group.send(gift(group.rank(), i), next, i % 3)->wait();
    }
    std::vector<WorkPtr> works;
    for (const int64_t tag : {2, 0, 1}) {
      for (int64_t i = tag; i < kCount; i += 3) {
        const auto expected = gift(before, i);
        outcomes.push_back({"message " + std::to_string(i), at::zeros_like(expected), expected});
        works.push_back(group.receive(outcomes.back().got, before, tag));
      }
    }
    std::shuffle(works.begin(), works.end(), random);
    for (const auto& work : works) {
      work->wait();
    }
  }
  return outcomes;
}

Outcomes nan_wins(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  for (const int64_t size : {group.size() + 1, int64_t{30000}}) {
    for (const auto op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum}) {
      const auto tensor = full_of(sample, size, group.rank());
      tensor[group.rank()].fill_(std::numeric_limits<float>::quiet_NaN());
      group.all_reduce(tensor, op)->wait();
      const auto count = static_cast<double>(group.size());
      const auto rest = op == ReduceOp::kMax ? count - 1 : op == ReduceOp::kMin ? 0 : count * (count - 1) / 2;
      const auto is_nan = tensor.ne(tensor);
      auto expected = zeros_of(sample, {size}, at::kBool);
      expected.narrow(0, 0, group.size()).fill_(true);
      outcomes.push_back({std::string("NaN in the ") + layout::name_of(op), is_nan, expected});
      const auto behind = tensor.narrow(0, group.size(), size - group.size());
      outcomes.push_back({layout::name_of(op), behind, at::full_like(behind, rest)});
    }
  }
  return outcomes;
}

// Each member waits in an order of its own, and for one of them twice.
Outcomes several_at_once(Communicator& group, const Sample& sample) {
  constexpr int64_t kCount = 12;
  Outcomes outcomes;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::mt19937_64 random(seed * 10 + static_cast<uint64_t>(group.rank()));
    std::vector<WorkPtr> works;
    for (int64_t i = 0; i < kCount; ++i) {
      const auto op = i % 3 ? ReduceOp::kSum : ReduceOp::kMax;
      const auto all =
          given_by_all(sample, group.size(), i, {i % 4 == 3 ? 40000 : 100}, i % 2 ? at::kBFloat16 : at::kFloat);
      outcomes.push_back(
          {"call " + std::to_string(i), all[static_cast<size_t>(group.rank())].clone(), sample.combine(all, op, true)});
      works.push_back(group.all_reduce(outcomes.back().got, op));
    }
    std::vector<size_t> order(works.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    for (const auto i : order) {
      works[i]->wait();
    }
    works[0]->wait();
  }
  return outcomes;
}

// Pairs of the group, without the others; again and again; and a pair's member alone.
Outcomes split(Communicator& group, const Sample& sample) {
  Outcomes outcomes;
  const auto all = group.ranks();
  const auto size = group.size(), own = group.rank();
  std::vector<std::vector<int64_t>> positions;
  if (size > 1) {
    positions.push_back({size - 1, 0});
  }
  if (size > 3) {
    positions.push_back({1, 2});
  }
  for (const auto& pair : positions) {
    if (own != pair[0] && own != pair[1]) {
      continue;  // takes part in nothing
    }
    const auto ranks = [&](int64_t i) { return all[static_cast<size_t>(pair[static_cast<size_t>(i)])]; };
    for (int round = 0; round < 3; ++round) {
      const auto two = group.split({{ranks(0), ranks(1)}}, "pair");
      TESSERA_CHECK(two->ranks() == std::vector<int64_t>({ranks(0), ranks(1)}), "a pair of other ranks");
      TESSERA_CHECK(pair[static_cast<size_t>(two->rank())] == own, "another position in the pair");
      const auto sum = full_of(sample, 5, own + 1), first = full_of(sample, 2, own);
      two->all_reduce(sum, ReduceOp::kSum)->wait();
      two->split({{all[static_cast<size_t>(own)]}}, "alone")->all_reduce(sum, ReduceOp::kAvg)->wait();
      two->broadcast(first, 0)->wait();
      outcomes.push_back({"sum of a pair", sum, full_of(sample, 5, pair[0] + pair[1] + 2)});
      outcomes.push_back({"first of a pair", first, full_of(sample, 2, pair[0])});
    }
  }
  group.barrier();
  return outcomes;
}

// `size` bytes in runs: every second one, in their order, then those between, the last one first; and empty ones.
std::vector<Get> gets_of(const std::byte* from, std::byte* to, int64_t size) {
  constexpr int64_t kRun = 57;
  std::vector<Get> gets(2);
  const auto add = [&](int64_t begin) {
    gets.push_back({from + begin, to + begin, static_cast<size_t>(std::min(kRun, size - begin))});
  };
  const int64_t runs = (size + kRun - 1) / kRun;
  for (int64_t run = 0; run < runs; run += 2) {
    add(run * kRun);
  }
  for (int64_t run = runs / 2 * 2 - 1; run > 0; run -= 2) {
    add(run * kRun);
    gets.emplace_back();
  }
  return gets;
}

// Of what each member holds in its host's memory; where there are no windows, of what it sends. A window may be opened
// again.
Outcomes window(Communicator& group, Sample sample) {
  sample.device = at::kCPU;
  Outcomes outcomes;
  for (int64_t round = 0; round < 2; ++round) {
    const auto window = group.open_window();
    for (const int64_t has_one : gather_numbers(group, window != nullptr)) {
      TESSERA_CHECK((has_one == 1) == (window != nullptr), "some members have a window, and some have none");
    }
    const auto own = given(sample, group.rank(), round, {sample.size}, sample.dtype);
    Tensors all;
    for (int64_t member = 0; member < group.size(); ++member) {
      all.push_back(zeros_of(sample, {sample.size}, sample.dtype));
    }
    if (window) {
      const auto addresses = gather_numbers(group, reinterpret_cast<intptr_t>(own.const_data_ptr()));
      for (int64_t member = 0; member < group.size(); ++member) {
        const auto& got = all[static_cast<size_t>(member)];
        window->get(member,
                    gets_of(reinterpret_cast<const std::byte*>(addresses[static_cast<size_t>(member)]),
                            static_cast<std::byte*>(got.mutable_data_ptr()), static_cast<int64_t>(got.nbytes())));
      }
      group.barrier();  // `own` may go
    } else {
      group.all_gather(all, own)->wait();
    }
    for (int64_t member = 0; member < group.size(); ++member) {
      outcomes.push_back(
          {from(member), all[static_cast<size_t>(member)], given(sample, member, round, {sample.size}, sample.dtype)});
    }
  }
  return outcomes;
}

}  // namespace

const std::vector<CollectiveCase>& collective_cases() {
  static const std::vector<CollectiveCase> all = {
      {.name = "AllGather", .run = all_gather},
      {.name = "AllGatherIntoOneTensor", .depends_on_sample = false, .run = all_gather_into_one_tensor},
      {.name = "AllReduce", .run = all_reduce},
      {.name = "AllToAll", .run = all_to_all},
      {.name = "Broadcast", .run = broadcast},
      {.name = "Messages", .run = messages},
      {.name = "MessagesWithinTags", .depends_on_sample = false, .run = messages_within_tags},
      {.name = "NaNWins", .depends_on_sample = false, .run = nan_wins},
      {.name = "ReduceScatter", .run = reduce_scatter},
      {.name = "ReduceScatterOfOneTensor", .depends_on_sample = false, .run = reduce_scatter_of_one_tensor},
      {.name = "SeveralAtOnce", .depends_on_sample = false, .run = several_at_once},
      {.name = "Split", .depends_on_sample = false, .run = split},
      {.name = "Window", .run = window},
  };
  return all;
}

at::Tensor combine_members(const Tensors& values, ReduceOp op, bool) { return combined(values, op); }

const std::vector<at::ScalarType>& collective_types() {
  static const std::vector<at::ScalarType> all = {at::kFloat, at::kDouble, at::kBFloat16,     at::kHalf,
                                                  at::kLong,  at::kInt,    at::kShort,        at::kChar,
                                                  at::kByte,  at::kBool,   at::kComplexFloat, at::kComplexDouble};
  return all;
}

std::string describe(const CollectiveCase& each, const Communicator& group, const Sample& sample,
                     const Outcome& outcome) {
  std::ostringstream out;
  out << each.name;
  if (each.depends_on_sample) {
    out << " of " << sample.dtype << "[" << sample.size << "]";
  }
  out << " over " << group.size() << ", " << outcome.what;
  return out.str();
}

}  // namespace tessera::comm
