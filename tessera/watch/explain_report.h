// What `explain` has seen: operators with their layouts, redistributions, bytes and time; and what to write where they
// cost most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/watch/places.h"
#include "tessera/layout/spec.h"

namespace tessera::watch {

// What would make a redistribution cheaper.
enum class Remedy : uint8_t {
  kNone,       // nothing: gradients' sums over ranks, merges that leave each rank its part
  kStore,      // keep the parameter as the operator wants it
  kOnce,       // make the operand so once, before what reads it
  kKeep,       // keep the forward value as its gradient comes
  kPlanPart,   // have the plan merge into parts of the sequence (sequence parallelism): as many bytes, less work and
               // memory between
  kMergePart,  // merge into parts where the value is made: half of the bytes, if nothing needs it whole
};

// One redistribution of an operator: planned (a plan's wish, the operator's rule) or written by the program.
struct Redistribution {
  std::string from = {}, to = {};  // `{tp: P}`, `{tp: R}`
  std::string argument = {};       // of the operator; `result`; empty: not known
  std::string parameter = {};      // the name, if the argument is one
  bool is_gradient = false;        // of an operator of backward: else a value of forward
  std::string collectives = {};    // `reduce_scatter dp, all_gather tp`
  std::string line = {};           // to write; empty: none
  Remedy remedy = Remedy::kNone;
  int64_t count = 0;             // over all calls
  int64_t collective_calls = 0;  // as the ledger counts them
  int64_t bytes = 0;             // that this rank sent, as the ledger counts them
  int64_t saved() const;         // bytes that `line` saves at most; a merge still has to be made
};

// Calls of one operator in one place with the same layouts and redistributions.
struct ExplainedCall {
  Place place = {};
  std::string op = {};  // `aten::mm`; what the program called, if it is no operator: `redistribute`
  std::vector<std::string> inputs = {}, outputs = {};  // the DTensors: `Float[8, 16] {dp: S(0)}`
  std::vector<Redistribution> moves = {};
  bool is_op = true;
  int64_t calls = 0;
  double seconds = 0;  // inside of it, waiting for other ranks included, without operators that it calls
  int64_t bytes() const;
  int64_t redistributions() const;
};

// What belongs to one module, without its children.
struct ModuleTotal {
  std::string module;
  int64_t calls = 0, redistributions = 0, bytes = 0;
  double seconds = 0;
};

// One redistribution over all places that differ in the number of a layer only.
struct Worst {
  Redistribution move = {};
  Place place = {};
  std::string op = {};
  int64_t operators = 0;     // that needed it
  std::string text() const;  // the line to write, and why
};

// What one rank did. A value.
struct ExplainReport {
  int64_t rank = 0, world_size = 1;
  std::vector<ExplainedCall> calls = {};  // in the order of their first call

  int64_t bytes() const;
  int64_t collective_calls() const;
  int64_t redistributions() const;
  double seconds() const;

  // By module, in the order of first calls.
  std::vector<ModuleTotal> modules() const;
  // Those with a line to write: which save most first, then which send most; at most `count`.
  std::vector<Worst> worst(size_t count = 3) const;
  // The same with `*` for the numbers in module and parameter names, and alike calls merged.
  ExplainReport folded() const;

  // Folded tables for people: totals, the worst redistributions, modules, operators. No line is longer than `width`
  // characters.
  std::string text(size_t width = 160) const;
  // Everything, not folded: {"rank", "world_size", "bytes", "seconds", "redistributions", "calls": [...], "modules":
  // [...], "worst": [...]}.
  std::string json() const;
};

// What would make the redistribution of `from` to `to`, needed at `place`, cheaper: fills `remedy` and `line`.
void advise(const Place& place, const layout::SpecData& from, const layout::SpecData& to, Redistribution& move);

// `layers.*.mlp` of `layers.3.mlp`.
std::string folded_name(const std::string& name);

}  // namespace tessera::watch
