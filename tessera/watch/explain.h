// What every operator of a piece of program did on this rank, and what its redistributions cost.
#pragma once

#include <memory>
#include <string>

#include "tessera/watch/explain_report.h"
#include "tessera/watch/places.h"

namespace tessera::watch {

struct ExplainOptions {
  Places::Locate locate = {};  // where the program is; C++ programs have modules only
};

// Records the operators on DTensors and the collectives of the calling rank, while it lives or until `stop`:
//
//     tessera::Explain explain;
//     job(tokens, targets).backward();
//     std::cout << explain.report().text();
//
// The numbers of the program stay the same; it is slower. Operators are those of the observers (observer.h); a
// collective that none of them needed stands under the name of what asked for it. One per rank and at a time: of
// several, or with a NanFinder, the one made last is told. Made, used and destroyed by the rank's thread.
class Explain {
 public:
  explicit Explain(ExplainOptions options = {});
  ~Explain();
  Explain(const Explain&) = delete;
  Explain& operator=(const Explain&) = delete;

  void stop();
  ExplainReport report() const;

  // The program is inside of the module of this dotted name.
  void enter(std::string module);
  void leave();

 private:
  class Recorder;
  std::shared_ptr<Recorder> recorder_;
};

}  // namespace tessera::watch
