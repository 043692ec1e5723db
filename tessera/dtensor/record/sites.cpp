#include "tessera/dtensor/record/sites.h"

#include <algorithm>

#include "tessera/base/hash.h"

namespace tessera::dtensor {

namespace {

// The last reading of a parameter.
uint64_t reading_of(const Sites::Position& position) {
  const uint64_t site = position.parameter ? position.parameter->site : base::hash_string("start");
  return base::hash_combine(site, position.reading);
}

}  // namespace

uint64_t Sites::use(bool reads_parameter) {
  return base::hash_combine(reading_of(position_), reads_parameter ? 0 : ++position_.calls);
}

Sites::NodeCalls& Sites::calls_of(uint64_t node) {
  if (node_calls_.node != node) {
    node_calls_ = {node};
  }
  return node_calls_;
}

uint64_t Sites::number_of(int graph_task) {
  const int task = backward_ == -1 ? graph_task : backward_;
  auto found = std::find(graph_tasks_.begin(), graph_tasks_.end(), task);
  if (found == graph_tasks_.end()) {
    found = graph_tasks_.insert(found, task);
  }
  return static_cast<uint64_t>(found - graph_tasks_.begin());
}

uint64_t Sites::use_of_sum(uint64_t use, int graph_task, uint64_t node) {
  return base::hash_combine(base::hash_combine(use, number_of(graph_task)), ++calls_of(node).sums);
}

uint64_t Sites::use_in_backward(uint64_t use, int graph_task, uint64_t node) {
  return base::hash_combine(base::hash_combine(use, number_of(graph_task) + 1000), ++calls_of(node).others);
}

uint64_t Sites::next_draw() {
  const uint64_t site = base::hash_combine(reading_of(position_), position_.draws++);
  return position_.evaluation > 0 ? base::hash_combine(site, position_.evaluation) : site;
}

Sites::Stretch Sites::since(const Position& then) const {
  Stretch part;
  part.draws = position_.draws, part.calls = position_.calls;
  for (const auto& [parameter, count] : position_.readings) {
    const auto before = then.readings.find(parameter);
    if (const uint64_t more = count - (before == then.readings.end() ? 0 : before->second)) {
      part.readings.emplace_back(parameter, more);
    }
  }
  if (part.readings.empty()) {
    part.draws -= then.draws, part.calls -= then.calls;
  } else {
    part.parameter = position_.parameter;
  }
  return part;
}

void Sites::go_past(const Stretch& part) {
  for (const auto& [parameter, count] : part.readings) {
    position_.readings[parameter] += count;
  }
  if (part.parameter) {
    position_.parameter = part.parameter;
    position_.reading = position_.readings[part.parameter] - 1;
    position_.draws = position_.calls = 0;
  }
  position_.draws += part.draws;
  position_.calls += part.calls;
}

}  // namespace tessera::dtensor
