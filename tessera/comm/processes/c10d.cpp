#include "tessera/comm/processes/c10d.h"

#include <map>
#include <numeric>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "tessera/base/error.h"
#include "tessera/base/hash.h"
#include "tessera/comm/call/call_scope.h"
#include "tessera/comm/call/receive_work.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"
#include "tessera/comm/processes/c10d_messages.h"
#include "tessera/comm/processes/c10d_reduce.h"
#include "tessera/comm/processes/process_window.h"
#include "tessera/comm/processes/shared_board.h"
#include "tessera/comm/processes/shared_exchange.h"
#include "tessera/comm/processes/shared_mail.h"
#include "tessera/comm/processes/shared_reduce.h"
#include "tessera/comm/sums/merge_sums.h"
#include "tessera/comm/sums/reduction.h"
#include "tessera/comm/sums/transfer.h"

namespace tessera::comm {
namespace {

class C10dCommunicator : public Communicator, public std::enable_shared_from_this<C10dCommunicator> {
 public:
  C10dCommunicator(C10dMessages messages, std::string name, uint64_t key, std::shared_ptr<Staging> staging,
                   std::shared_ptr<SharedMail> mail, bool shares_memory)
      : staging_(std::move(staging)),
        mail_(std::move(mail)),
        messages_(std::move(messages)),
        name_(std::move(name)),
        key_(key),
        shares_memory_(shares_memory),
        wants_board_(shares_memory && messages_.size() > 1) {}

  int64_t rank() const override { return messages_.member(); }
  int64_t size() const override { return messages_.size(); }
  const std::vector<int64_t>& ranks() const override { return messages_.ranks(); }
  const std::string& name() const override { return name_; }
  const c10::intrusive_ptr<c10d::Backend>& backend() const { return messages_.backend(); }
  C10dGroup group() { return {messages_, key_, round_}; }

  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op) override {
    return meet({.kind = Kind::kAllReduce, .inputs = tensor, .outputs = tensor, .reduce = op}, [&](const Round& round) {
      if (size() > 1) {
        reduce(round, reduction_of(tensor, op, size()));
      }
    });
  }

  WorkPtr all_gather(std::vector<at::Tensor> outputs, at::Tensor input) override {
    return meet({.kind = Kind::kAllGather, .inputs = input, .outputs = outputs}, [&](const Round& round) {
      copy_bytes(outputs[index()], input);
      exchange(round, outputs, std::vector<at::Tensor>(ranks().size(), input));
    });
  }

  WorkPtr reduce_scatter(at::Tensor output, std::vector<at::Tensor> inputs, ReduceOp op) override {
    return meet({.kind = Kind::kReduceScatter, .inputs = inputs, .outputs = output, .reduce = op},
                [&](const Round& round) { reduce(round, scatter_reduction_of(output, inputs, op, rank())); });
  }

  WorkPtr all_to_all(std::vector<at::Tensor> outputs, std::vector<at::Tensor> inputs) override {
    return meet({.kind = Kind::kAllToAll, .inputs = inputs, .outputs = outputs}, [&](const Round& round) {
      copy_bytes(outputs[index()], inputs[index()]);
      exchange(round, outputs, inputs);
    });
  }

  WorkPtr broadcast(at::Tensor tensor, int64_t root) override {
    return meet({.kind = Kind::kBroadcast, .inputs = tensor, .outputs = tensor, .peer = root}, [&](const Round& round) {
      const auto hash = fingerprint_of(round);
      note_messages(round);
      job().run(round, [&](Works& works) {
        for (int64_t k = 1; k < size() && root == rank(); ++k) {
          works.push_back(messages_.send((rank() + k) % size(), tensor, hash));
        }
        if (root != rank()) {
          works.push_back(messages_.receive(root, tensor, hash));
        }
      });
    });
  }

