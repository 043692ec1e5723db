#include "tessera/comm/processes/gather.h"

#include <algorithm>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/core/errors.h"
#include "tessera/comm/processes/packing.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookAround{5};
// How long one address may take to answer.
constexpr milliseconds kAnswers{3000};
// How long what a rank knows of another's end may take to arrive, and how long rank 0 stays to tell it.
constexpr milliseconds kTold{300}, kStays{1000};

// The most that is told of a failure, in bytes: a message of a socket has 4096.
constexpr size_t kWord = 4000;

constexpr const char* kToken = "links/token";
constexpr const char* kFailure = "links/failure";

std::string card_of(int64_t rank) { return c10::str("links/", rank); }

std::vector<uint8_t> bytes_of_text(const std::string& text) { return {text.begin(), text.end()}; }

class Gathering {
 public:
  Gathering(const StorePtr& store, int64_t rank, int64_t size, milliseconds deadline,
            const std::function<void()>& check)
      : store_(store),
        rank_(rank),
        size_(size),
        deadline_(deadline),
        end_(Clock::now() + deadline),
        check_(check),
        links_(static_cast<size_t>(size)),
        listening_(listen_anywhere(size)) {}

  std::vector<Link> run() {
    try {
      gather();
    } catch (const RankFailed&) {
      stay();
      throw;
    } catch (const Stopped&) {
      throw;
    } catch (const CommError& error) {
      leave_failure(rank_, base::message_of(error));
      stay();
      throw;
    } catch (const c10::DistError&) {
      throw_if_store_died();
      throw;
    }
    return std::move(links_);
  }

 private:
  // What a rank leaves in the store.
  struct Card {
    std::string machine, process;
    int port = 0;
    std::vector<std::string> addresses;
  };

  void gather() {
    if (rank_ == 0) {
      store_->set(kToken, bytes_of_text(std::to_string(random_token())));
      leave_card();
    }
    wait_for_cards(1);
    token_ = value_of(kToken);
    if (rank_ > 0) {
      link_to(0);
      leave_card();
    }
    wait_for_cards(size_);
    for (int64_t peer = 0; peer < size_; ++peer) {
      if (0 < peer && peer < rank_) {
        link_to(peer);
      } else {
        read_card(peer);
      }
    }
    wait_for_links();
  }

  void leave_card() {
    const auto addresses = own_addresses();
    Packer card;
    card.text(machine_name())
        .text(process_name())
        .number(static_cast<uint64_t>(listening_.address().second))
        .number(addresses.size());
    for (const auto& address : addresses) {
      card.text(address);
    }
    store_->set(card_of(rank_), bytes_of_text(card.take()));
  }

  Card read_card(int64_t peer) {
    const auto text = value_of(card_of(peer));
    Unpacker reader(text);
    Card card;
    card.machine = reader.text();
    card.process = reader.text();
    card.port = static_cast<int>(reader.number());
    for (auto left = reader.number(); left > 0; --left) {
      card.addresses.push_back(reader.text());
    }
    auto& link = links_[static_cast<size_t>(peer)];
    link.machine = card.machine;
    link.process = card.process;
    return card;
  }

