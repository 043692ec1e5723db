#include "tessera/checkpoint/format/safetensors.h"

#include <algorithm>
#include <map>

#include <ATen/core/grad_mode.h>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/format/safetensors_file.h"
#include "tessera/checkpoint/format/safetensors_header.h"

namespace tessera::checkpoint {
namespace {

Header header_of(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  std::vector<Entry> entries;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  }
  return lay_out(std::move(entries), metadata);
}

void verify_target(const Entry& entry, const at::Tensor& target, const std::string& path) {
  TESSERA_CHECK_AS(DataError, entry.dtype == target.scalar_type() && target.sizes() == at::IntArrayRef(entry.sizes),
                   "[checkpoint] \"", path, "\" has ", entry.name, " of ", name_of_dtype(entry.dtype), " and sizes ",
                   at::IntArrayRef(entry.sizes), ", the model has ", name_of_dtype(target.scalar_type()), " and sizes ",
                   target.sizes(), "; accepted: the file of a model with this configuration");
}

}  // namespace

void verify_plain(const std::string& name, const at::Tensor& tensor) {
  TESSERA_CHECK(tensor.device().is_cpu() && tensor.layout() == at::kStrided && tensor.has_storage(), "[checkpoint] ",
                name, " is no plain tensor on the CPU; accepted: one that is whole, as full_tensor(x).cpu() gives it");
}

class SafetensorsWriter::File {
 public:
  File(const std::string& path, Header header) : header_(std::move(header)), text_(write_header(header_)), file_(path) {
    const uint64_t length = text_.size();
    file_.write(&length, sizeof(length));
    file_.write(text_);
  }

  void write(const at::Tensor& tensor) {
    TESSERA_CHECK(next_ < header_.entries.size(), "[checkpoint] a tensor more than the ", next_, " of the file");
    const auto& entry = header_.entries[next_++];
    verify_plain(entry.name, tensor);
    TESSERA_CHECK(tensor.scalar_type() == entry.dtype && tensor.sizes() == at::IntArrayRef(entry.sizes),
                  "[checkpoint] ", entry.name, " of ", tensor.scalar_type(), tensor.sizes(), " where the file has ",
                  entry.dtype, at::IntArrayRef(entry.sizes));
    const auto contiguous = tensor.contiguous();
    file_.write(contiguous.data_ptr(), contiguous.nbytes());
  }

  void commit() {
    TESSERA_CHECK(next_ == header_.entries.size(), "[checkpoint] ", next_, " of the ", header_.entries.size(),
                  " tensors of a file were written");
    file_.commit();
  }

 private:
  const Header header_;
  const std::string text_;  // before the file, which is not touched if it cannot be written
  base::AtomicFile file_;
  size_t next_ = 0;
};

SafetensorsWriter::SafetensorsWriter(const std::string& path, const std::vector<NamedTensor>& tensors,
                                     const Metadata& metadata)
    : file_(std::make_unique<File>(path, header_of(tensors, metadata))) {}

SafetensorsWriter::~SafetensorsWriter() = default;

void SafetensorsWriter::write(const at::Tensor& tensor) { file_->write(tensor); }

void SafetensorsWriter::commit() { file_->commit(); }

std::vector<NamedTensor> in_file_order(std::vector<NamedTensor> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const auto a_size = a.tensor.element_size(), b_size = b.tensor.element_size();
    return a_size != b_size ? a_size > b_size : a.name < b.name;
  });
  return tensors;
}

void save_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  for (const auto& [name, tensor] : tensors) {
    verify_plain(name, tensor);
  }
  const auto ordered = in_file_order(tensors);
  SafetensorsWriter writer(path, ordered, metadata);
  for (const auto& [name, tensor] : ordered) {
    writer.write(tensor);
  }
  writer.commit();
}

Tensors load_safetensors(const std::string& path) {
  SafetensorsFile file(path);
  Tensors all{.tensors = {}, .metadata = file.header().metadata};
  for (const auto& entry : file.header().entries) {
    all.tensors.push_back({entry.name, file.read(entry)});
  }
  return all;
}

void load_into(const std::string& path, const std::vector<NamedTensor>& targets) {
  SafetensorsFile file(path);
  const auto& header = file.header();
  std::map<std::string, at::Tensor> by_name;
  for (const auto& [name, tensor] : targets) {
    by_name[name] = tensor;
  }
  for (const auto& entry : header.entries) {
    const auto target = by_name.find(entry.name);
    TESSERA_CHECK_AS(DataError, target != by_name.end(), "[checkpoint] \"", path, "\" has ", entry.name,
                     ", which the model lacks; accepted: the file of a model with this configuration");
    verify_target(entry, target->second, path);
  }
  for (const auto& [name, tensor] : targets) {
    TESSERA_CHECK_AS(DataError,
                     std::any_of(header.entries.begin(), header.entries.end(),
                                 [&](const Entry& entry) { return entry.name == name; }),
                     "[checkpoint] \"", path, "\" lacks ", name,
                     " of the model; accepted: the file of a model with this configuration");
  }
  const at::NoGradGuard no_grad;
  for (const auto& entry : header.entries) {
    by_name[entry.name].copy_(file.read(entry));
  }
}

}  // namespace tessera::checkpoint
