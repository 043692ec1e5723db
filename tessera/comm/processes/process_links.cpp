#include "tessera/comm/processes/process_links.h"

#include <algorithm>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::comm {

ProcessLinks::ProcessLinks(const StorePtr& store, int64_t rank, int64_t size, std::chrono::milliseconds deadline,
                           Listener& listener, const std::function<void()>& check)
    : size_(size), listener_(listener), peers_(static_cast<size_t>(size)) {
  auto links = gather_links(store, rank, size, deadline, check);
  const auto elsewhere =
      std::find_if(links.begin(), links.end(), [&](const Link& link) { return link.machine != machine_name(); });
  if (elsewhere != links.end()) {
    address_ = elsewhere->socket.address().first;
  }
  for (size_t i = 0; i < links.size(); ++i) {
    peers_[i].socket = std::move(links[i].socket);
    peers_[i].process = std::move(links[i].process);
  }
  TESSERA_CHECK_AS(CommError, ::pipe2(wake_, O_CLOEXEC) == 0, "[comm] no pipe: ", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

ProcessLinks::~ProcessLinks() {
  stop();
  ::close(wake_[0]);
  for (auto& peer : peers_) {
    if (peer.socket) {
      ::shutdown(peer.socket.descriptor(), SHUT_WR);
    }
  }
}

void ProcessLinks::stop() {
  if (thread_.joinable()) {
    ::close(wake_[1]);
    thread_.join();
  }
}

void ProcessLinks::send(int64_t to, const std::string& message) {
  auto& peer = peers_[static_cast<size_t>(to)];
  std::lock_guard lock(peer.sending);
  if (peer.socket) {
    peer.socket.send(message);
  }
}

void ProcessLinks::send_to_all(const std::string& message) {
  for (int64_t peer = 0; peer < size_; ++peer) {
    send(peer, message);
  }
}

void ProcessLinks::run() {
  std::vector<pollfd> wanted;
  std::vector<int64_t> whose;
  while (true) {
    wanted.assign(1, {wake_[0], POLLIN, 0});
    whose.assign(1, -1);
    for (int64_t peer = 0; peer < size_; ++peer) {
      if (const auto& socket = peers_[static_cast<size_t>(peer)].socket) {
        wanted.push_back({socket.descriptor(), POLLIN, 0});
        whose.push_back(peer);
      }
    }
    ::poll(wanted.data(), wanted.size(), static_cast<int>(kTick.count()));
    if (wanted[0].revents) {
      return;
    }
    for (size_t i = 1; i < wanted.size(); ++i) {
      if (wanted[i].revents) {
        read_from(whose[i]);
      }
    }
    listener_.on_tick();
  }
}

void ProcessLinks::read_from(int64_t rank) {
  auto& peer = peers_[static_cast<size_t>(rank)];
  char buffer[16384];
  const auto count = ::recv(peer.socket.descriptor(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count > 0) {
    peer.received.append(buffer, static_cast<size_t>(count));
    return deliver(rank);
  }
  {
    std::lock_guard lock(peer.sending);
    peer.socket.close();
  }
  listener_.on_lost(rank);
}

void ProcessLinks::deliver(int64_t rank) {
  auto& received = peers_[static_cast<size_t>(rank)].received;
  uint64_t size = 0;
  while (received.size() >= sizeof size) {
    std::memcpy(&size, received.data(), sizeof size);
    if (received.size() < sizeof size + size) {
      return;
    }
    const auto message = received.substr(sizeof size, size);
    received.erase(0, sizeof size + size);
    listener_.on_message(rank, message);
  }
}

}  // namespace tessera::comm
