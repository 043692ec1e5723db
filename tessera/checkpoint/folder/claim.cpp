#include "tessera/checkpoint/folder/claim.h"

#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/receipt.h"
#include "tessera/comm/processes/sockets.h"

namespace tessera::checkpoint {
namespace {

constexpr const char* kClaimKind = "tessera claim";
constexpr int64_t kClaimVersion = 1;

// Who has the folder, as far as its claim can be read.
std::string owner_of(Store& store, const std::string& path) {
  try {
    const auto claim = read_claim(read_all(store, path), path);
    return "save " + hex(claim.save.number) + " of " + claim.owner;
  } catch (const DataError&) {
    return "a save that did not come to say who it is";
  }
}

// Why a step's folder that has a claim is not to be had.
std::string why_taken(Store& store, const std::string& folder, int64_t step) {
  const auto found = look_at_step(store, folder, step);
  switch (found.state) {
    case StepState::kWhole:
      return "that step is saved there already; accepted: another step or another folder, or first remove this one";
    case StepState::kDamaged:
      return "a checkpoint that is damaged lies there (" + found.reason +
             "); accepted: another step or another folder, or first move this one away";
    case StepState::kUnfinished: break;
  }
  return "it is claimed by " + owner_of(store, path_in(folder, kClaim)) +
         ", which is under way or was killed; accepted: a step that no other job saves; what killed saves left, "
         "remove_unfinished takes away";
}

}  // namespace

std::string write_claim(const Claim& claim) {
  return seal(begin_document(kClaimKind, kClaimVersion) + text_of(claim.save) +
              ",\"owner\":" + nlohmann::json(claim.owner).dump());
}

Claim read_claim(std::string_view text, const std::string& path) {
  Document document(text, path, kClaimKind, kClaimVersion);
  Claim claim{.save = take_save(document), .owner = document.take<std::string>("owner")};
  document.finish();
  return claim;
}

std::string claim_step(Store& store, const std::string& run, const Claim& claim) {
  const auto folder = step_folder(run, claim.save.step);
  const auto path = path_in(folder, kClaim);
  store.make_folder(folder);
  const auto files = store.list(folder).files;
  TESSERA_CHECK_AS(DataError, files.empty() || store.try_size(path), "[checkpoint] cannot save step ", claim.save.step,
                   " to \"", folder, "\", which has no claim but \"", files.front(),
                   "\"; accepted: an empty folder, or none");
  try {
    write_new(store, path, write_claim(claim));
  } catch (const FileExists&) {
    TESSERA_THROW(DataError, "[checkpoint] cannot save step ", claim.save.step, " to \"", folder,
                  "\": ", why_taken(store, folder, claim.save.step));
  }
  return folder;
}

SaveId begin_save(Store& store, const std::string& run, int64_t step, int64_t block_size) {
  TESSERA_CHECK(block_size > 0 && block_size % 8 == 0, "[checkpoint] blocks of ", block_size,
                " bytes; accepted: a multiple of 8");
  const SaveId save{.number = comm::random_token(), .step = step, .block_size = block_size};
  store.make_folder(run);
  claim_step(store, run, {save, comm::process_name()});
  return save;
}

}  // namespace tessera::checkpoint
