#include "tessera/comm/call/divergence.h"

#include "tessera/base/text.h"
#include "tessera/comm/core/context.h"
#include "tessera/comm/merge/exact_merge.h"

namespace tessera::comm {
namespace {

bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_cpu() == b.is_cpu() && a.sizes() == b.sizes();
}

// Whether what `a` gives to `b` (positions i and j) is what `b` expects from it. The kinds are equal.
bool fits(const Call& a, const Call& b, size_t i, size_t j) {
  if (a.kind == Kind::kMerge) {
    return is_same(*a.merge, *b.merge);
  }
  if (a.inputs.empty() || b.outputs.empty()) {
    return true;
  }
  const auto& facts = facts_of(a.kind);
  return same(a.inputs[facts.gives_to_each ? j : 0], b.outputs[facts.takes_from_each ? i : 0]);
}

bool same_program(const Call& a, const Call& b) {
  return !a.program || !b.program || (a.program->hash == b.program->hash && a.program->count == b.program->count);
}

int64_t global_rank(const Call& call) { return call.group->ranks()[static_cast<size_t>(call.group->rank())]; }

std::string op_text(const Program& program, uint64_t index) {
  const auto& entry = program.last[index % Program::kKept];
  const auto printer = detail_printer();
  return std::string(entry.op) + (printer && entry.detail ? " " + printer(entry.detail) : "");
}

// `; they parted at op 17: rank 0 ran aten::mm, rank 2 ran aten::add`.
std::string parting(const Call& a, const Call& b) {
  if (!a.program || !b.program || same_program(a, b)) {
    return "";
  }
  const auto& p = *a.program;
  const auto& q = *b.program;
  const auto shorter = std::min(p.count, q.count), longer = std::max(p.count, q.count);
  const auto oldest = longer > Program::kKept ? longer - Program::kKept : 0;
  std::ostringstream out;
  for (uint64_t i = oldest; i < shorter; ++i) {
    if (p.last[i % Program::kKept].hash != q.last[i % Program::kKept].hash) {
      out << "; they parted at " << (i == oldest && i > 0 ? "or before " : "") << "op " << i << ": rank "
          << global_rank(a) << " ran " << op_text(p, i) << ", rank " << global_rank(b) << " ran " << op_text(q, i)
          << (op_text(p, i) == op_text(q, i) ? " with other shapes, layouts or numbers" : "");
      return out.str();
    }
  }
  if (oldest >= shorter) {
    out << "; they parted before the last " << Program::kKept << " ops: rank " << global_rank(a) << " has run "
        << p.count << ", rank " << global_rank(b) << " " << q.count;
    return out.str();
  }
  const bool a_is_longer = p.count > q.count;
  out << "; they parted at op " << shorter << ": rank " << global_rank(a_is_longer ? a : b) << " ran "
      << op_text(a_is_longer ? p : q, shorter) << ", rank " << global_rank(a_is_longer ? b : a) << " did not";
  return out.str();
}

std::string report(const Call& a, const Call& b, const char* what = "run different programs") {
  std::ostringstream out;
  out << "[comm] ranks " << global_rank(a) << " and " << global_rank(b) << " " << what << ": rank " << global_rank(a)
      << " calls " << a.str() << ", rank " << global_rank(b) << " calls " << b.str() << parting(a, b)
      << ". Every rank must run the same operators with the same global shapes, layouts and numbers: look for what "
         "depends on the rank.";
  const std::string advice = advice_for(a);
  out << (advice.empty() ? advice_for(b) : advice);
  return out.str();
}

}  // namespace

std::string advice_for(const Call& call) {
  std::ostringstream out;
  if (!call.program) {
    return "";
  }
  if (const Program::WayBack& back = call.program->way_back; back.reader) {
    out << " In this pipeline's schedule " << back.reader << " reads on stage " << back.to << " what stage "
        << back.from
        << " made, and passes go through the stages in their order: register layers in the order in which they are "
           "called, or change their On(...) in the plan; a parameter that a later layer reads must be one of that "
           "layer's too (a tied weight). Without a schedule such a program is right.";
  } else if (call.program->has_gone_past) {
    out << " Or for a module that does not run the same in each micro-batch: a plan with "
           "\"always_walked\": [\"**\"] has ranks of other stages walk all modules every time.";
  }
  return out.str();
}

std::string divergence_of(const std::vector<const Call*>& calls) {
  const auto& first = *calls[0];
  const Call* told = &first;  // the first that has a program
  for (const auto* call : calls) {
    if (call->kind != first.kind || call->reduce != first.reduce || call->peer != first.peer) {
      return report(first, *call);
    }
    if (!same_program(*told, *call)) {
      return report(*told, *call);
    }
    told = told->program ? told : call;
  }
  if (first.kind == Kind::kBarrier) {
    return "";
  }
  for (size_t i = 0; i < (is_uniform(first.kind) ? 1 : calls.size()); ++i) {
    for (size_t j = 0; j < calls.size(); ++j) {
      if (!fits(*calls[i], *calls[j], i, j)) {
        return report(*calls[std::min(i, j)], *calls[std::max(i, j)]);
      }
    }
  }
  return "";
}

std::string divergence_by_deadlock(const Call& a, const Call& b) { return report(a, b, "wait for each other"); }

std::string divergence_of(const Call& receive, const at::Tensor& sent) {
  if (same(receive.outputs[0], sent)) {
    return "";
  }
  std::ostringstream out;
  out << "[comm] rank " << global_rank(receive) << " calls " << receive.str() << ", but rank "
      << receive.group->ranks()[static_cast<size_t>(receive.peer)] << " sent " << sent.scalar_type() << sent.sizes();
  return out.str();
}

std::string divergence_by_end(int64_t finished, int64_t waiting, const Call& call) {
  return c10::str(
      "[comm] rank ", finished, " has finished; rank ", waiting, " waits in ", call.str(),
      "; every rank must make the same calls: look for a return, a loop or a branch that depends on the rank");
}

}  // namespace tessera::comm
