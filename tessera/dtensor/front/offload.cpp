#include "tessera/dtensor/front/offload.h"

#include <filesystem>
#include <map>
#include <set>

#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>

#include "tessera/base/error.h"
#include "tessera/base/page_file.h"
#include "tessera/dtensor/dispatch/saved_results.h"
#include "tessera/dtensor/front/recomputable.h"
#include "tessera/dtensor/state/state.h"

namespace tessera::dtensor {

namespace {

using Tensors = std::vector<at::Tensor>;
using Body = std::function<Tensors(const Tensors&)>;
using base::PageFile;

// What a rank keeps of its offloaded bodies.
struct Offloaded {
  std::shared_ptr<PageFile> file;  // null: none yet
  SavedResults left;               // what bodies so far left in memory
};

Offloaded& offloaded_of(RankState& state) {
  static const char kSlot = 0;
  std::shared_ptr<void>& slot = state.ctx.slot(&kSlot);
  if (!slot) {
    slot = std::make_shared<Offloaded>();
  }
  return *static_cast<Offloaded*>(slot.get());
}

std::shared_ptr<PageFile> make_file(const std::string& folder) {
  return std::make_shared<PageFile>(folder, "offload", "what autograd saved");
}

// The parts that lie in one memory.
struct Memory {
  const c10::Storage* storage = nullptr;
  std::set<const c10::TensorImpl*> parts;
};

// The memory now lies in the file, for whoever has it.
void move_to(const std::shared_ptr<PageFile>& file, c10::StorageImpl& storage) {
  void* begin = file->add(storage.nbytes(), storage.data());
  storage.set_data_ptr_noswap(
      c10::InefficientStdFunctionContext::makeDataPtr(begin, [file](void* at) { file->remove(at); }, storage.device()));
}

// Nobody else has the memory, and it is the allocator's.
bool may_move(const Memory& memory, const PageFile* file) {
  const c10::Storage& storage = *memory.storage;
  return storage.nbytes() >= PageFile::kPage && storage.allocator() == c10::GetAllocator(c10::kCPU) &&
         storage.use_count() == memory.parts.size() && !(file && file->has(storage.data()));
}

void move_saved(RankState& state, const Tensors& results) {
  Offloaded& offloaded = offloaded_of(state);
  std::set<const c10::StorageImpl*> stay;
  for (const at::Tensor& result : results) {
    if (is_dtensor(result) && meta_of(result)->local.defined()) {
      stay.insert(meta_of(result)->local.storage().unsafeGetStorageImpl());
    }
  }
  std::map<c10::StorageImpl*, Memory> memories;
  const auto metas = offloaded.left.alive();
  for (const MetaPtr& meta : metas) {
    TESSERA_CHECK(meta->local.is_cpu(), "[offload] what is saved of ", meta->spec.str(), " lies on ",
                  meta->local.device(), " (rank ", state.ctx.rank, "); accepted: tensors on the CPU");
    c10::StorageImpl* storage = meta->local.storage().unsafeGetStorageImpl();
    if (meta->local.use_count() > 1) {
      stay.insert(storage);  // the program has the part itself, as a plain tensor, or a recomputed body keeps it
    }
    if (!meta->parameter) {
      Memory& memory = memories[storage];
      memory.storage = &meta->local.storage();
      memory.parts.insert(meta->local.unsafeGetTensorImpl());
    }
  }
  for (const auto& [storage, memory] : memories) {
    if (stay.contains(storage) || !may_move(memory, offloaded.file.get())) {
      continue;
    }
    if (!offloaded.file) {
      offloaded.file = make_file(std::filesystem::temp_directory_path().string());
    }
    move_to(offloaded.file, *storage);
  }
}

}  // namespace

Tensors offload(const Body& body, const Tensors& inputs) {
  if (!at::GradMode::is_enabled()) {
    return body(inputs);
  }
  RankState& state = RankState::require();
  SavedResults& saved = offloaded_of(state).left;
  for (const at::Tensor& input : inputs) {
    if (input.defined() && !(input.is_leaf() && input.requires_grad())) {
      saved.note(input);
    }
  }
  Tensors results;
  {
    const SavedResults::Run run(state, saved);
    results = body(inputs);
  }
  move_saved(state, results);
  return results;
}

void set_offload_folder(const std::string& folder) { offloaded_of(RankState::require()).file = make_file(folder); }

int64_t offloaded_bytes() {
  const auto& file = offloaded_of(RankState::require()).file;
  return file ? file->bytes() : 0;
}

at::Tensor run_planned(const Recomputable& block, const at::Tensor& input,
                       std::function<at::Tensor(const Tensors&)> body) {
  const auto run = [&](const Tensors& inputs) {
    return Tensors{block.is_recomputed() ? recompute(body, inputs, block.recompute_options()) : body(inputs)};
  };
  return block.is_offloaded() ? offload(run, {input})[0] : run({input})[0];
}

}  // namespace tessera::dtensor
