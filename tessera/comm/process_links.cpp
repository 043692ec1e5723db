#include "tessera/comm/process_links.h"

#include <cstring>
#include <fstream>
#include <random>

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/comm/packing.h"

namespace tessera::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPause{5};

void set_option(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); }

// Small messages at once, a vanished machine found soon, no sender held up for long.
void prepare(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  const timeval second{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
}

bool send_bytes(int socket, const char* data, size_t size) {
  while (size > 0) {
    const auto sent = ::send(socket, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool send_message(int socket, const std::string& message) {
  const uint64_t size = message.size();
  std::string framed(reinterpret_cast<const char*>(&size), sizeof size);
  framed += message;
  return send_bytes(socket, framed.data(), framed.size());
}

// The next message, for the introduction alone; empty if it does not come.
std::string receive_message(int socket) {
  const timeval second{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  uint64_t size = 0;
  if (::recv(socket, &size, sizeof size, MSG_WAITALL) != sizeof size || size > 4096) {
    return "";
  }
  std::string message(size, '\0');
  return ::recv(socket, message.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size) ? message : "";
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

// The same for processes that share loopback (containers have host names of their own).
std::string machine_name() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return host_name() + " " + boot;
}

// IPv4 addresses under which other machines may reach this one.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  ::getifaddrs(&list);
  for (const auto* each = list; each; each = each->ifa_next) {
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET && (each->ifa_flags & IFF_UP) && !(each->ifa_flags & IFF_LOOPBACK)) {
      char text[INET_ADDRSTRLEN] = {};
      ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr, text, sizeof text);
      addresses.emplace_back(text);
    }
  }
  ::freeifaddrs(list);
  return addresses;
}

sockaddr_in address_of(const std::string& text, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  return address;
}

// A connection, or -1.
int connect_within(const std::string& host, int port, std::chrono::milliseconds limit) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const auto address = address_of(host, port);
  bool is_up = ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!is_up && errno == EINPROGRESS) {
    pollfd wanted{socket, POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    is_up = ::poll(&wanted, 1, static_cast<int>(limit.count())) == 1 &&
            ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  if (!is_up) {
    ::close(socket);
    return -1;
  }
  ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) & ~O_NONBLOCK);
  prepare(socket);
  return socket;
}

std::string key_of(int64_t rank) { return c10::str("links/", rank); }

std::string value_of(const StorePtr& store, const std::string& key) {
  const auto bytes = store->get(key);
  return {bytes.begin(), bytes.end()};
}

