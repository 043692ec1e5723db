// Steps of pipelines whose messages take 20 ms, beside what a replay of their lists says; and what an operator of
// another stage costs.
//
// Kernels sleep instead of computing, so that as many ranks as stages run side by side on any number of cores.
#include <chrono>
#include <cstdio>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>

#include <torch/torch.h>

#include "benchmarks/measure.h"
#include "tessera/comm/threads/run_ranks.h"
#include "tessera/dtensor/front/dtensor.h"
#include "tessera/parallel/deferred.h"
#include "tessera/parallel/generate_plan.h"
#include "tessera/parallel/job.h"
#include "tessera/schedule/families/family.h"
#include "tessera/schedule/replay.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPass{20}, kMessage{20};

// When each message was sent.
class Delays {
 public:
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // from, to, tag, number

  void send(const Key& key) {
    const std::lock_guard lock(mutex_);
    sent_[key] = Clock::now();
  }
  // Once it was received by a network without delay.
  void wait(const Key& key) {
    Clock::time_point sent;
    {
      const std::lock_guard lock(mutex_);
      sent = sent_.at(key);
      sent_.erase(key);
    }
    std::this_thread::sleep_until(sent + kMessage);
  }

 private:
  std::mutex mutex_;
  std::map<Key, Clock::time_point> sent_;
};

struct DelayedWork final : comm::Work {
  comm::WorkPtr inner;
  Delays& delays;
  Delays::Key key;

  DelayedWork(comm::WorkPtr work, Delays& all, const Delays::Key& own)
      : inner(std::move(work)), delays(all), key(own) {}
  void wait() override {
    inner->wait();
    delays.wait(key);
  }
};

// A group whose messages take kMessage; everything else is the inner group's.
class DelayedGroup final : public comm::Communicator {
 public:
  DelayedGroup(std::shared_ptr<comm::Communicator> inner, Delays& delays) : inner_(std::move(inner)), delays_(delays) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  const std::vector<int64_t>& ranks() const override { return inner_->ranks(); }
  const std::string& name() const override { return inner_->name(); }
  comm::WorkPtr all_reduce(at::Tensor tensor, layout::ReduceOp op) override { return inner_->all_reduce(tensor, op); }
  comm::WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    return inner_->all_gather(std::move(outputs), std::move(input));
  }
  comm::WorkPtr reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, layout::ReduceOp op) override {
    return inner_->reduce_scatter(std::move(output), std::move(inputs), op);
  }
  comm::WorkPtr all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    return inner_->all_to_all(std::move(outputs), std::move(inputs));
  }
  comm::WorkPtr broadcast(at::Tensor tensor, int64_t root) override {
    return inner_->broadcast(std::move(tensor), root);
  }
  comm::WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override {
    delays_.send({rank(), to, tag, sent_[{to, tag}]++});
    return inner_->send(std::move(tensor), to, tag);
  }
  comm::WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    const Delays::Key key{from, rank(), tag, received_[{from, tag}]++};
    return std::make_unique<DelayedWork>(inner_->receive(std::move(tensor), from, tag), delays_, key);
  }
  void barrier() override { inner_->barrier(); }
  std::vector<comm::NodeSum> merge(const comm::Merge& merge) override { return inner_->merge(merge); }
  std::shared_ptr<comm::Communicator> split(const std::vector<std::vector<int64_t>>& groups,
                                            std::string name) override {
    return std::make_shared<DelayedGroup>(inner_->split(groups, std::move(name)), delays_);
  }

 private:
  std::shared_ptr<comm::Communicator> inner_;
  Delays& delays_;
  std::map<std::pair<int64_t, int64_t>, int64_t> sent_, received_;
};

// Sleeps where it runs, forward and backward: a stage's share of kPass each. The gradient between its products is made
// where they are.
struct SleeperImpl : torch::nn::Module {
  explicit SleeperImpl(int64_t stages)
      : share(kPass / stages),
        first(torch::nn::LinearOptions(4, 4).bias(false)),
        second(torch::nn::LinearOptions(4, 4).bias(false)) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = first(x);
    sleep(y);
    if (y.requires_grad()) {
      y.register_hook([this](const at::Tensor& gradient) { sleep(gradient); });
    }
    return second(y);
  }
  void sleep(const at::Tensor& value) const {
    if (dtensor::to_local(value).numel() > 0) {
      std::this_thread::sleep_for(share);
    }
  }

  std::chrono::duration<double, std::milli> share;
  torch::nn::Linear first, second;
};
TORCH_MODULE(Sleeper);

struct ModelImpl : torch::nn::Module {
  ModelImpl(int64_t stages, int64_t per_rank) {
    for (int64_t i = 0; i < stages; ++i) {
      layers->push_back(Sleeper(per_rank));
    }
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers) {
      x = layer->as<Sleeper>()->forward(x);
    }
    return x.pow(2).mean();
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(Model);

// Milliseconds of a step, the least of `repeats`.
double step_of(const std::string& name, int64_t ranks, int64_t micro_batches, int repeats) {
  Delays delays;
  double least = 1e300;
  const layout::Mesh mesh({{"pp", ranks}});
  const int64_t per_rank = schedule::family_of(name).per_rank;
  comm::run_ranks(ranks, [&](int64_t rank) {
    comm::RankContext& ctx = comm::RankContext::require();
    ctx.world = std::make_shared<DelayedGroup>(ctx.world, delays);
    auto model = parallel::deferred([&] { return Model(ranks * per_rank, per_rank); });
    const auto plan = parallel::generate_plan(*model, {.mesh = mesh, .schedule = name});
    auto job = parallel::parallelize(model, plan, {.accumulate = micro_batches});
    const at::Tensor batch = at::ones({micro_batches, 4});
    for (int i = -1; i < repeats; ++i) {
      ctx.world->barrier();
      const auto begin = Clock::now();
      job(batch);
      ctx.world->barrier();
      const double taken = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
      if (rank == 0 && i >= 0) {
        least = std::min(least, taken);
      }
    }
  });
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc > 1 ? std::atoi(argv[1]) : 3;
  std::printf("a step whose passes sleep %ld ms a rank and whose messages take %ld, of m micro-batches\n\n",
              kPass.count(), kMessage.count());
  std::printf("| schedule | ranks | m | step, ms | replay, ms | step / replay |\n|---|---|---|---|---|---|\n");
  for (const auto& [ranks, micro_batches] : {std::pair<int64_t, int64_t>{2, 8}, {4, 8}}) {
    for (const char* name : {"gpipe", "1f1b", "interleaved", "zb-h1", "zbv", "v-half"}) {
      const auto list = schedule::make_schedule(name, {.ranks = ranks, .micro_batches = micro_batches});
      // The weight half takes next to nothing: nobody can make it sleep from outside.
      const double said =
          static_cast<double>(kPass.count()) *
          schedule::replay_schedule(list, {.weight = 0, .send = static_cast<double>(kMessage.count()) / kPass.count()})
              .makespan;
      const double taken = step_of(name, ranks, micro_batches, repeats);
      std::printf("| %s | %ld | %ld | %.1f | %.1f | %.3f |\n", name, ranks, micro_batches, taken, said, taken / said);
    }
  }
}
