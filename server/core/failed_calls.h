#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/store/audit.h"
#include "server/store/store.h"

namespace sft::server {

// Calls that were refused or failed: who made them, which, with which code, how many in a minute.
// Counted in memory and written by Flush, a row of the audit for each kind and minute, so that a
// flood of bad calls is no flood of commits. Thread-safe.
class FailedCalls {
 public:
  static constexpr int64_t kMinuteUs = 60'000'000;
  // Kinds that have rows of their own in one minute: of one caller, and of all. Further calls are
  // counted together, so that nobody washes away what the audit says of others.
  static constexpr size_t kMostOfOne = 16, kMostOfAll = 512;
  // What their rows are called by.
  static constexpr char kOtherCalls[] = "other calls", kOthers[] = "others";

  FailedCalls(Store& store, Clock& clock) : store_(store), clock_(clock) {}

  // `call` is how its row shows it; what it was about and from where is kept of the first one.
  void Count(AuditRecord call);
  // Writes what has been counted since the last time, in one transaction; nothing: none.
  absl::Status Flush();

  static constexpr int kCodes = 17;  // gRPC's
  // Since the start, by code.
  std::array<int64_t, kCodes> totals() const;

 private:
  // Principal, method, outcome.
  using Kind = std::tuple<std::string, std::string, int>;
  struct Counted {
    AuditRecord record;  // its sequence is 0 until the row is there
    int64_t written = 0;
  };
  Kind KindOf(const AuditRecord& call) SFT_REQUIRES(mutex_);

  Store& store_;
  Clock& clock_;
  Mutex flush_mutex_;  // before mutex_
  mutable Mutex mutex_;
  std::map<Kind, Counted> minute_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, size_t> kinds_of_ SFT_GUARDED_BY(mutex_);
  std::array<int64_t, kCodes> totals_ SFT_GUARDED_BY(mutex_){};
};

}  // namespace sft::server
