#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/clock.h"

namespace sft::server {

// How long ago things began of which the wall time is stored, told by the monotonic clock from when
// each was first asked about: a wall clock that jumps later makes nothing older or younger.
// Thread-compatible.
class Ages {
 public:
  explicit Ages(const Clock& clock) : clock_(clock) {}

  // Of what began at `since_us` of the wall clock, in microseconds; never negative.
  int64_t Of(const std::string& key, int64_t since_us);
  // To be called after each round of questions: what was not asked about in it is forgotten.
  void EndRound();

 private:
  struct Seen {
    int64_t age_us = 0;  // at `at`
    MonoTime at{};
    bool asked = false;  // in this round
  };
  const Clock& clock_;
  std::map<std::string, Seen> seen_;
};

}  // namespace sft::server
