#include "tessera/watch/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "tessera/base/text.h"
#include "tessera/comm/call/call.h"
#include "tessera/comm/call/flight.h"
#include "tessera/dtensor/record/arguments.h"
#include "tessera/dtensor/record/op_info.h"
#include "tessera/dtensor/state/observer.h"
#include "tessera/dtensor/state/state.h"
#include "tessera/trace/clock.h"

namespace tessera::watch {
namespace {

struct Sent {
  int64_t calls = 0, bytes = 0;
};

Sent total_of(const trace::Ledger& ledger) {
  Sent total;
  for (const auto& entry : ledger.entries()) {
    total.calls += entry.calls;
    total.bytes += entry.bytes;
  }
  return total;
}

struct Input {
  layout::Spec spec;
  int arg = 0;
  int item = -1;  // of a list
  const dtensor::ParameterInfo* parameter = nullptr;
};

// The collectives of one redistribution.
struct MoveNote {
  comm::CurrentLayouts layouts;
  std::vector<std::string> collectives = {};
  Sent sent = {};
};

// A call that runs, and the record of those like it.
struct Note {
  const dtensor::OpInfo* info = nullptr;  // null: no operator
  const std::string* name = nullptr;
  const Place* place = nullptr;
  bool has_results = false;
  std::vector<Input> inputs = {};
  std::vector<layout::Spec> outputs = {};
  std::vector<MoveNote> moves = {};
  int64_t begin_ns = 0, end_ns = 0, inside_ns = 0;  // inside: of operators that it called
  int64_t calls = 0, own_ns = 0;
};

// Equal for calls that are one row, while one of them holds its Specs.
std::vector<const void*> note_key(const Note& note) {
  std::vector<const void*> key = {note.name, note.place};
  for (const Input& input : note.inputs) {
    key.insert(key.end(), {input.spec.get(), input.parameter});
  }
  key.push_back(nullptr);
  for (const layout::Spec& output : note.outputs) {
    key.push_back(output.get());
  }
  key.push_back(nullptr);
  for (const MoveNote& move : note.moves) {
    key.insert(key.end(), {move.layouts.from.get(), move.layouts.to.get()});
  }
  return key;
}

std::string layout_of(const layout::Spec& spec) { return spec ? spec.layout_str() : ""; }

// Which of the arguments it moved: they are moved in their order.
const Input* moved_input(const Note& note, const MoveNote& move) {
  int64_t earlier = std::count_if(note.moves.data(), &move,
                                  [&](const MoveNote& other) { return other.layouts.from == move.layouts.from; });
  const Input* moved = nullptr;
  for (const Input& input : note.inputs) {
    if (!(input.spec == move.layouts.from)) {
      continue;
    }
    moved = &input;
    if (earlier-- == 0) {
      break;
    }
  }
  return moved;
}

Redistribution describe(const Note& note, const MoveNote& move) {
  Redistribution result{.from = layout_of(move.layouts.from),
                        .to = layout_of(move.layouts.to),
                        .collectives = base::join(move.collectives, ", ")};
  const Input* input = moved_input(note, move);
  if (input) {
    result.argument = note.info->argument_name(input->arg, input->item);
    if (input->parameter) {
      result.parameter = input->parameter->name;
    }
  } else if (note.info && move.layouts.from) {
    result.argument = "result";
  }
  // libtorch's formulas name a gradient so, or have it first.
  result.is_gradient = !input || input == note.inputs.data() || result.argument.starts_with("grad");
  result.count = note.calls;
  result.collective_calls = move.sent.calls;
  result.bytes = move.sent.bytes;
  if (move.layouts.from && note.info) {
    advise(*note.place, *move.layouts.from, *move.layouts.to, result);
  }
  return result;
}

ExplainedCall describe(const Note& note) {
  ExplainedCall call{.place = *note.place, .op = *note.name, .is_op = note.info != nullptr, .calls = note.calls};
  for (const Input& input : note.inputs) {
    call.inputs.push_back(text_of(*input.spec));
  }
  for (const layout::Spec& output : note.outputs) {
    call.outputs.push_back(text_of(*output));
  }
  for (const MoveNote& move : note.moves) {
    call.moves.push_back(describe(note, move));
  }
  call.seconds = static_cast<double>(note.own_ns) * 1e-9;
  return call;
}

}  // namespace

class Explain::Recorder : public dtensor::OpObserver, public comm::Watcher {
 public:
  Recorder(ExplainOptions options, dtensor::RankState& state)
      : places_(std::move(options.locate)),
        state_(state),
        previous_(state.watch.observer()),
        seen_(total_of(state.ctx.ledger)) {}

  void listen(const std::shared_ptr<Recorder>& self) {
    state_.watch.set_observer(this);
    state_.ctx.watchers.push_back(self);
  }
  void stop() {
    if (is_stopped_ || dtensor::RankState::current() != &state_) {
      return;  // not on a rank that is over
    }
    report_ = made_report();
    is_stopped_ = true;
    if (state_.watch.observer() == this) {
      state_.watch.set_observer(previous_);
    }
    std::erase_if(state_.ctx.watchers, [this](const auto& watcher) { return watcher.get() == this; });
  }

