#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"

namespace sft::server {

// How much of what each node said was refused since the start: counted, and logged now and then
// with the node's name, however often the node says it. Thread-safe.
class NodeRefusals {
 public:
  // Of one node at most one line of the log in so long.
  static constexpr std::chrono::seconds kTellAgain{10};
  static constexpr size_t kMaxNodes = 4096;

  explicit NodeRefusals(Clock& clock) : clock_(clock) {}

  void Count(const std::string& node, const absl::Status& why);
  // By node.
  std::map<std::string, int64_t> counts() const;

 private:
  struct Entry {
    int64_t count = 0, untold = 0;
    MonoTime told{};
  };
  Clock& clock_;
  mutable Mutex mutex_;
  std::map<std::string, Entry> entries_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
