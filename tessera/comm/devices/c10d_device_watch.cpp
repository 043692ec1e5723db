#include "tessera/comm/devices/c10d_device_watch.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/comm/core/context.h"

namespace tessera::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenLooks{10};

}  // namespace

DeviceWatch::DeviceWatch(std::shared_ptr<ProcessJob> job)
    : job_(std::move(job)), progress_(Clock::now()), thread_([this] { run(); }) {}

DeviceWatch::~DeviceWatch() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DeviceWatch::add(BackendPtr backend) {
  std::lock_guard lock(mutex_);
  backends_.push_back(std::move(backend));
}

void DeviceWatch::add(WorkPtr work, std::vector<at::Tensor> tensors, std::string what, milliseconds deadline) {
  {
    std::lock_guard lock(mutex_);
    entries_.push_back({std::move(work), std::move(tensors), std::move(what), deadline, Clock::now()});
  }
  changed_.notify_all();
}

void DeviceWatch::fail(const std::string& what, const std::string& reason) {
  for (const auto end = Clock::now() + kReasonComes; !job_->failure() && Clock::now() < end;) {
    std::this_thread::sleep_for(kBetweenLooks);
  }
  if (!job_->failure()) {
    set_failure(c10::str("[comm] rank ", job_->rank(), " failed in ", what, ": ", reason), false);
  }
}

void DeviceWatch::throw_if_failed(const Call& call, uint64_t group) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty() && is_timeout_) {
      TESSERA_THROW(base::CommTimeout, failure_);
    }
    if (!failure_.empty()) {
      TESSERA_THROW(base::CommError, failure_);
    }
  }
  job_->throw_if_failed(&call, group);
}

void DeviceWatch::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    changed_.wait(lock, [&] { return ends_ || (!is_aborted_ && !backends_.empty()); });
    lock.unlock();
    look();
    lock.lock();
    changed_.wait_for(lock, kBetweenLooks, [&] { return ends_; });
  }
}

// Backends and tensors are let go outside of the mutex: that may take long.
void DeviceWatch::look() {
  if (job_->failure()) {
    return abort_all();
  }
  std::vector<Entry> done;
  std::string failed, reason, late;
  {
    std::lock_guard lock(mutex_);
    const auto now = Clock::now();
    const auto is_running = [&](const Entry& each) {
      try {
        if (!each.work->isCompleted()) {
          return true;
        }
        if (const auto error = each.work->exception()) {
          std::rethrow_exception(error);
        }
      } catch (const std::exception& error) {
        failed = each.what;
        reason = base::message_of(error);
      }
      return false;
    };
    const auto first_done = std::stable_partition(entries_.begin(), entries_.end(), is_running);
    std::move(first_done, entries_.end(), std::back_inserter(done));
    entries_.erase(first_done, entries_.end());
    if (!done.empty()) {
      progress_ = now;
    }
    const auto stuck = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& each) {
      return now - std::max(each.begin, progress_) >= each.deadline;
    });
    if (stuck != entries_.end()) {
      late = c10::str("[comm] rank ", job_->rank(), " waited ", stuck->deadline.count(), " ms for its device in ",
                      stuck->what,
                      "; every member has made the call: look for a kernel or a copy that does not end there, or give "
                      "slow devices a longer deadline");
    }
  }
  if (!failed.empty()) {
    fail(failed, reason);
  } else if (!late.empty()) {
    set_failure(late, true);
  }
}

void DeviceWatch::set_failure(const std::string& message, bool is_timeout) {
  {
    std::lock_guard lock(mutex_);
    if (!failure_.empty()) {
      return;
    }
    failure_ = message;
    is_timeout_ = is_timeout;
  }
  job_->fail(message);
}

void DeviceWatch::abort_all() {
  std::vector<BackendPtr> backends;
  std::vector<Entry> entries;
  {
    std::lock_guard lock(mutex_);
    if (is_aborted_) {
      return;
    }
    is_aborted_ = true;
    backends = backends_;
    entries.swap(entries_);
  }
  const auto try_abort = [](auto& what) {
    try {
      what->abort();
    } catch (const std::exception&) {
      // It failed by itself, or cannot be aborted.
    }
  };
  for (const auto& backend : backends) {
    try_abort(backend);
  }
  for (const auto& each : entries) {
    if (!each.work->isCompleted()) {
      try_abort(each.work);
    }
  }
}

}  // namespace tessera::comm
