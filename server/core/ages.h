#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/clock.h"

namespace sft::server {

// Ages of things whose start is stored as wall time, counted by the monotonic clock from when each
// was first asked about: a later jump of the wall clock makes nothing older or younger.
// Thread-compatible.
class Ages {
 public:
  explicit Ages(const Clock& clock) : clock_(clock) {}

  // Age in microseconds of something that began at `since_us` of the wall clock; never negative.
  int64_t Of(const std::string& key, int64_t since_us);
  // Call after each round of questions: keys that were not asked about in it are forgotten.
  void EndRound();

 private:
  struct Seen {
    int64_t age_us = 0;  // age at time `at`
    MonoTime at{};
    bool asked = false;  // asked about in this round
  };
  const Clock& clock_;
  std::map<std::string, Seen> seen_;
};

}  // namespace sft::server
