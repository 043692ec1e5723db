#include "tests/launch/killing.h"

#include <csignal>
#include <cstdlib>
#include <iostream>

#include <unistd.h>

#include "tessera/checkpoint/folder/names.h"

namespace tessera::launch::checkpoint_test {
namespace {

constexpr const char* kNames[] = {"claim", "stage", "write", "receipts", "manifest", "removal"};

int64_t number_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::stoll(text);
}

bool is_file_call(const std::string& what) { return what == "create" || what == "append" || what == "close"; }

}  // namespace

const char* name_of(Phase phase) { return kNames[static_cast<size_t>(phase)]; }

Variables variables_of(const Order& order, int64_t victim) {
  return {{"TESSERA_TEST_VICTIM", std::to_string(victim)},
          {"TESSERA_TEST_PHASE", std::to_string(static_cast<int64_t>(order.phase))},
          {"TESSERA_TEST_STEP", std::to_string(order.step)},
          {"TESSERA_TEST_CALL", std::to_string(order.call)},
          {"TESSERA_TEST_DELAY", std::to_string(order.delay.count())}};
}

std::optional<Order> order_of_environment(int64_t rank) {
  if (std::getenv("TESSERA_TEST_VICTIM") == nullptr || number_of("TESSERA_TEST_VICTIM") != rank) {
    return std::nullopt;
  }
  return Order{.phase = static_cast<Phase>(number_of("TESSERA_TEST_PHASE")),
               .step = number_of("TESSERA_TEST_STEP"),
               .call = number_of("TESSERA_TEST_CALL"),
               .delay = std::chrono::microseconds(number_of("TESSERA_TEST_DELAY"))};
}

Killer::Killer(std::shared_ptr<checkpoint::Store> inner, std::string run, int64_t rank, std::optional<Order> order)
    : inner_(std::move(inner)),
      run_(std::move(run)),
      rank_(rank),
      order_(order),
      store_(std::make_shared<support::ObservedStore>(inner_, [this](const auto& call) { observe(call); })) {
  if (order_ && order_->phase == Phase::kStage) {
    thread_ = std::thread([this] { kill_while_staging(); });
  }
}

Killer::~Killer() {
  has_ended_ = true;
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Killer::begin_save(int64_t step) {
  const std::scoped_lock lock(mutex_);
  step_ = step;
  phase_ = rank_ == 0 ? Phase::kClaim : Phase::kStage;
}

void Killer::observe(const support::StoreCall& call) {
  const std::scoped_lock lock(mutex_);
  follow(call);
  if (order_ && order_->phase == phase_ && phase_ != Phase::kStage && step_ >= order_->step &&
      calls_++ == order_->call) {
    die((call.is_done ? "after " : "before ") + call.what + " " + call.path);
  }
}

void Killer::follow(const support::StoreCall& call) {
  const auto name = checkpoint::name_of(call.path);
  if (call.is_done) {
    if (phase_ == Phase::kClaim && call.what == "close" && name == checkpoint::kClaim) {
      phase_ = Phase::kStage;
    }
  } else if (is_file_call(call.what)) {
    const bool is_index = name == "model.safetensors.index.json";
    phase_ = name == checkpoint::kClaim                       ? Phase::kClaim
             : name == checkpoint::kManifest || is_index      ? Phase::kManifest
             : checkpoint::try_receipt_rank(name).has_value() ? Phase::kReceipts
                                                              : Phase::kWrite;
  } else if (call.what == "list") {
    const bool is_own = call.path == checkpoint::step_folder(run_, step_);
    phase_ = call.path == run_                   ? Phase::kClaim  // looks which are old
             : is_own && phase_ == Phase::kClaim ? Phase::kClaim  // looks whether it is empty
             : is_own                            ? Phase::kReceipts
                                                 : Phase::kRemoval;
  }
}

void Killer::kill_while_staging() {
  auto delay = order_->delay;
  for (int64_t step = order_->step; !has_ended_; ++step, delay /= 2) {
    const auto claim = checkpoint::path_in(checkpoint::step_folder(run_, step), checkpoint::kClaim);
    while (!has_ended_ && !inner_->try_size(claim)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    std::this_thread::sleep_for(delay);
    while (!has_ended_ && !is_past_staging(step, delay)) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // the claim is being made to last
    }
  }
}

bool Killer::is_past_staging(int64_t step, std::chrono::microseconds delay) {
  const std::scoped_lock lock(mutex_);
  if (phase_ == Phase::kStage && step_ == step) {
    die(std::to_string(delay.count()) + " us after the claim");
  }
  return step_ > step || (step_ == step && phase_ != Phase::kClaim);
}

void Killer::die(const std::string& where) const {
  std::cerr << "killed in " << name_of(phase_) << " of step " << step_ << ": " << where << std::endl;
  ::kill(::getpid(), SIGKILL);
  while (true) {
    ::pause();
  }
}

}  // namespace tessera::launch::checkpoint_test
