// The control connections of a job of processes: what tells a rank at once that another is gone, or why it failed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tessera/comm/processes/gather.h"

namespace tessera::comm {

// One TCP connection between every two ranks, beside those that carry tensors, and one thread that reads them all.
//
// Nothing travels here while all goes well. The kernel closes a process's sockets when it dies, however it dies, so
// each of the others learns it from its own connection within milliseconds, and no rank (not the one that hosts the
// store, not a launcher) has to survive for that. A machine that vanishes without closing anything is found by TCP
// keep-alive after about five seconds. Ranks of one machine talk over loopback. The store is needed only while
// connecting.
class ProcessLinks {
 public:
  // Is called on the thread of the links, one call at a time.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void on_message(int64_t from, const std::string& message) = 0;
    // The connection to `rank` broke; nothing more comes from it.
    virtual void on_lost(int64_t rank) = 0;
    // At least every kTick.
    virtual void on_tick() = 0;
  };
  static constexpr std::chrono::milliseconds kTick{20};

  // Connects to all other ranks as gather_links does, and starts to listen. Collective over all ranks.
  ProcessLinks(const StorePtr& store, int64_t rank, int64_t size, std::chrono::milliseconds deadline,
               Listener& listener, const std::function<void()>& check);
  // Closes all connections; the others find them lost.
  ~ProcessLinks();
  ProcessLinks(const ProcessLinks&) = delete;
  ProcessLinks& operator=(const ProcessLinks&) = delete;

  // Ends the thread: the listener is not called any more. The connections stay up.
  void stop();

  // Sends if the connection is up. Thread-safe; does not throw; blocks for a second at most.
  void send(int64_t to, const std::string& message);
  void send_to_all(const std::string& message);

  // `pid 1234 on host`, of a rank.
  const std::string& process_of(int64_t rank) const { return peers_[static_cast<size_t>(rank)].process; }

  // Whether all ranks run on one machine.
  bool is_one_machine() const { return address_ == "127.0.0.1"; }

  // The address of this machine at which the others reached it or from which it reached them; loopback if there are
  // none.
  const std::string& address() const { return address_; }

 private:
  struct Peer {
    Socket socket;
    std::string process;
    std::string received;  // bytes of messages not yet complete
    std::mutex sending;
  };

  void read_from(int64_t peer);
  void deliver(int64_t peer);
  void run();

  const int64_t size_;
  Listener& listener_;
  std::vector<Peer> peers_;
  std::string address_ = "127.0.0.1";
  int wake_[2] = {-1, -1};
  std::thread thread_;
};

}  // namespace tessera::comm