  WorkPtr send(at::Tensor tensor, int64_t to, int64_t tag) override {
    Call call{.kind = Kind::kSend, .group = this, .inputs = tensor, .peer = to, .tag = tag};
    CallScope scope(call);
    verify_on_cpu(call, "ranks as processes");
    const Round round{call, key_, sent_[{to, tag}]++};
    const uint64_t hash = message_hash(rank(), to, tag, round.number);
    if (!mail_ || !send_letter(round, hash, tensor)) {
      send_apart(round, hash, tensor);
    }
    return finished_work();
  }

  WorkPtr receive(at::Tensor tensor, int64_t from, int64_t tag) override {
    Call call{.kind = Kind::kReceive, .group = this, .outputs = tensor, .peer = from, .tag = tag};
    verify_call(call);
    verify_on_cpu(call, "ranks as processes");
    const auto number = received_[{from, tag}]++;
    return std::make_unique<ReceiveWork>(shared_from_this(), call, tensor, [this, number](const Call& given) {
      const Round round{given, key_, number};
      const uint64_t hash = message_hash(given.peer, rank(), given.tag, number);
      const auto apart = [&] { return messages_.receive(given.peer, given.outputs[0], hash); };
      job().run(round, [&](Works& works) {
        works.push_back(mail_ ? mail_->receive(round, in_world(given.peer), hash, apart) : apart());
      });
    });
  }

  // Of the world. Collective, a round of its own.
  void open_mail() {
    const Call call{.kind = Kind::kBarrier, .group = this};
    mail_ = SharedMail::open(messages_, {call, key_, round_++});
  }

  void barrier() override {
    meet({.kind = Kind::kBarrier}, [&](const Round& round) {
      std::vector<at::Tensor> nothing(ranks().size(), at::empty({0}));
      exchange(round, nothing, nothing);
    });
  }

  std::vector<NodeSum> merge(const Merge& merge) override {
    verify_merge(*this, merge);
    const std::vector<at::Tensor> results = merge_results(merge, rank());
    meet({.kind = Kind::kMerge, .inputs = merge.sums, .outputs = results, .merge = &merge},
         [&](const Round& round) { reduce(round, merge_reduction_of(merge, results, rank())); });
    return with_nodes(merge.plan, results);
  }

  std::unique_ptr<Window> open_window() override { return shares_memory_ ? open_process_window(*this) : nullptr; }

  std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name) override {
    return split(groups, std::move(name), shares_memory_);
  }

  std::shared_ptr<Communicator> split(const std::vector<std::vector<int64_t>>& groups, std::string name,
                                      bool shares_memory) {
    const auto& own = own_group(*this, groups, name);
    auto key = base::hash_range(own, base::hash_string(name, key_));
    key = base::hash_combine(key, static_cast<uint64_t>(splits_[key]++));
    return std::make_shared<C10dCommunicator>(messages_.among(own), std::move(name), key, staging_,
                                              shares_memory ? mail_ : nullptr, shares_memory);
  }

 private:
  size_t index() const { return static_cast<size_t>(rank()); }
  ProcessJob& job() const { return messages_.job(); }

  int64_t in_world(int64_t member) const { return ranks()[static_cast<size_t>(member)]; }

  // Whether the letter has the tensor in it.
  bool send_letter(const Round& round, uint64_t hash, const at::Tensor& tensor) {
    const auto letter = mail_->send(in_world(round.call.peer), hash, tensor);
    job().run(round, [&](Works& works) { works.push_back(letter); });
    job().note_sent(round);
    return letter->holds_tensor();
  }

  void send_apart(const Round& round, uint64_t hash, const at::Tensor& tensor) {
    auto message = at::empty_like(tensor);
    copy_bytes(message, tensor);
    c10::intrusive_ptr<c10d::Work> work;
    job().run(round, [&](Works&) { work = messages_.send(round.call.peer, message, hash); });
    job().keep(round, std::move(message), std::move(work));
  }

  template <typename Do>
  WorkPtr meet(Call call, Do run) {
    call.group = this;
    CallScope scope(call);
    verify_on_cpu(call, "ranks as processes");
    run(Round{call, key_, round_++});
    return finished_work();
  }

