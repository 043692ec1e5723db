#include "tessera/checkpoint/ranks/save_gathered.h"

#include <optional>

#include "tessera/comm/core/context.h"
#include "tessera/dtensor/front/gather_to.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kWriter = 0;

}  // namespace

void save_gathered(const std::string& path, std::vector<NamedTensor> tensors, const Metadata& metadata) {
  auto& context = comm::RankContext::require();
  const auto ordered = in_file_order(std::move(tensors));
  std::optional<SafetensorsWriter> writer;
  if (context.rank == kWriter) {
    writer.emplace(path, ordered, metadata);
  }
  for (const auto& [name, tensor] : ordered) {
    const auto whole = dtensor::gather_to(kWriter, tensor);
    if (writer) {
      writer->write(whole.cpu());
    }
  }
  if (writer) {
    writer->commit();
  }
  context.world->barrier();
}

}  // namespace tessera::checkpoint
