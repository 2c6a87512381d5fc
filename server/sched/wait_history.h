#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/sched/snapshot.h"
#include "server/sched/wait_causes.h"

namespace sft::server::sched {

// What moves jobs while they wait. Decisions are shown to it in their order; it says which jobs
// stand elsewhere or start at another time than they were last told, and why. What goes by itself
// is no change: those ahead start, and are quicker than expected, and a start behind a run of
// unknown length moves with the clock.
// It uses no clock and no store, and costs nothing while nobody waits. One thread.
class WaitHistory {
 public:
  // Changes of one job are at least this far apart: what moves back and forth is not told.
  static constexpr int64_t kApartUs = 60'000'000;
  // Changes that one decision tells; the others follow, if they last.
  static constexpr size_t kMostAtOnce = 100;

  // The changes that a decision makes, in the order of the line.
  std::vector<WaitChange> Look(const Snapshot& snapshot, const Decision& decision);
  // They are stored: what comes later is told from there.
  void Stored(const std::vector<WaitChange>& changes);

 private:
  struct Job {
    std::string type, project;
    WaitPlace told;         // as it would be if all had gone by itself
    int64_t round = 0;      // since which decision
    int64_t stored_us = 0;  // of its last change; 0: none
    WaitPlace last;         // as of the decision before
    bool seen = false;      // by this one
  };
  // The causes of one round are found before its jobs are compared.
  void NoteLine(const Snapshot& snapshot, const Decision& decision, int64_t before_us);
  void NoteTurns(const Decision& decision);
  void NotePreemptions(const Snapshot& snapshot, const Decision& decision);
  void Note(Cause cause);
  // Moves what a job was told by as much as it moves by itself.
  void MoveAlong(Job& job, const WaitPlace& now, int64_t elapsed_us) const;
  std::vector<const Cause*> CausesOf(const std::string& id, const Job& job, const WaitPlace& now,
                                     bool later, bool sooner) const;
  WaitChange Compare(const std::string& id, Job& job, const Waiting& waiting) const;

  FleetWatch fleet_;
  std::unordered_map<std::string, Job> jobs_;
  std::map<std::string, std::vector<int>> started_;  // places of those that start now, by type
  std::deque<Cause> causes_;
  int64_t round_ = 0, now_us_ = 0;
  bool first_ = true;
};

}  // namespace sft::server::sched
