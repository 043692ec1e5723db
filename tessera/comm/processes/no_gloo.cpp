#include "tessera/base/error.h"
#include "tessera/comm/processes/c10d.h"

namespace tessera::comm {

c10::intrusive_ptr<c10d::Backend> make_gloo(const StorePtr&, const ProcessJob&) {
  TESSERA_THROW(
      CommError,
      "[comm] tessera was built without Gloo; accepted: install libgloo-dev (its headers alone are used) and configure "
      "with TESSERA_GLOO=ON, or hand in a process group of your own");
}

}  // namespace tessera::comm
