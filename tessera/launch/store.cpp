#include "tessera/launch/store.h"

#include <chrono>
#include <cstring>
#include <utility>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "tessera/base/error.h"

namespace tessera::launch {
namespace {

// How many connections may wait until it serves: every rank's.
constexpr int kBacklog = 1024;

}  // namespace

LocalStore::LocalStore() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  TESSERA_CHECK_AS(CommError,
                   ::bind(socket_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                       ::listen(socket_, kBacklog) == 0 &&
                       ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size) == 0,
                   "[launch] no free port: ", std::strerror(errno));
  port_ = ntohs(address.sin_port);
}

LocalStore::~LocalStore() {
  if (socket_ >= 0) {
    ::close(socket_);
  }
}

void LocalStore::serve() {
  TESSERA_ASSERT(socket_ >= 0);
  c10d::TCPStoreOptions options{
      .port = static_cast<std::uint16_t>(port_),
      .isServer = true,
      .waitWorkers = false,
      .timeout = std::chrono::seconds(10),
      .masterListenFd = std::exchange(socket_, -1),
  };
  try {
    server_ = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  } catch (const std::exception& error) {
    TESSERA_THROW(CommError, "[launch] cannot serve the job's store at port ", port_,
                  " of 127.0.0.1: ", base::message_of(error));
  }
}

}  // namespace tessera::launch
