#include "tessera/checkpoint/ranks/save.h"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <future>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/catalogue/catalogue_json.h"
#include "tessera/checkpoint/folder/claim.h"
#include "tessera/checkpoint/folder/commit.h"
#include "tessera/checkpoint/folder/names.h"
#include "tessera/checkpoint/folder/rank_files.h"
#include "tessera/checkpoint/folder/steps.h"
#include "tessera/checkpoint/format/numbers.h"
#include "tessera/checkpoint/ranks/agree.h"
#include "tessera/checkpoint/ranks/stage.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/core/gather_texts.h"

namespace tessera::checkpoint {
namespace {

constexpr int64_t kCommitter = 0;  // makes the folder, and the manifest
constexpr std::chrono::milliseconds kPoll(10);

// The committer's number on every rank. Collective.
SaveId agree_on_save(Store& store, const std::string& run, int64_t step, int64_t block_size) {
  const auto& context = comm::RankContext::require();
  SaveId save{.number = 0, .step = step, .block_size = block_size};
  if (context.rank == kCommitter) {
    save = begin_save(store, run, step, block_size);
  }
  const auto numbers = comm::gather_texts(*context.world, context.rank == kCommitter ? hex(save.number) : "");
  save.number = try_parse_hex(numbers.at(kCommitter)).value_or(0);
  return save;
}

// What the thread of one rank writes.
struct Task {
  std::shared_ptr<Store> store;
  std::string run, folder;
  SaveId save;
  int64_t rank = 0, ranks = 1;
  std::shared_ptr<HostMemory> memory;  // in which copies lie
  std::vector<Piece> slices;
  std::future<WholeTensors> whole;  // they may still be gathered when the thread begins
  std::string catalogue;            // the committer's alone
  SaveOptions options;
};

void write_own_files(Task& task) {
  RankFiles files(*task.store, task.folder, task.save, task.rank);
  for (const auto& [name, content] : task.options.files) {
    files.write_file(name, content);
  }
  if (!task.slices.empty()) {
    files.write_part(state_part_name(task.rank), std::move(task.slices));
  }
  if (auto whole = task.whole.get(); whole.part >= 0) {
    files.write_part(model_part_name(whole.part, whole.parts), std::move(whole.pieces));
  }
  files.leave_receipt();
}

// `is_wanted`: false once the job has failed.
void run_task(Task& task, const std::atomic<bool>& is_wanted) {
  write_own_files(task);
  if (task.rank != kCommitter) {
    return;
  }
  commit(*task.store, task.folder, task.save, task.ranks, nlohmann::json::parse(task.catalogue),
         {.deadline = task.options.deadline, .sleep = [&](double seconds) {
            TESSERA_CHECK_AS(DataError, is_wanted, "[checkpoint] \"", task.folder,
                             "\" was given up: the job failed while ranks were writing");
            std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
          }});
  if (task.options.keep > 0) {
    prune(*task.store, task.run, {.keep = task.options.keep});
  }
}

}  // namespace

// The thread of one rank and how it ended.
class Saving::Writer {
 public:
  explicit Writer(Task task) : thread_([this, task = std::move(task)]() mutable { run(task); }) {}
  ~Writer() {
    if (std::uncaught_exceptions() > 0) {
      give_up();
    }
    thread_.join();
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void give_up() { is_wanted_ = false; }

  bool is_done() const { return is_done_.load(std::memory_order_acquire); }

  // Waits a little, or until it is done.
  void wait() const {
    std::unique_lock lock(mutex_);
    done_.wait_for(lock, kPoll, [this] { return is_done(); });
  }

  void check() const {
    if (is_done() && error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  void run(Task& task) {
    try {
      run_task(task, is_wanted_);
    } catch (...) {
      error_ = std::current_exception();
    }
    task.memory.reset();  // the rank may have it for its next save
    const std::scoped_lock lock(mutex_);
    is_done_.store(true, std::memory_order_release);
    done_.notify_one();
  }

  std::exception_ptr error_;  // read once it is done
  std::atomic<bool> is_wanted_ = true;
  std::atomic<bool> is_done_ = false;
  mutable std::mutex mutex_;
  mutable std::condition_variable done_;
  std::thread thread_;  // last: it uses the others
};

Saving::Saving(std::string folder, std::unique_ptr<Writer> writer)
    : folder_(std::move(folder)), writer_(std::move(writer)) {}

Saving::~Saving() = default;

void Saving::check() const { writer_->check(); }

void Saving::give_up() { writer_->give_up(); }

void Saving::finish() {
  wait_for_all([this] {
    writer_->wait();
    check();
    return writer_->is_done();
  });
  check();
}

std::unique_ptr<Saving> start_save(std::shared_ptr<Store> store, const std::string& run, int64_t step,
                                   const Contents& contents, const SaveOptions& options) {
  TESSERA_CHECK(options.keep >= 0, "[checkpoint] to keep ", options.keep,
                " checkpoints; accepted: how many, or 0 for all");
  const auto& context = comm::RankContext::require();
  const auto catalogue = catalogue_of(contents);
  const SaveId save = agree_on_save(*store, run, step, options.block_size);
  const StageOptions how{.in_slices = options.in_slices, .copies = options.copies};
  const auto memory = HostMemory::of_thread();
  std::promise<WholeTensors> whole;
  if (options.copies) {  // the sooner the program goes on
    whole.set_value(stage_whole(contents, catalogue, how, *memory));
  }
  Task task{.store = std::move(store),
            .run = run,
            .folder = step_folder(run, step),
            .save = save,
            .rank = context.rank,
            .ranks = context.world_size,
            .memory = memory,
            .slices = stage_slices(contents, catalogue, how, *memory),
            .whole = whole.get_future(),
            .catalogue = context.rank == kCommitter ? catalogue::to_json(catalogue) : "",
            .options = options};
  if (context.rank != kCommitter) {
    task.options.files.clear();
  }
  auto folder = task.folder;
  auto writer = std::make_unique<Saving::Writer>(std::move(task));
  auto promise = std::move(whole);  // goes before the writer, which waits for it
  if (!options.copies) {            // beside the thread, which has slices to write
    promise.set_value(stage_whole(contents, catalogue, how, *memory));
  }
  return std::unique_ptr<Saving>(new Saving(std::move(folder), std::move(writer)));
}

std::string save(std::shared_ptr<Store> store, const std::string& run, int64_t step, const Contents& contents,
                 SaveOptions options) {
  options.copies = false;
  const auto saving = start_save(std::move(store), run, step, contents, options);
  saving->finish();
  return saving->folder();
}

}  // namespace tessera::checkpoint
