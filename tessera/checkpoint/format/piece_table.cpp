#include "tessera/checkpoint/format/piece_table.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/runs.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/format/safetensors_header.h"

namespace tessera::checkpoint {
namespace {

using base::Runs;
using nlohmann::json;

constexpr int64_t kMostDims = 64;

std::vector<int64_t> flat(std::vector<int64_t> values) { return Runs(values).flat(); }

json json_of_names(const std::vector<PlacedPiece>& pieces) {
  json all = json::array();
  std::string before;
  for (const auto& piece : pieces) {
    const auto end = std::mismatch(before.begin(), before.end(), piece.name.begin(), piece.name.end()).first;
    auto shared = static_cast<size_t>(end - before.begin());
    while (shared > 0 && shared < piece.name.size() && (piece.name[shared] & 0xc0) == 0x80) {
      --shared;  // JSON has whole characters
    }
    all.push_back(shared);
    all.push_back(piece.name.substr(shared));
    before = piece.name;
  }
  return all;
}

json json_of_dtypes(const std::vector<PlacedPiece>& pieces) {
  json all = json::array();
  for (size_t begin = 0, end = 0; begin < pieces.size(); begin = end) {
    while (end < pieces.size() && pieces[end].dtype == pieces[begin].dtype) {
      ++end;
    }
    all.push_back(name_of_dtype(pieces[begin].dtype));
    all.push_back(end - begin);
  }
  return all;
}

Runs runs_of(const json& columns, const char* name) {
  return Runs::from_flat(columns.at(name).get<std::vector<int64_t>>());
}

// Reads the columns piece by piece.
class Reader {
 public:
  explicit Reader(const json& columns)
      : names_(columns.at("names")),
        dtypes_(columns.at("dtypes")),
        hashes_(try_parse_base64(columns.at("hashes").get<std::string>()).value_or(std::vector<uint64_t>())),
        dims_(runs_of(columns, "dims")),
        sizes_(runs_of(columns, "sizes")),
        boxes_(runs_of(columns, "boxes")),
        files_(runs_of(columns, "files")),
        begins_(runs_of(columns, "begins")) {
    const auto count = static_cast<int64_t>(names_.size() / 2);
    TESSERA_CHECK(columns.size() == 8 && names_.size() % 2 == 0 && static_cast<int64_t>(hashes_.size()) == count &&
                      dims_.size() == count && files_.size() == count && begins_.size() == count,
                  "[checkpoint] columns of other lengths than ", count, " names; accepted: those of pieces");
  }

  int64_t count() const { return dims_.size(); }

  PlacedPiece next() {
    PlacedPiece piece{.name = next_name(), .dtype = next_dtype(), .sizes = {}, .box = {}};
    const int64_t dims = dims_.at(piece_);
    TESSERA_CHECK(dims >= 0 && dims <= kMostDims, "[checkpoint] ", piece.name, " has ", dims, " dims");
    for (int64_t d = 0; d < dims; ++d, ++dim_) {
      piece.sizes.push_back(sizes_.at(dim_));
      piece.box.push_back({boxes_.at(2 * dim_), boxes_.at(2 * dim_ + 1)});
    }
    piece.value_hash = hashes_[static_cast<size_t>(piece_)];
    piece.file = files_.at(piece_);
    piece.begin = begins_.at(piece_++);
    return piece;
  }

  // After the last.
  void finish() const {
    TESSERA_CHECK(sizes_.size() == dim_ && boxes_.size() == 2 * dim_ && left_ == 0 && dtype_ == dtypes_.size(),
                  "[checkpoint] more sizes, boxes or dtypes than pieces");
  }

 private:
  std::string next_name() {
    const auto at = static_cast<size_t>(2 * piece_);
    const auto shared = names_.at(at).get<size_t>();
    TESSERA_CHECK(shared <= name_.size(), "[checkpoint] a name that shares ", shared, " characters with ", name_);
    name_ = name_.substr(0, shared) + names_.at(at + 1).get<std::string>();
    return name_;
  }

  at::ScalarType next_dtype() {
    if (left_ == 0) {
      const auto found = try_dtype_of(dtypes_.at(dtype_).get<std::string>());
      left_ = dtypes_.at(dtype_ + 1).get<int64_t>();
      TESSERA_CHECK(found && left_ > 0, "[checkpoint] no dtype: ", dtypes_.at(dtype_).dump());
      now_ = *found;
      dtype_ += 2;
    }
    --left_;
    return now_;
  }

  const json& names_;
  const json& dtypes_;
  const std::vector<uint64_t> hashes_;
  const Runs dims_, sizes_, boxes_, files_, begins_;
  int64_t piece_ = 0, dim_ = 0;  // those that come next
  size_t dtype_ = 0;
  int64_t left_ = 0;  // pieces of the dtype `now_`
  at::ScalarType now_ = at::kFloat;
  std::string name_;  // the last one
};

void verify_fits(const PlacedPiece& piece, const std::vector<FileRecord>& files) {
  bool fits = piece.file >= 0 && piece.file < static_cast<int64_t>(files.size()) && piece.begin >= 0;
  std::vector<int64_t> sizes;
  for (size_t d = 0; fits && d < piece.sizes.size(); ++d) {
    const auto& run = piece.box[d];
    fits = 0 <= run.begin && run.begin <= run.end && run.end <= piece.sizes[d];
    sizes.push_back(run.size());
  }
  const auto bytes = fits ? byte_count(sizes, piece.dtype) : std::nullopt;
  TESSERA_CHECK(bytes && *bytes <= files[static_cast<size_t>(piece.file)].size &&
                    piece.begin <= files[static_cast<size_t>(piece.file)].size -
                                       files[static_cast<size_t>(piece.file)].data_begin - *bytes,
                "[checkpoint] ", entry_name(piece.name, {}, piece.box), " of ", at::IntArrayRef(piece.sizes),
                " from byte ", piece.begin, " of file ", piece.file, "; accepted: a box of a tensor within a file");
}

}  // namespace

json to_json(const std::vector<PlacedPiece>& pieces) {
  std::vector<int64_t> dims, sizes, boxes, files, begins;
  std::vector<uint64_t> hashes;
  for (const auto& piece : pieces) {
    dims.push_back(static_cast<int64_t>(piece.sizes.size()));
    sizes.insert(sizes.end(), piece.sizes.begin(), piece.sizes.end());
    for (const auto& run : piece.box) {
      boxes.insert(boxes.end(), {run.begin, run.end});
    }
    hashes.push_back(piece.value_hash);
    files.push_back(piece.file);
    begins.push_back(piece.begin);
  }
  return {{"names", json_of_names(pieces)}, {"dtypes", json_of_dtypes(pieces)},
          {"hashes", base64(hashes)},       {"dims", flat(dims)},
          {"sizes", flat(sizes)},           {"boxes", flat(boxes)},
          {"files", flat(files)},           {"begins", flat(begins)}};
}

std::vector<PlacedPiece> pieces_from(const json& columns, const std::vector<FileRecord>& files) {
  Reader reader(columns);
  std::vector<PlacedPiece> pieces;
  for (int64_t i = 0; i < reader.count(); ++i) {
    pieces.push_back(reader.next());
    verify_fits(pieces.back(), files);
  }
  reader.finish();
  return pieces;
}

}  // namespace tessera::checkpoint
