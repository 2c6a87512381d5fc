#pragma once

#include <string>
#include <vector>

#include "common/base/status.h"
#include "server/door/exchange.h"

namespace sft::server {

// What one call follows, a job or a log: reads the truth and sends what is new of it, whenever its
// transport lets it look. It holds no thread between two looks, which do not overlap.
class Follower {
 public:
  enum class Next {
    kAgain,  // there may be more: look once what was written has gone out
    kWait,   // until one of the keys changes
    kEnd,    // all that was asked for is written
  };

  virtual ~Follower() = default;
  // Writes what is new, in a few messages at most. An error ends the call.
  virtual absl::StatusOr<Next> Look(Exchange& exchange) = 0;
  // The keys of ChangeHub whose changes are news; none: it never waits, and follows nothing. A look
  // may change them, and is then followed by another.
  virtual std::vector<std::string> keys() const = 0;
};

}  // namespace sft::server
