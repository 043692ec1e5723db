#include "tests/launch/bodies.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <random>
#include <stdexcept>
#include <thread>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/processes/c10d.h"
#include "tessera/layout/mesh.h"
#include "tests/unit/comm/collective_cases.h"
#include "tests/unit/comm/support.h"

namespace tessera::launch {
namespace {

using comm::RankContext;
using comm::ReduceOp;
using comm::values_of;
using comm::world;

// Empty, one, fewer than ranks, uneven, and beyond what all_reduce sends to everyone.
const std::vector<int64_t> kSizes = {0, 1, 3, 1031, 20011};

uint64_t key_of(int64_t from, int64_t to = 0) { return static_cast<uint64_t>(from * 100 + to + 1); }

// The sizes and bits of tensors, as one number.
uint64_t digest(const std::vector<at::Tensor>& tensors) {
  uint64_t hash = 0;
  for (const auto& tensor : tensors) {
    hash = base::hash_range(tensor.sizes(), hash);
    hash = base::hash_bytes(tensor.const_data_ptr(), tensor.nbytes(), hash);
  }
  return hash;
}

// Runs the table's cases over `group`, throws where one does not give what the table says, and notes the bits that came
// out.
void run_cases(comm::Communicator& group, const std::vector<comm::Sample>& samples, std::ostream& out) {
  for (const auto& each : comm::collective_cases()) {
    const auto once = std::vector<comm::Sample>{{.combine = comm::combine_members}};
    for (const auto& sample : each.depends_on_sample ? samples : once) {
      for (const auto& outcome : each.run(group, sample)) {
        const auto what = comm::describe(each, group, sample, outcome);
        TESSERA_CHECK(comm::identical(outcome.got, outcome.expected), what, " is not what the table says");
        out << what << ": " << std::hex << digest({outcome.got}) << std::dec << "\n";
      }
    }
  }
}

void run_cases(comm::Communicator& group, int64_t size, at::ScalarType dtype, std::ostream& out) {
  run_cases(group, {{size, dtype, comm::combine_members}}, out);
}

// The world as it is, and over messages alone, which processes of one machine otherwise avoid where they can share
// memory.
std::vector<std::shared_ptr<comm::Communicator>> worlds() {
  const auto& own = RankContext::require().world;
  return {own, comm::backend_of(*own) ? comm::split_messages_only(*own) : own};
}

void collectives(int64_t, std::ostream& out) {
  std::vector<comm::Sample> samples;
  for (const auto size : kSizes) {
    for (const auto dtype : comm::collective_types()) {
      samples.push_back({size, dtype, comm::combine_members});
    }
  }
  for (const auto& group : worlds()) {
    run_cases(*group, samples, out);
    group->barrier();
  }
}

// Member `to` gets MiB elements `to` times and a few, of each.
at::Tensor large_value(int64_t from, int64_t to, at::ScalarType dtype) {
  return values_of(key_of(from, to), {(1 << 20) * to + 5}, dtype);
}

// What came over `group`, which must be what its members gave.
void exchange_large(comm::Communicator& group, const std::vector<at::Tensor>& inputs, at::ScalarType dtype) {
  const int64_t rank = group.rank();
  std::vector<at::Tensor> all, gathered;
  for (int64_t from = 0; from < group.size(); ++from) {
    all.push_back(at::zeros_like(inputs[static_cast<size_t>(rank)]));
    gathered.push_back(at::zeros_like(inputs[static_cast<size_t>(from)]));
  }
  group.all_to_all(all, inputs)->wait();
  group.all_gather(gathered, inputs[static_cast<size_t>(rank)])->wait();
  for (int64_t from = 0; from < group.size(); ++from) {
    TESSERA_CHECK(comm::identical(all[static_cast<size_t>(from)], large_value(from, rank, dtype)), "all_to_all: from ",
                  from);
    TESSERA_CHECK(comm::identical(gathered[static_cast<size_t>(from)], large_value(from, from, dtype)),
                  "all_gather: from ", from);
  }
}

// Of many pieces, the last one short; half a MiB travels at a time, up to four ahead.
void large(int64_t rank, std::ostream& out) {
  for (const auto& group : worlds()) {
    for (const auto dtype : {at::kFloat, at::kBool}) {
      auto tensor = values_of(key_of(rank), {(3 << 20) + 77}, dtype);
      group->all_reduce(tensor, ReduceOp::kSum)->wait();
      std::vector<at::Tensor> inputs;
      for (int64_t to = 0; to < group->size(); ++to) {
        inputs.push_back(large_value(rank, to, dtype));
      }
      exchange_large(*group, inputs, dtype);
      auto output = at::zeros_like(inputs[static_cast<size_t>(rank)]);
      group->reduce_scatter(output, inputs, ReduceOp::kSum)->wait();
      out << "large " << dtype << " " << digest({tensor, output}) << "\n";
    }
  }
}

// Groups of groups, and lines of meshes that some ranks are not on.
void groups(int64_t rank, std::ostream& out) {
  auto& context = RankContext::require();
  const auto size = context.world_size;
  std::vector<std::vector<int64_t>> parity(2);
  for (int64_t r = 0; r < size; ++r) {
    parity[static_cast<size_t>(r % 2)].push_back(r);
  }
  const auto half = world().split(parity, "half");
  run_cases(*half, 100, at::kFloat, out);
  run_cases(*half->split({parity[static_cast<size_t>(rank % 2)]}, "again"), 7, at::kBFloat16, out);
  if (rank < 2) {  // only the members of a group take part in making it
    run_cases(*world().split({{1, 0}}, "pair"), 5, at::kDouble, out);
  }
  run_cases(*world().split(parity, "half"), 9, at::kLong, out);
  const auto mesh =
      size == 4 ? layout::Mesh::parse("dp=2,tp=2") : layout::Mesh::parse("dp=" + std::to_string(size) + ",tp=1");
  for (int64_t axis = 0; axis < 2; ++axis) {
    run_cases(context.axis(mesh, axis), 333, at::kHalf, out);
  }
  run_cases(context.whole(mesh), 70000, at::kFloat, out);
}

// Messages of many sizes, all sent before any is received; the bits of NaNs; one message that is never taken.
void messages(int64_t rank, std::ostream& out) {
  for (const auto& group : worlds()) {
    const auto size = group->size(), next = (rank + 1) % size, before = (rank + size - 1) % size;
    std::vector<comm::WorkPtr> receives;
    std::vector<at::Tensor> got;
    for (int64_t i = 0; i < 6; ++i) {
      group->send(values_of(key_of(rank, i), {i * 50}, at::kFloat), next, i % 2);
      got.push_back(at::zeros({i * 50}));
    }
    for (int64_t i = 0; i < 6; ++i) {
      receives.push_back(group->receive(got[static_cast<size_t>(i)], before, i % 2));
    }
    for (auto work = receives.rbegin(); work != receives.rend(); ++work) {
      (*work)->wait();
    }
    out << "messages " << digest(got) << "\n";
    for (const auto op : {ReduceOp::kMax, ReduceOp::kMin, ReduceOp::kSum}) {
      auto tensor = values_of(key_of(rank), {8}, at::kFloat);
      tensor.mutable_data_ptr<float>()[rank] = std::nanf("");
      group->all_reduce(tensor, op)->wait();
      out << "nan " << std::isnan(tensor.const_data_ptr<float>()[0]) << " " << digest({tensor}) << "\n";
    }
    group->send(at::ones({5}), next, 9);
    group->barrier();
  }
}

// What a letter of 4 MiB boxes has no room for between what it has: too many bytes, too many dims, none.
at::Tensor letter(int64_t from, int64_t number) {
  static const std::vector<std::vector<int64_t>> kShapes = {
      {5}, {1 << 20}, std::vector<int64_t>(12, 2), {0, 3}, {}, {70'000}, {2, 3, 4}};
  const auto& shape = kShapes[static_cast<size_t>(number) % kShapes.size()];
  return values_of(key_of(from, number), shape, number % 2 ? at::kDouble : at::kFloat);
}

// Letters to all, some to oneself's neighbour alone, taken in the order they came, in the opposite one, and in groups;
// many times what a box holds, so that its ring turns and who is behind gets the rest another way.
void letters(int64_t rank, std::ostream& out) {
  const int64_t size = world().size(), count = 70;
  uint64_t hash = 0;
  for (const auto& group :
       {RankContext::require().world, world().split({RankContext::require().world->ranks()}, "all")}) {
    for (const bool is_backwards : {false, true}) {
      for (int64_t number = 0; number < count; ++number) {
        for (int64_t k = 1; k < size; ++k) {
          group->send(letter(rank, number), (rank + k) % size, is_backwards ? number : 0);
        }
      }
      for (int64_t i = 0; i < count; ++i) {
        const int64_t number = is_backwards ? count - 1 - i : i;
        for (int64_t from = 0; from < size; ++from) {
          if (from != rank) {
            const at::Tensor expected = letter(from, number), got = at::zeros_like(expected);
            group->receive(got, from, is_backwards ? number : 0)->wait();
            TESSERA_CHECK(comm::identical(got, expected), "letter ", number, " of rank ", from, " is another");
            hash = base::hash_combine(hash, digest({got}));
          }
        }
      }
    }
  }
  out << "letters that came: " << hash << "\n";
}

// Letters in a circle without end. In the round TESSERA_TEST_MOMENT the rank TESSERA_TEST_CULPRIT sends other sizes.
void circle(int64_t rank, std::ostream& out) {
  const int64_t size = world().size();
  for (int64_t round = 0;; ++round) {
    const bool is_fault = rank == variable("TESSERA_TEST_CULPRIT", -1) && round == variable("TESSERA_TEST_MOMENT", -1);
    world().send(at::ones({is_fault ? 3 : 2, 50}), (rank + 1) % size, 0);
    world().receive(at::zeros({2, 50}), (rank + size - 1) % size, 0)->wait();
    if (round == 0) {
      out << "started\n" << std::flush;
    }
  }
}

// What each member holds of a tree of 16 leaves: runs of equal length; some alone, some nothing; not everything.
std::vector<sums::MergePlan::Nodes> holdings(int64_t ranks) {
  std::vector<sums::MergePlan::Nodes> all(3);
  for (int64_t member = 0; member < ranks; ++member) {
    all[0].push_back(sums::cover({16 * member / ranks, 16 * (member + 1) / ranks}, 16));
    all[1].push_back(member == 1 ? std::vector<sums::Node>{{0, 4}, {5, 6}, {8, 16}} : std::vector<sums::Node>{});
    all[2].push_back({{2 * member, 2 * member + 1}});
  }
  all[1][0] = {{4, 5}, {6, 8}};
  return all;
}

// A merge that replicates, in new memory and where the sums lie, and those that scatter each dim, unevenly.
std::vector<comm::Merge> merges_of(const sums::MergePlan& plan, const std::vector<int64_t>& sizes,
                                   at::ScalarType dtype) {
  const int64_t ranks = world().size();
  std::vector<comm::Merge> all(2, {.plan = plan, .sizes = sizes, .options = at::TensorOptions().dtype(dtype)});
  all[1].memory = comm::Merge::Memory::kReuse;
  for (int64_t dim = 0; dim < static_cast<int64_t>(sizes.size()); ++dim) {
    all.push_back(all[0]);
    all.back().scatter = sums::Scatter{.dim = dim};
    for (int64_t i = 0; i < ranks; ++i) {
      all.back().scatter->parts.push_back(layout::cut(sizes[static_cast<size_t>(dim)], ranks, i));
    }
  }
  return all;
}

// Partial sums of a tree's nodes, merged: small, of several pieces, of many.
void merges(int64_t rank, std::ostream& out) {
  for (const auto& group : worlds()) {
    for (const std::vector<int64_t>& sizes : {std::vector<int64_t>{3}, {5, 4000}, {0}, {7, 9, 5000}}) {
      for (const auto& nodes : holdings(group->size())) {
        for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
          const sums::MergePlan plan(nodes, {0, 16});
          std::vector<at::Tensor> sums;
          for (const auto& node : nodes[static_cast<size_t>(rank)]) {
            sums.push_back(values_of(static_cast<uint64_t>(node.begin * 64 + node.end), sizes, dtype));
          }
          for (auto& merge : merges_of(plan, sizes, dtype)) {
            for (const auto& sum : sums) {
              merge.sums.push_back(sum.clone());
            }
            std::vector<at::Tensor> closed;
            for (const auto& node : group->merge(merge)) {
              closed.push_back(node.sum);
            }
            const bool keeps = merge.memory == comm::Merge::Memory::kKeep;
            out << "merge " << merge.str() << " " << digest(closed)
                << (keeps && digest(merge.sums) != digest(sums) ? ", sums overwritten" : "") << "\n";
          }
        }
      }
    }
  }
}

// Merges without end; over messages alone if TESSERA_TEST_WORLD is 1. In the round TESSERA_TEST_MOMENT the rank
// TESSERA_TEST_CULPRIT takes the tree for a larger one.
void merging(int64_t rank, std::ostream& out) {
  const auto group = worlds().at(static_cast<size_t>(variable("TESSERA_TEST_WORLD", 0)));
  sums::MergePlan::Nodes nodes;
  for (int64_t i = 0; i < group->size(); ++i) {
    nodes.push_back({{i, i + 1}});
  }
  const sums::MergePlan plan(nodes, {0, group->size()}), larger(nodes, {0, group->size() + 2});
  const auto sum = at::ones({1 << 20});
  for (int64_t round = 0;; ++round) {
    const bool is_fault = rank == variable("TESSERA_TEST_CULPRIT", -1) && round == variable("TESSERA_TEST_MOMENT", -1);
    group->merge({.plan = is_fault ? larger : plan, .sums = {sum}, .sizes = {1 << 20}, .options = sum.options()});
    if (round == 0) {
      out << "started\n" << std::flush;
    }
  }
}

// Collectives of random kind over random axes, without end (or TESSERA_TEST_ROUNDS). At TESSERA_TEST_MOMENT the rank
// TESSERA_TEST_CULPRIT does what TESSERA_TEST_FAULT says: throw, extra, shape, kind, end, sleep, compute.
void steady(int64_t rank, std::ostream& out) {
  auto& context = RankContext::require();
  const auto mesh = context.world_size == 4 ? layout::Mesh::parse("dp=2,tp=2")
                                            : layout::Mesh::parse("dp=" + std::to_string(context.world_size));
  const std::string fault = std::getenv("TESSERA_TEST_FAULT") ? std::getenv("TESSERA_TEST_FAULT") : "";
  const auto culprit = variable("TESSERA_TEST_CULPRIT", -1), moment = variable("TESSERA_TEST_MOMENT", -1);
  std::mt19937_64 random(static_cast<uint64_t>(variable("TESSERA_TEST_SEED", 1)));
  const auto both = worlds();
  static const char* const kOps[] = {"aten::mm", "aten::add", "aten::relu", "aten::sum"};
  for (int64_t round = 0; round < variable("TESSERA_TEST_ROUNDS", 1 << 30); ++round) {
    const auto which = random();
    const char* op = kOps[which % 4];
    const bool is_fault = rank == culprit && round == moment;
    if (is_fault && fault == "throw") {
      throw std::runtime_error("the reader found 3 columns");
    }
    if (is_fault && fault == "end") {
      return;
    }
    if (is_fault && fault == "sleep") {
      std::this_thread::sleep_for(std::chrono::milliseconds(variable("TESSERA_TEST_SLEEP", 1000)));
    }
    if (is_fault && fault == "extra") {
      context.program.note("aten::extra", 5);
    }
    context.program.note(op, which);
    const comm::Caller caller(context, op);
    auto& group = which / 4 % 3 == 0 || mesh.ndim() == 1 ? *both[which / 48 % 2]
                                                         : context.axis(mesh, static_cast<int64_t>(which / 4 % 3 - 1));
    const auto size = (is_fault && fault == "shape" ? 100 : 0) + (which / 12 % 2 ? 17 : 30000);
    auto tensor = at::ones({static_cast<int64_t>(size)});
    if (which / 24 % 2 || (is_fault && fault == "kind")) {
      std::vector<at::Tensor> outputs;
      for (int64_t i = 0; i < group.size(); ++i) {
        outputs.push_back(at::zeros({static_cast<int64_t>(size)}));
      }
      is_fault&& fault == "kind" ? group.barrier() : group.all_gather(outputs, tensor)->wait();
    } else {
      group.all_reduce(tensor, ReduceOp::kSum)->wait();
    }
    if (round == 0) {
      out << "started\n" << std::flush;
    }
  }
  out << "ended\n";
}

}  // namespace

const std::map<std::string, Body>& bodies() {
  static const std::map<std::string, Body> all = {
      {"collectives", collectives},
      {"groups", groups},
      {"large", large},
      {"messages", messages},
      {"letters", letters},
      {"circle", circle},
      {"merges", merges},
      {"merging", merging},
      {"steady", steady},
      {"compute",
       [](int64_t rank, std::ostream& out) {
         out << "started\n" << std::flush;
         world().barrier();
         if (rank == 0) {
           world().barrier();
         }
         std::this_thread::sleep_for(std::chrono::seconds(600));
       }},
  };
  return all;
}

}  // namespace tessera::launch