// Waits until `store` has the key of every rank.
void wait_for_all(const StorePtr& store, int64_t size, std::chrono::milliseconds deadline, const std::function<void()>& check) {
  const auto end = Clock::now() + deadline;
  std::vector<std::string> missing;
  for (int64_t rank = 0; rank < size; ++rank) {
    missing.push_back(key_of(rank));
  }
  while (true) {
    std::erase_if(missing, [&](const std::string& key) { return store->check({key}); });
    if (missing.empty()) {
      return;
    }
    check();
    if (Clock::now() >= end) {
      const auto names = base::join(missing, ", ", [](std::ostream& out, const std::string& key) { out << key.substr(6); });
      TESSERA_THROW(CommTimeout, "[comm] rank", missing.size() > 1 ? "s " : " ", names, " of ", size, " did not come within ",
                    deadline.count(), " ms; start as many processes as WORLD_SIZE says, each with its own RANK, and look at "
                    "their own output");
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

ProcessLinks::ProcessLinks(const StorePtr& store, int64_t rank, int64_t size, std::chrono::milliseconds deadline, Listener& listener,
                           const std::function<void()>& check)
    : rank_(rank), size_(size), listener_(listener), peers_(static_cast<size_t>(size)) {
  const auto end = Clock::now() + deadline;
  try {
    listen();
    introduce(store, port_);
    wait_for_all(store, size_, deadline, check);
    token_ = value_of(store, "links/token");
    for (int64_t peer = 0; peer < size_; ++peer) {
      const auto card = value_of(store, key_of(peer));
      Unpacker reader(card);
      auto& each = peers_[static_cast<size_t>(peer)];
      each.machine = reader.text();
      each.process = reader.text();
      const auto port = static_cast<int>(reader.number());
      std::vector<std::string> addresses;
      for (auto left = reader.number(); left > 0; --left) {
        addresses.push_back(reader.text());
      }
      if (peer < rank_) {
        connect_to(peer, each.machine == machine_name() ? std::vector<std::string>{"127.0.0.1"} : addresses, port, end);
      }
    }
    accept_others(end, check);
  } catch (...) {
    for (auto& peer : peers_) {
      if (peer.socket >= 0) ::close(peer.socket);
    }
    ::close(listening_);
    throw;
  }
  ::close(listening_);
  TESSERA_CHECK_AS(CommError, ::pipe2(wake_, O_CLOEXEC) == 0, "[comm] no pipe: ", std::strerror(errno));
  thread_ = std::thread([this] { run(); });
}

ProcessLinks::~ProcessLinks() {
  stop();
  ::close(wake_[0]);
  for (auto& peer : peers_) {
    if (peer.socket >= 0) {
      ::shutdown(peer.socket, SHUT_WR);
      ::close(peer.socket);
    }
  }
}

void ProcessLinks::stop() {
  if (thread_.joinable()) {
    ::close(wake_[1]);
    thread_.join();
  }
}

bool ProcessLinks::is_one_machine() const {
  return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) { return peer.machine == peers_[0].machine; });
}

void ProcessLinks::listen() {
  listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = address_of("0.0.0.0", 0);
  socklen_t size = sizeof address;
  TESSERA_CHECK_AS(CommError, ::bind(listening_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       ::listen(listening_, static_cast<int>(size_)) == 0 &&
                       ::getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                   "[comm] no socket to listen on: ", std::strerror(errno));
  port_ = ntohs(address.sin_port);
}

// Leaves this rank's card in the store.
void ProcessLinks::introduce(const StorePtr& store, int port) {
  if (rank_ == 0) {
    std::random_device random;
    const auto token = std::to_string((static_cast<uint64_t>(random()) << 32) | random());
    store->set("links/token", std::vector<uint8_t>(token.begin(), token.end()));
  }
  const auto addresses = own_addresses();
  Packer card;
  card.text(machine_name()).text(c10::str("pid ", ::getpid(), " on ", host_name())).number(static_cast<uint64_t>(port)).number(addresses.size());
  for (const auto& address : addresses) {
    card.text(address);
  }
  const auto bytes = card.take();
  store->set(key_of(rank_), std::vector<uint8_t>(bytes.begin(), bytes.end()));
}

void ProcessLinks::connect_to(int64_t peer, const std::vector<std::string>& addresses, int port, Clock::time_point end) {
  auto& each = peers_[static_cast<size_t>(peer)];
  for (const auto& address : addresses) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    each.socket = connect_within(address, port, std::min(left, std::chrono::milliseconds(3000)));
    if (each.socket >= 0) {
      send_message(each.socket, Packer().text(token_).number(static_cast<uint64_t>(rank_)).take());
      return;
    }
  }
  TESSERA_THROW(CommError, "[comm] rank ", rank_, " cannot connect to rank ", peer, " (", each.process, ") at ",
                base::join(addresses, ", ", [](std::ostream& out, const std::string& a) { out << a; }), " port ", port,
                ": it is gone, or a firewall keeps the machines apart; TCP between all machines of a job is needed");
}

void ProcessLinks::accept_others(Clock::time_point end, const std::function<void()>& check) {
  for (int64_t missing = size_ - 1 - rank_; missing > 0;) {
    check();
    pollfd wanted{listening_, POLLIN, 0};
    if (::poll(&wanted, 1, static_cast<int>(kPause.count())) == 1) {
      const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
      const auto hello = receive_message(socket);
      Unpacker reader(hello);
      const bool is_ours = !hello.empty() && reader.text() == token_;
      const auto peer = is_ours ? static_cast<int64_t>(reader.number()) : -1;
      if (peer <= rank_ || peer >= size_ || peers_[static_cast<size_t>(peer)].socket >= 0) {
        ::close(socket);
        continue;
      }
      prepare(socket);
      peers_[static_cast<size_t>(peer)].socket = socket;
      --missing;
    }
    if (missing > 0 && Clock::now() >= end) {
      const auto first = std::find_if(peers_.begin() + rank_ + 1, peers_.end(), [](const Peer& peer) { return peer.socket < 0; });
      TESSERA_THROW(CommTimeout, "[comm] rank ", first - peers_.begin(), " (", first->process, ") left its address but did not connect to rank ",
                    rank_, " in time");
    }
  }
}

void ProcessLinks::send(int64_t to, const std::string& message) {
  auto& peer = peers_[static_cast<size_t>(to)];
  std::lock_guard lock(peer.sending);
  if (peer.socket >= 0) {
    send_message(peer.socket, message);
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
      if (const int socket = peers_[static_cast<size_t>(peer)].socket; socket >= 0) {
        wanted.push_back({socket, POLLIN, 0});
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
  const auto count = ::recv(peer.socket, buffer, sizeof buffer, MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count > 0) {
    peer.received.append(buffer, static_cast<size_t>(count));
    return deliver(rank);
  }
  {
    std::lock_guard lock(peer.sending);
    ::close(peer.socket);
    peer.socket = -1;
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