  // The group's, opened by the first call that wants it; null where there is none.
  SharedBoard* board(const Round& round) {
    if (wants_board_) {
      board_ = SharedBoard::open(messages_, round);
      wants_board_ = false;
    }
    return board_.get();
  }

  // `taken[i]` becomes member i's `given[rank()]`, for all members but this one. What does not fit together does not
  // meet as messages either, which is explained.
  void exchange(const Round& round, const std::vector<at::Tensor>& taken, const std::vector<at::Tensor>& given) {
    if (fits_board(size()) && board(round) && run_exchange(*board_, round, taken, given, rank())) {
      return note_composed(round.call, "shared memory");
    }
    const auto hash = fingerprint_of(round);
    note_messages(round);
    job().run(round, [&](Works& works) {
      for (int64_t k = 1; k < size(); ++k) {
        const auto from = (rank() + size() - k) % size();
        works.push_back(messages_.receive(from, taken[static_cast<size_t>(from)], hash));
      }
      for (int64_t k = 1; k < size(); ++k) {
        const auto to = (rank() + k) % size();
        works.push_back(messages_.send(to, given[static_cast<size_t>(to)], hash));
      }
    });
  }

  void reduce(const Round& round, const Reduction& reduction) {
    if (board(round) && fits_board(reduction)) {
      note_composed(round.call, "shared memory");
      return run_reduction(*board_, round, reduction, rank());
    }
    note_messages(round);
    run_reduction(messages_, round, reduction, *staging_);
  }

  void note_messages(const Round& round) const {
    if (size() > 1) {
      note_composed(round.call, "send, receive");
    }
  }

  uint64_t message_hash(int64_t from, int64_t to, int64_t tag, int64_t number) const {
    return base::hash_range(std::vector<int64_t>{from, to, tag, number}, key_);
  }

  const std::shared_ptr<Staging> staging_;  // of all groups of the job; outlives the messages into it
  std::shared_ptr<SharedMail> mail_;        // the job's; null: messages go through the library
  const C10dMessages messages_;
  const std::string name_;
  const uint64_t key_;  // of the group, equal on all members
  const bool shares_memory_;
  bool wants_board_;  // and none was opened yet
  std::unique_ptr<SharedBoard> board_;
  int64_t round_ = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> sent_, received_;  // messages so far, by peer and tag
  std::map<uint64_t, int64_t> splits_;                              // by name and ranks
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> backend_of(const Communicator& communicator) {
  const auto* ours = dynamic_cast<const C10dCommunicator*>(&communicator);
  return ours ? ours->backend() : c10::intrusive_ptr<c10d::Backend>();
}

std::optional<C10dGroup> group_of(Communicator& communicator) {
  auto* ours = dynamic_cast<C10dCommunicator*>(&communicator);
  return ours ? std::optional(ours->group()) : std::nullopt;
}

std::shared_ptr<Communicator> split_messages_only(Communicator& communicator) {
  auto* ours = dynamic_cast<C10dCommunicator*>(&communicator);
  TESSERA_CHECK(ours, "[c10d] ", communicator.name(),
                " is not made of messages between processes; a communicator of join_c10d is accepted");
  return ours->split({ours->ranks()}, ours->name() + " by messages", false);
}

std::shared_ptr<Communicator> join_c10d(std::shared_ptr<ProcessJob> job, c10::intrusive_ptr<c10d::Backend> backend) {
  TESSERA_CHECK(backend->getSize() == job->size() && backend->getRank() == job->rank(), "[c10d] a backend of rank ",
                backend->getRank(), " of ", backend->getSize(), " for rank ", job->rank(), " of ", job->size(),
                "; accepted: the same ranks in the same order");
  std::vector<int64_t> ranks(static_cast<size_t>(job->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  const bool shares_memory = job->is_one_machine();
  auto world = std::make_shared<C10dCommunicator>(C10dMessages(std::move(job), std::move(backend), std::move(ranks)),
                                                  "world", 0, std::make_shared<Staging>(), nullptr, shares_memory);
  if (shares_memory && world->size() > 1) {
    world->open_mail();
  }
  return world;
}

}  // namespace tessera::comm
