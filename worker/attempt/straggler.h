#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "worker/attempt/hang.h"

namespace sft::worker {

// Notices a rank that holds up the others of its node step after step, by the time of each step
// that a rank did not wait for others. Told once for each episode: until it has kept up again for
// as many steps. Pure but for its memory; thread-compatible.
class StragglerWatch {
 public:
  struct Options {
    double factor = 1.5;  // own time over the median of the others'
    int steps = 10;       // in a row
    int alike = 0;        // consecutive ranks that do the same work, as those of a stage; 0: all
    // Differences below it are noise, whatever their ratio.
    Nanos least = std::chrono::milliseconds(20);
  };
  explicit StragglerWatch(const Options& options) : options_(options) {}

  struct Straggler {
    int rank = 0;
    std::string place;
    int64_t step = 0;  // at which it was noticed
    Nanos own{};       // of that step
    Nanos others{};    // the median of the others
  };
  // The ranks that are newly found slow.
  std::vector<Straggler> Look(const std::vector<RankLook>& ranks);

 private:
  bool Alike(int a, int b) const {
    return options_.alike == 0 || a / options_.alike == b / options_.alike;
  }

  const Options options_;
  int64_t seen_ = 0;           // steps up to here were judged
  std::map<int, int> slow_;    // steps in a row
  std::map<int, int> steady_;  // of a reported one
  std::set<int> reported_;
};

// "rank 3 on GPU 3 of node-a is slow: 812 ms of its own in step 40, the others 410 ms (1.98 times),
// for 10 steps"
std::string Describe(const StragglerWatch::Straggler& straggler, const std::string& node);

}  // namespace sft::worker