  // Those of ranks [0, count).
  void wait_for_cards(int64_t count) {
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < count; ++rank) {
      keys.push_back(card_of(rank));
    }
    while (!store_->check(keys)) {
      look_around();
      if (Clock::now() >= end_) {
        std::erase_if(keys, [&](const std::string& key) { return store_->check({key}); });
        const auto names = base::join(
            keys, ", ", [](std::ostream& out, const std::string& key) { out << key.substr(key.find('/') + 1); });
        TESSERA_THROW(
            CommTimeout, "[comm] rank", keys.size() > 1 ? "s " : " ", names, " of ", size_, " did not come within ",
            deadline_.count(),
            " ms; start as many processes as WORLD_SIZE says, each with its own RANK, and look at their own output");
      }
    }
  }

  void link_to(int64_t peer) {
    const auto card = read_card(peer);
    const auto addresses = card.machine == machine_name() ? std::vector<std::string>{"127.0.0.1"} : card.addresses;
    for (const auto& address : addresses) {
      if (greet(peer, address, card.port)) {
        return;
      }
    }
    for (const auto told = Clock::now() + kTold; Clock::now() < told;) {
      look_around();
    }
    TESSERA_THROW(CommError, "[comm] rank ", rank_, " cannot connect to rank ", peer, " (", card.process, ") at ",
                  base::join(addresses, ", ", [](std::ostream& out, const std::string& address) { out << address; }),
                  " port ", card.port,
                  ": it is gone, or a firewall keeps the machines apart; TCP between all machines of a job is needed");
  }

  // Whether `peer` is there: an address may be another machine's too.
  bool greet(int64_t peer, const std::string& address, int port) {
    const auto left = std::chrono::duration_cast<milliseconds>(end_ - Clock::now());
    auto socket = connect_within(address, port, std::clamp(left, milliseconds(1), kAnswers));
    const auto hello = Packer()
                           .text(token_)
                           .number(static_cast<uint64_t>(rank_))
                           .number(static_cast<uint64_t>(peer))
                           .text(process_name())
                           .take();
    if (!socket || !socket.send(hello)) {
      return false;
    }
    while (socket.listen() == Socket::Heard::kNothing && Clock::now() < end_) {
      look_around();
    }
    if (socket.receive() != token_) {
      return false;
    }
    links_[static_cast<size_t>(peer)].socket = std::move(socket);
    return true;
  }

  void wait_for_links() {
    const auto is_missing = [&](const Link& link) {
      return !link.socket && &link != &links_[static_cast<size_t>(rank_)];
    };
    while (true) {
      const auto first = std::find_if(links_.begin(), links_.end(), is_missing);
      if (first == links_.end()) {
        return;
      }
      TESSERA_CHECK_AS(CommTimeout, Clock::now() < end_, "[comm] rank ", first - links_.begin(), " (", first->process,
                       ") left its address but did not connect to rank ", rank_, " in time");
      look_around();
    }
  }

  // What a wait does meanwhile: lets others link, and throws if one is gone.
  void look_around() {
    check_();
    accept_others();
    if (store_->check({kFailure})) {
      throw_failure();
    }
    for (int64_t peer = 0; peer < size_; ++peer) {
      if (is_gone(peer)) {
        leave_failure(peer, describe_lost(links_[static_cast<size_t>(peer)].process));
        throw_failure();
      }
    }
  }

  bool is_gone(int64_t peer) const {
    const auto& socket = links_[static_cast<size_t>(peer)].socket;
    return socket && socket.listen() == Socket::Heard::kEnd;
  }

  void accept_others() {
    for (auto socket = accept_within(listening_, kLookAround); socket;
         socket = accept_within(listening_, milliseconds(0))) {
      const auto hello = socket.receive();
      Unpacker reader(hello);
      if (hello.empty() || reader.text() != token_) {
        continue;
      }
      const auto from = static_cast<int64_t>(reader.number()), to = static_cast<int64_t>(reader.number());
      if (to == rank_ && from > rank_ && from < size_ && socket.send(token_)) {
        auto& link = links_[static_cast<size_t>(from)];
        link.process = reader.text();
        link.socket = std::move(socket);
      }
    }
  }

  // The first one counts.
  void leave_failure(int64_t rank, const std::string& message) {
    try {
      store_->compareSet(
          kFailure, {},
          bytes_of_text(Packer().number(static_cast<uint64_t>(rank)).text(message.substr(0, kWord)).take()));
    } catch (const std::exception&) {
      // Who serves the store is gone, which the others see for themselves.
    }
  }

  [[noreturn]] void throw_failure() { throw_failure_of(value_of(kFailure)); }

  [[noreturn]] void throw_failure_of(const std::string& text) const {
    Unpacker reader(text);
    const auto rank = static_cast<int64_t>(reader.number());
    throw_failed(rank, reader.text());
  }

  [[noreturn]] void throw_failed(int64_t rank, const std::string& message) const {
    throw RankFailed({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, rank,
                     c10::str("[comm] rank ", rank_, " of ", size_, " was gathering with the others when rank ", rank,
                              " failed: ", message));
  }

  // The store is mostly rank 0's, which may have left its word in the link.
  void throw_if_store_died() const {
    const Socket& link = links_[0].socket;
    for (const auto told = Clock::now() + kTold; rank_ > 0 && Clock::now() < told;
         std::this_thread::sleep_for(kLookAround)) {
      if (link && link.listen() == Socket::Heard::kBytes) {
        if (const std::string word = link.receive(); !word.empty()) {
          throw_failure_of(word);
        }
      }
      if (is_gone(0)) {
        throw_failed(0, describe_lost(links_[0].process, ", which serves the job's store,"));
      }
    }
  }

  // What the store has of the first one; empty if it has nothing, or is gone.
  std::string find_failure() {
    try {
      return store_->check({kFailure}) ? value_of(kFailure) : "";
    } catch (const std::exception&) {
      return "";
    }
  }

  // Rank 0 mostly serves the store, from which the others learn what happened. Whoever is later than it stays finds it
  // in the link.
  void stay() {
    if (rank_ > 0) {
      return;
    }
    const std::string word = find_failure();
    std::vector<bool> is_told(links_.size());
    const auto others_are_gone = [&] {
      for (int64_t peer = 1; peer < size_; ++peer) {
        if (!is_gone(peer)) {
          return false;
        }
      }
      return true;
    };
    for (const auto end = Clock::now() + kStays; Clock::now() < end && !others_are_gone();) {
      accept_others();
      for (size_t peer = 1; peer < links_.size(); ++peer) {
        if (links_[peer].socket && !is_told[peer] && !word.empty()) {
          is_told[peer] = true;
          links_[peer].socket.send(word);
        }
      }
    }
  }

  std::string value_of(const std::string& key) {
    const auto bytes = store_->get(key);
    return {bytes.begin(), bytes.end()};
  }

  const StorePtr& store_;
  const int64_t rank_, size_;
  const milliseconds deadline_;
  const Clock::time_point end_;
  const std::function<void()>& check_;
  std::vector<Link> links_;
  const Socket listening_;
  std::string token_;  // of the job: keeps strangers out
};

}  // namespace

std::string describe_lost(const std::string& process, const char* role) {
  return c10::str("its process (", process, ")", role,
                  " ended without a word: killed, crashed, or its machine was lost");
}

std::vector<Link> gather_links(const StorePtr& store, int64_t rank, int64_t size, milliseconds deadline,
                               const std::function<void()>& check) {
  return Gathering(store, rank, size, deadline, check).run();
}

}  // namespace tessera::comm
