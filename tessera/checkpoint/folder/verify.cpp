#include "tessera/checkpoint/folder/verify.h"

#include <algorithm>
#include <set>

#include "tessera/base/text.h"
#include "tessera/checkpoint/folder/claim.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/range_reader.h"

namespace tessera::checkpoint {
namespace {

// One look at a checkpoint.
class Inspection {
 public:
  Inspection(Store& store, const std::string& folder, const VerifyOptions& options)
      : store_(store), folder_(folder), options_(options) {}

  std::vector<std::string> run() {
    files_ = store_.list(folder_).files;
    note([&] { manifest_ = read_manifest(content_of(kManifest), path_of(kManifest)); });
    if (!damage_.empty()) {
      return damage_;
    }
    note([&] { verify_step(manifest_, folder_); });
    known_ = {kManifest, kClaim};
    note([&] { look_at_claim(); });
    for (int64_t rank = 0; rank < manifest_.ranks; ++rank) {
      known_.insert(receipt_name(rank));
      note([&] { look_at_receipt(rank); });
    }
    for (size_t file = 0; file < manifest_.files.size(); ++file) {
      known_.insert(manifest_.files[file].name);
      look_at_blocks(static_cast<int64_t>(file));
    }
    for (const auto& name : files_) {
      if (!known_.contains(name)) {
        damage_.push_back("[checkpoint] \"" + path_of(name) + "\" belongs to no save; accepted: files of the manifest");
      }
    }
    return damage_;
  }

 private:
  template <typename Look>
  void note(Look look) {
    try {
      look();
    } catch (const DataError& error) {
      damage_.push_back(base::message_of(error));
    }
  }

  std::string path_of(const std::string& name) const { return path_in(folder_, name); }

  std::string content_of(const std::string& name) {
    auto content = read_all(store_, path_of(name));
    tell(static_cast<int64_t>(content.size()));
    return content;
  }

  void tell(int64_t bytes) const {
    if (options_.progress) {
      options_.progress(bytes);
    }
  }

  void verify_save(const std::string& name, const SaveId& found) const {
    TESSERA_CHECK_AS(DataError, found == manifest_.save, "[checkpoint] \"", path_of(name), "\" is of save ",
                     hex(found.number), " of step ", found.step, ", ", kManifest, " of save ",
                     hex(manifest_.save.number), " of step ", manifest_.save.step, "; accepted: files of one save");
  }

  void look_at_claim() { verify_save(kClaim, read_claim(content_of(kClaim), path_of(kClaim)).save); }

  void look_at_receipt(int64_t rank) {
    const auto name = receipt_name(rank);
    const auto receipt = read_receipt(content_of(name), path_of(name));
    verify_save(name, receipt.save);
    bool fits = receipt.rank == rank;
    for (const auto& file : receipt.files) {
      const auto index = manifest_.file_index(file.name);
      fits = fits && index >= 0 && manifest_.files[static_cast<size_t>(index)] == file;
    }
    TESSERA_CHECK_AS(DataError, fits, "[checkpoint] \"", path_of(name), "\" of rank ", receipt.rank,
                     " has other files than ", kManifest, "; accepted: the receipt that rank ", rank, " left");
  }

  // Every block, also behind one that is damaged.
  void look_at_blocks(int64_t file) {
    const auto& record = manifest_.files[static_cast<size_t>(file)];
    const auto size = store_.try_size(path_of(record.name));
    if (size != record.size) {
      note([&] {
        TESSERA_CHECK_AS(DataError, size, "[checkpoint] \"", path_of(record.name), "\" is missing; it held ",
                         tensors_in(manifest_, file, 0, record.size), "; accepted: a complete checkpoint");
        TESSERA_THROW(DataError, "[checkpoint] \"", path_of(record.name), "\" has ", *size, " bytes, ", kManifest,
                      " says ", record.size, "; it held ",
                      tensors_in(manifest_, file, std::min(*size, record.size), record.size),
                      " behind; accepted: a complete checkpoint");
      });
      return;
    }
    RangeReader reader(store_, folder_, manifest_);
    std::string block(static_cast<size_t>(std::min(record.size, manifest_.save.block_size)), '\0');
    for (int64_t begin = 0; begin < record.size; begin += manifest_.save.block_size) {
      const auto end = std::min(record.size, begin + manifest_.save.block_size);
      note([&] { reader.read(file, begin, end, block.data()); });
      tell(end - begin);
    }
  }

  Store& store_;
  const std::string& folder_;
  const VerifyOptions& options_;
  Manifest manifest_;
  std::vector<std::string> files_;
  std::set<std::string> known_;
  std::vector<std::string> damage_;
};

}  // namespace

std::vector<std::string> find_damage(Store& store, const std::string& folder, const VerifyOptions& options) {
  return Inspection(store, folder, options).run();
}

void verify_checkpoint(Store& store, const std::string& folder, const VerifyOptions& options) {
  const auto damage = find_damage(store, folder, options);
  TESSERA_CHECK_AS(DataError, damage.empty(), base::join(damage, " "));
}

}  // namespace tessera::checkpoint
