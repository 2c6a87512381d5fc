#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/sched/decide.h"

// Short notations for nodes, jobs and decisions.

namespace sft::server::sched {

inline NodeView Node(const std::string& name, const std::string& type, int slots,
                     const std::map<int, std::string>& held = {}) {
  NodeView node;
  node.name = name;
  for (int i = 0; i < slots; ++i) {
    node.slots.push_back({i, type, true, held.contains(i) ? held.at(i) : ""});
  }
  return node;
}

inline std::map<int, std::string> Held(int from, int to, const std::string& job) {
  std::map<int, std::string> held;
  for (int i = from; i < to; ++i) held[i] = job;
  return held;
}

inline PendingJob Job(const std::string& id, const std::string& type, int slots, int nodes = 1) {
  return {id, type, slots, nodes, ""};
}

// "job: node 0 1 2; node 3" for each placement, "job? reason" for each that waits.
inline std::vector<std::string> Text(const Decision& decision) {
  std::vector<std::string> lines;
  for (const Placement& placement : decision.placements) {
    std::string line = placement.job + ":";
    for (const Part& part : placement.parts) {
      line += " " + part.node;
      for (const int slot : part.slots) line += " " + std::to_string(slot);
    }
    lines.push_back(line);
  }
  for (const Waiting& waiting : decision.waiting)
    lines.push_back(waiting.job + "? " + waiting.reason);
  return lines;
}

using Lines = std::vector<std::string>;

}  // namespace sft::server::sched
