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

// Audit of calls that were refused or failed: who made them, which, with which code, how many per
// minute. Counted in memory and written by Flush, one audit row per kind and minute, so that a
// flood of bad calls is not a flood of commits. Thread-safe.
class FailedCalls {
 public:
  static constexpr int64_t kMinuteUs = 60'000'000;
  // The most kinds with rows of their own per minute: for one caller, and for all. Further calls
  // are counted together, so that nobody can flush what the audit says about others.
  static constexpr size_t kMostOfOne = 16, kMostOfAll = 512;
  // Method and principal of the rows for such calls.
  static constexpr char kOtherCalls[] = "other calls", kOthers[] = "others";

  FailedCalls(Store& store, Clock& clock) : store_(store), clock_(clock) {}

  // `call` is the row to write; object and address are kept from the first call of a kind.
  void Count(AuditRecord call);
  // Writes the counts since the last flush in one transaction; writes nothing if there are none.
  absl::Status Flush();

  static constexpr int kCodes = 17;  // number of gRPC's codes
  // Totals since the start, by code.
  std::array<int64_t, kCodes> totals() const;

 private:
  // Principal, method, outcome.
  using Kind = std::tuple<std::string, std::string, int>;
  struct Counted {
    AuditRecord record;  // its sequence is 0 until the row exists
    int64_t written = 0;
  };
  Kind KindOf(const AuditRecord& call) SFT_REQUIRES(mutex_);

  Store& store_;
  Clock& clock_;
  Mutex flush_mutex_;  // locked before mutex_
  mutable Mutex mutex_;
  std::map<Kind, Counted> minute_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, size_t> kinds_of_ SFT_GUARDED_BY(mutex_);
  std::array<int64_t, kCodes> totals_ SFT_GUARDED_BY(mutex_){};
};

}  // namespace sft::server
