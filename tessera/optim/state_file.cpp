#include "tessera/optim/state_file.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/dtensor/record/interception.h"

namespace tessera::optim {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The memory of a plain tensor, or of a rank's part.
const at::Tensor& part_of(const at::Tensor& tensor) {
  return dtensor::is_dtensor(tensor) ? dtensor::meta_of(tensor)->local : tensor;
}

bool is_alone(const at::Tensor& part) {
  return part.is_cpu() && part.is_non_overlapping_and_dense() && part.storage().nbytes() == part.nbytes() &&
         part.storage().use_count() == 1;
}

}  // namespace

class StateFile::Mapping {
 public:
  explicit Mapping(const std::string& folder) : folder_(folder), file_(open_nameless(folder)) {}
  ~Mapping() { ::close(file_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  bool has(const void* begin) const {
    const std::scoped_lock lock(mutex_);
    return places_.contains(begin);
  }

  void* add(size_t bytes) {
    const size_t size = whole_pages(bytes);
    const std::scoped_lock lock(mutex_);
    // Room is taken now: a full disk would kill who writes to the memory.
    const int failed = ::posix_fallocate(file_, static_cast<off_t>(end_), static_cast<off_t>(size));
    TESSERA_CHECK_AS(DataError, failed == 0, "[StateFile] no room in \"", folder_, "\" for ",
                     base::human_bytes(static_cast<int64_t>(bytes)), " more of an optimizer's state (",
                     base::human_bytes(static_cast<int64_t>(end_)), " are there): ", std::strerror(failed),
                     "; accepted: a folder on a disk with room for what the rank's optimizer keeps");
    void* begin = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file_, static_cast<off_t>(end_));
    TESSERA_CHECK_AS(DataError, begin != MAP_FAILED, "[StateFile] cannot map ",
                     base::human_bytes(static_cast<int64_t>(size)), " of a file in \"", folder_,
                     "\": ", std::strerror(errno), "; accepted: a folder on a disk of this machine");
    places_.emplace(begin, Place{end_, size, bytes});
    end_ += size;
    return begin;
  }

  void remove(void* begin) {
    const std::scoped_lock lock(mutex_);
    const auto found = places_.extract(begin);
    ::munmap(begin, found.mapped().size);
    ::fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(found.mapped().offset),
                static_cast<off_t>(found.mapped().size));  // where the system can
  }

  // What was written goes to the disk, and no memory is left mapped.
  void release() {
    const std::scoped_lock lock(mutex_);
    ::sync_file_range(file_, 0, 0, SYNC_FILE_RANGE_WRITE);
    for (const auto& [begin, place] : places_) {
      ::madvise(const_cast<void*>(begin), place.size, MADV_DONTNEED);
    }
  }

  int64_t bytes() const {
    const std::scoped_lock lock(mutex_);
    size_t all = 0;
    for (const auto& [begin, place] : places_) {
      all += place.bytes;
    }
    return static_cast<int64_t>(all);
  }

 private:
  struct Place {
    size_t offset, size, bytes;
  };

  static int open_nameless(const std::string& folder) {
    std::string path = folder + "/tessera_state_XXXXXX";
    const int file = ::mkostemp(path.data(), O_CLOEXEC);
    TESSERA_CHECK_AS(DataError, file >= 0, "[StateFile] cannot make a file in \"", folder, "\": ", std::strerror(errno),
                     "; accepted: a folder that is there, on a disk that may be written to");
    ::unlink(path.c_str());
    return file;
  }

  const std::string folder_;
  const int file_;
  mutable std::mutex mutex_;  // a tensor may die on any thread
  std::map<const void*, Place> places_;
  size_t end_ = 0;
};

StateFile::StateFile(const std::string& folder) : mapping_(std::make_shared<Mapping>(folder)) {}

void StateFile::keep(const std::vector<at::Tensor>& state) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& tensor : state) {
    const at::Tensor part = tensor.defined() ? part_of(tensor) : tensor;
    if (!part.defined() || part.nbytes() < kPage || !is_alone(part) || mapping_->has(part.const_data_ptr())) {
      continue;
    }
    dtensor::LocalScope scope;
    void* begin = mapping_->add(part.nbytes());
    const at::Tensor moved = at::from_blob(
        begin, part.sizes(), part.strides(), [mapping = mapping_](void* at) { mapping->remove(at); }, part.options());
    moved.copy_(part);
    if (dtensor::is_dtensor(tensor)) {
      dtensor::Meta& meta = *dtensor::meta_of(tensor);
      meta.replace(moved, meta.spec);
    } else {
      tensor.unsafeGetTensorImpl()->set_storage_and_dtype(moved.storage(), moved.dtype());
    }
  }
  mapping_->release();
}

int64_t StateFile::bytes() const { return mapping_->bytes(); }

}  // namespace tessera::optim