  Places& places() { return places_; }

  void on_begin(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> args) override {
    Note note{.info = &info, .name = &info.name, .place = places_.begin(state, args)};
    dtensor::for_each_tensor(args, [&](const at::Tensor& tensor, int arg, int item) {
      if (dtensor::is_dtensor(tensor)) {
        note.inputs.push_back({dtensor::meta_of(tensor)->spec, arg, item, dtensor::meta_of(tensor)->parameter});
      }
    });
    note.begin_ns = trace::now_ns();
    open_.push_back(std::move(note));
  }

  void on_results(dtensor::RankState& state, const dtensor::OpInfo& info, c10::ArrayRef<c10::IValue> results) override {
    Note& note = open_.back();
    note.end_ns = trace::now_ns();
    note.has_results = true;
    dtensor::for_each_tensor(results, [&](const at::Tensor& tensor, int, int) {
      if (dtensor::is_dtensor(tensor)) {
        note.outputs.push_back(dtensor::meta_of(tensor)->spec);
      }
    });
    places_.end(note.place);
  }

  void on_end(dtensor::RankState&, const dtensor::OpInfo&) noexcept override { close(); }

  void on_begin(const comm::Call& call) override {
    const Sent now = total_of(state_.ctx.ledger);
    const bool is_cleared = now.calls < seen_.calls;
    const Sent sent = is_cleared ? now : Sent{now.calls - seen_.calls, now.bytes - seen_.bytes};
    seen_ = now;
    if (sent.calls == 0) {
      return;  // no part of a redistribution: a barrier, what ranks compare
    }
    if (open_.empty()) {
      open_.push_back({.name = &*names_.insert(call.op).first,
                       .place = places_.here(state_),
                       .has_results = true,
                       .begin_ns = trace::now_ns()});
      outside_ = &call;
    }
    add(sent, c10::str(comm::name_of(call.kind), " ", call.group->name()));
  }

  void on_end(const comm::Call& call, bool) override {
    if (outside_ != &call) {
      return;
    }
    outside_ = nullptr;
    close();
  }

  ExplainReport report() const { return is_stopped_ ? report_ : made_report(); }

 private:
  ExplainReport made_report() const {
    ExplainReport report{.rank = state_.ctx.rank, .world_size = state_.ctx.world_size};
    for (const Note& note : notes_) {
      report.calls.push_back(describe(note));
    }
    return report;
  }

  void add(Sent sent, std::string collective) {
    const auto layouts = comm::current_layouts(state_.ctx);
    auto& moves = open_.back().moves;
    if (moves.empty() || moves.back().layouts.scope != layouts.scope) {
      moves.push_back({.layouts = layouts});
    }
    MoveNote& move = moves.back();
    move.sent.calls += sent.calls;
    move.sent.bytes += sent.bytes;
    move.collectives.push_back(std::move(collective));
  }

  // The call that began last is over.
  void close() {
    Note note = std::move(open_.back());
    open_.pop_back();
    if (note.end_ns == 0) {
      note.end_ns = trace::now_ns();
    }
    if (!open_.empty()) {
      open_.back().inside_ns += trace::now_ns() - note.begin_ns;
    }
    if (!note.has_results && note.moves.empty()) {
      return;  // made of others, noted only, or failed
    }
    note.calls = 1;
    note.own_ns = note.end_ns - note.begin_ns - note.inside_ns;
    const auto [entry, is_first] = by_key_.try_emplace(note_key(note), notes_.size());
    if (is_first) {
      notes_.push_back(std::move(note));
    } else {
      merge(notes_[entry->second], note);
    }
  }

  static void merge(Note& all, const Note& one) {
    all.calls += 1;
    all.own_ns += one.own_ns;
    for (size_t i = 0; i < all.moves.size(); ++i) {
      all.moves[i].sent.calls += one.moves[i].sent.calls;
      all.moves[i].sent.bytes += one.moves[i].sent.bytes;
    }
  }

  Places places_;
  dtensor::RankState& state_;
  dtensor::OpObserver* const previous_;
  Sent seen_;  // of the ledger
  std::vector<Note> open_, notes_;
  std::map<std::vector<const void*>, size_t> by_key_;
  std::set<std::string> names_;          // of what is no operator
  const comm::Call* outside_ = nullptr;  // a collective that no operator needed, while it runs
  bool is_stopped_ = false;
  ExplainReport report_;  // once it is
};

Explain::Explain(ExplainOptions options)
    : recorder_(std::make_shared<Recorder>(std::move(options), dtensor::RankState::require())) {
  recorder_->listen(recorder_);
}

Explain::~Explain() { stop(); }

void Explain::stop() { recorder_->stop(); }

ExplainReport Explain::report() const { return recorder_->report(); }

void Explain::enter(std::string module) { recorder_->places().enter(std::move(module)); }

void Explain::leave() { recorder_->places().leave(); }

}  // namespace tessera::watch
