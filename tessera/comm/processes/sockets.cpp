#include "tessera/comm/processes/sockets.h"

#include <cstring>
#include <filesystem>
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

namespace tessera::comm {
namespace {

constexpr uint64_t kLongestMessage = 4096;

void set_option(int socket, int level, int name, int value) { ::setsockopt(socket, level, name, &value, sizeof value); }

// Small messages at once, a vanished machine found soon, nobody held up for long.
void prepare(int socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 2);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  const timeval second{1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
}

bool send_bytes(int socket, const char* data, size_t size) {
  while (size > 0) {
    const auto sent = ::send(socket, data, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent <= 0) {
      return false;
    }
    data += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

sockaddr_in address_of(const std::string& text, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  ::inet_pton(AF_INET, text.c_str(), &address.sin_addr);
  return address;
}

std::string address_text(const sockaddr_in& address) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return text;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

void Socket::close() {
  if (descriptor_ >= 0) {
    ::close(std::exchange(descriptor_, -1));
  }
}

bool Socket::send(const std::string& message) const {
  const uint64_t size = message.size();
  std::string framed(reinterpret_cast<const char*>(&size), sizeof size);
  framed += message;
  return send_bytes(descriptor_, framed.data(), framed.size());
}

std::string Socket::receive() const {
  uint64_t size = 0;
  if (::recv(descriptor_, &size, sizeof size, MSG_WAITALL) != sizeof size || size > kLongestMessage) {
    return "";
  }
  std::string message(size, '\0');
  return ::recv(descriptor_, message.data(), size, MSG_WAITALL) == static_cast<ssize_t>(size) ? message : "";
}

Socket::Heard Socket::listen() const {
  char byte = 0;
  const auto count = ::recv(descriptor_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count > 0) {
    return Heard::kBytes;
  }
  return count < 0 && (errno == EAGAIN || errno == EINTR) ? Heard::kNothing : Heard::kEnd;
}

std::pair<std::string, int> Socket::address() const {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  return {address_text(address), ntohs(address.sin_port)};
}

Socket listen_anywhere(int64_t backlog) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto address = address_of("0.0.0.0", 0);
  TESSERA_CHECK_AS(CommError,
                   ::bind(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
                       ::listen(socket.descriptor(), static_cast<int>(backlog)) == 0,
                   "[comm] no socket to listen on: ", std::strerror(errno));
  return socket;
}

Socket accept_within(const Socket& listening, std::chrono::milliseconds limit) {
  pollfd wanted{listening.descriptor(), POLLIN, 0};
  if (::poll(&wanted, 1, static_cast<int>(limit.count())) != 1) {
    return {};
  }
  Socket socket(::accept4(listening.descriptor(), nullptr, nullptr, SOCK_CLOEXEC));
  prepare(socket.descriptor());
  return socket;
}

Socket connect_within(const std::string& host, int port, std::chrono::milliseconds limit) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto address = address_of(host, port);
  bool is_up = ::connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (!is_up && errno == EINPROGRESS) {
    pollfd wanted{socket.descriptor(), POLLOUT, 0};
    int error = 0;
    socklen_t size = sizeof error;
    is_up = ::poll(&wanted, 1, static_cast<int>(limit.count())) == 1 &&
            ::getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
  }
  if (!is_up) {
    return {};
  }
  ::fcntl(socket.descriptor(), F_SETFL, ::fcntl(socket.descriptor(), F_GETFL) & ~O_NONBLOCK);
  prepare(socket.descriptor());
  return socket;
}

uint64_t random_token() {
  std::random_device random;
  return (static_cast<uint64_t>(random()) << 32) | random();
}

std::string process_name() { return c10::str("pid ", ::getpid(), " on ", host_name()); }

std::string machine_name() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  std::error_code error;
  const auto network = std::filesystem::read_symlink("/proc/self/ns/net", error);
  return boot + " " + (error ? host_name() : network.string());
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  ::getifaddrs(&list);
  for (const auto* each = list; each; each = each->ifa_next) {
    if (each->ifa_addr && each->ifa_addr->sa_family == AF_INET && (each->ifa_flags & IFF_UP) &&
        !(each->ifa_flags & IFF_LOOPBACK)) {
      addresses.push_back(address_text(*reinterpret_cast<const sockaddr_in*>(each->ifa_addr)));
    }
  }
  ::freeifaddrs(list);
  return addresses;
}

}  // namespace tessera::comm
