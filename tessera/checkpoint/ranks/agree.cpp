#include "tessera/checkpoint/ranks/agree.h"

#include <ATen/ops/zeros.h>

#include "tessera/comm/core/context.h"
#include "tessera/comm/core/gather_texts.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kReader = 0;
constexpr char kRead = '+', kFailed = '-';  // how the reader's text begins

}  // namespace

std::string read_on_one(const std::function<std::string()>& read) {
  const auto& context = comm::RankContext::require();
  std::string text;
  if (context.rank == kReader) {
    try {
      text = kRead + read();
    } catch (const DataError& error) {
      text = kFailed + base::message_of(error);
    }
  }
  text = comm::gather_texts(*context.world, text).at(kReader);
  TESSERA_CHECK(!text.empty(), "[checkpoint] ranks of an imagined job hear nothing of files; accepted: run_ranks, or ",
                "processes");
  TESSERA_CHECK_AS(DataError, text.front() == kRead, text.substr(1));
  return text.substr(1);
}

void wait_for_all(const std::function<bool()>& wait) {
  auto& world = *comm::RankContext::require().world;
  const auto waiting = at::zeros({1}, at::TensorOptions().dtype(at::kLong));
  do {
    waiting.fill_(wait() ? 0 : 1);
    world.all_reduce(waiting, comm::ReduceOp::kSum)->wait();
  } while (waiting.item<int64_t>() > 0);
}

void throw_damage(const std::string& message) {
  for (const auto& found : comm::gather_texts(*comm::RankContext::require().world, message)) {
    TESSERA_CHECK_AS(Damaged, found.empty(), found);
  }
}

}  // namespace tessera::checkpoint
