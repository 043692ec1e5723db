#include "tessera/checkpoint/format/range_reader.h"

#include <algorithm>
#include <cstring>

#include <ATen/EmptyTensor.h>

#include "tessera/base/text.h"
#include "tessera/checkpoint/format/box_runs.h"
#include "tessera/checkpoint/format/weight_index.h"

namespace tessera::checkpoint {
namespace {

constexpr size_t kNamesInMessage = 4;

}  // namespace

void RangeReader::read(int64_t file, int64_t begin, int64_t end, void* data) {
  const auto& record = manifest_.files.at(static_cast<size_t>(file));
  TESSERA_CHECK_AS(DataError, begin >= 0 && begin <= end && end <= record.size, "[checkpoint] bytes ", begin, " to ",
                   end, " of \"", path_in(folder_, record.name), "\" of ", record.size,
                   " bytes; accepted: bytes that the file has");
  auto* to = static_cast<char*>(data);
  const int64_t size = manifest_.save.block_size;
  for (int64_t at = begin; at < end;) {
    const int64_t block = at / size;
    const int64_t block_begin = block * size, block_end = std::min(block_begin + size, record.size);
    const int64_t until = std::min(end, block_end);
    if (at == block_begin && until == block_end && !(kept_file_ == file && kept_index_ == block)) {
      read_block(record, block, to);
    } else {
      std::memcpy(to, kept_block(file, block).data() + (at - block_begin), static_cast<size_t>(until - at));
    }
    to += until - at;
    at = until;
  }
}

const std::string& RangeReader::kept_block(int64_t file, int64_t block) {
  if (kept_file_ != file || kept_index_ != block) {
    const auto& record = manifest_.files[static_cast<size_t>(file)];
    kept_file_ = -1;
    kept_.resize(
        static_cast<size_t>(std::min(manifest_.save.block_size, record.size - block * manifest_.save.block_size)));
    read_block(record, block, kept_.data());
    kept_file_ = file;
    kept_index_ = block;
  }
  return kept_;
}

void RangeReader::read_block(const FileRecord& file, int64_t block, char* data) {
  const int64_t begin = block * manifest_.save.block_size;
  const int64_t end = std::min(begin + manifest_.save.block_size, file.size);
  const auto fail = [&](const std::string& what) {
    TESSERA_THROW(DataError, "[checkpoint] block ", block, " (bytes ", begin, " to ", end, ") of \"",
                  path_in(folder_, file.name), "\" ", what, "; it holds ",
                  tensors_in(manifest_, &file - manifest_.files.data(), begin, end),
                  "; accepted: a checkpoint as it was written");
  };
  try {
    store_.read(path_in(folder_, file.name), begin, data, static_cast<size_t>(end - begin));
  } catch (const DataError& error) {
    fail("cannot be read: " + base::message_of(error));
  }
  bytes_read_ += end - begin;
  if (checksum(data, static_cast<size_t>(end - begin)) != file.blocks[static_cast<size_t>(block)]) {
    fail("is damaged: it has another checksum than when it was written");
  }
}

at::Tensor RangeReader::read_box(const TensorTable& tensor, const Box& box) {
  std::vector<int64_t> sizes;
  for (size_t d = 0; d < box.size(); ++d) {
    TESSERA_CHECK(
        box.size() == tensor.sizes.size() && box[d].begin >= 0 && box[d].size() >= 0 && box[d].end <= tensor.sizes[d],
        "[checkpoint] ", entry_name(tensor.name, {}, box), " of sizes ", at::IntArrayRef(tensor.sizes),
        "; accepted: a box within the tensor");
    sizes.push_back(box[d].size());
  }
  auto result = at::Tensor(at::detail::empty_cpu(sizes, tensor.dtype));
  auto* data = static_cast<char*>(result.data_ptr());
  tensor.for_each_slice(box, [&](const StoredSlice& slice) { read_slice(tensor, slice, box, data); });
  return result;
}

void RangeReader::read_slice(const TensorTable& tensor, const StoredSlice& slice, const Box& wanted, char* data) {
  const auto element = static_cast<int64_t>(at::elementSize(tensor.dtype));
  const int64_t begin = manifest_.files[static_cast<size_t>(slice.file)].data_begin + slice.begin;
  for_each_run(reshard::intersect(slice.box, wanted), slice.box, wanted, [&](int64_t at, int64_t to, int64_t elements) {
    read(slice.file, begin + at * element, begin + (at + elements) * element, data + to * element);
  });
}

std::vector<std::pair<std::string, std::string>> small_files_of(const Manifest& manifest, RangeReader& reader) {
  std::vector<std::pair<std::string, std::string>> files;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const auto& file = manifest.files[i];
    if (file.data_begin == 0 && file.name != kWeightIndex) {
      std::string content(static_cast<size_t>(file.size), '\0');
      reader.read(static_cast<int64_t>(i), 0, file.size, content.data());
      files.emplace_back(file.name, std::move(content));
    }
  }
  return files;
}

std::string tensors_in(const Manifest& manifest, int64_t file, int64_t begin, int64_t end) {
  std::vector<std::string> names;
  const int64_t data = manifest.files[static_cast<size_t>(file)].data_begin;
  for (const auto& tensor : manifest.tensors) {
    for (int64_t cell = 0; cell < tensor.slice_count(); ++cell) {
      if (tensor.files.at(cell) != file) {
        continue;
      }
      const auto slice = tensor.slice(cell);
      const int64_t from = data + slice.begin;
      if (std::max(from, begin) < std::min(from + tensor.bytes_of(slice.box), end)) {
        names.push_back(entry_name(tensor.name, tensor.sizes, slice.box));
      }
    }
  }
  const size_t count = names.size();
  names.resize(std::min(count, kNamesInMessage));
  return (count == 0 ? "no tensor" : base::join(names, ", ")) +
         (count > kNamesInMessage ? " and " + std::to_string(count - kNamesInMessage) + " more" : "");
}

}  // namespace tessera::checkpoint
