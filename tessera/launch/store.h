// The store at which the ranks of a local job find each other.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace tessera::launch {

// A c10d store on a free port of loopback that nobody can take in between: its socket listens from the beginning.
class LocalStore {
 public:
  // Throws CommError if there is no port.
  LocalStore();
  ~LocalStore();
  LocalStore(const LocalStore&) = delete;
  LocalStore& operator=(const LocalStore&) = delete;

  int port() const { return port_; }

  // Answers from now on, on a thread of its own, those who have connected already and those to come. Processes that are
  // forked later would inherit its connections. Only once; throws CommError.
  void serve();

 private:
  int socket_ = -1;  // -1: the server's
  int port_ = 0;
  c10::intrusive_ptr<c10d::Store> server_;
};

}  // namespace tessera::launch
