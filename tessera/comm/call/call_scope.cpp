#include "tessera/comm/call/call_scope.h"

#include <exception>

#include "tessera/comm/core/context.h"

namespace tessera::comm {

CallScope::CallScope(Call& call)
    : call_(call), context_(RankContext::current()), exceptions_(std::uncaught_exceptions()) {
  verify_call(call);
  if (context_) {
    throw_if_stopped();
    ++context_->calls;
    call.op = context_->current_op;
    call.program = context_->compare_programs ? &context_->program : nullptr;
    context_->tell([&](Watcher& watcher) { watcher.on_begin(call_); });
  }
  wait_.emplace();
}

CallScope::~CallScope() {
  wait_.reset();
  if (context_) {
    const bool failed = std::uncaught_exceptions() > exceptions_;
    context_->tell([&](Watcher& watcher) { watcher.on_end(call_, failed); });
  }
}

void note_composed(const Call& call, const char* parts) {
  if (auto* context = RankContext::current()) {
    context->ledger.record_composed(name_of(call.kind), call.group->name(), parts);
  }
}

}  // namespace tessera::comm
