#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/base/backoff.h"

namespace sft::worker {

// Retry policy of one failing operation: when to try again, what to report meanwhile, and when to
// give up. Thread-compatible.
class Retries {
 public:
  // Retrying ends when both are reached: a server that is restarted uses up tries fast, a slow
  // transfer uses up time with few.
  struct Limit {
    int tries = 10;
    Nanos time = std::chrono::minutes(15);
  };
  explicit Retries(Limit limit)
      : limit_(limit), backoff_(std::chrono::milliseconds(250), std::chrono::seconds(10)) {}

  // Call after a failed try. While the server is `away` nobody could be told of a failure, and
  // nothing that the server holds is lost by waiting: neither the try nor the time counts.
  void Failed(MonoTime now, bool away);
  // The next failure is the first of a new series.
  void Succeeded();

  // Makes the next try due now.
  void Hurry() { due_ = MonoTime{}; }

  // True when no other try shall follow.
  bool Enough() const { return tries_ >= limit_.tries && spent_ >= limit_.time; }
  int failures() const { return failures_; }
  // Time until the next try is due: a caller that wakes early waits on.
  Nanos Wait(MonoTime now) const { return now < due_ ? due_ - now : Nanos(0); }
  // "download of ab12 failed twice: the connection broke; tries again in 8 s"
  std::string Text(std::string_view what, const absl::Status& why, MonoTime now) const;
  // "10 times in 15m"
  std::string Counts() const;

 private:
  const Limit limit_;
  Backoff backoff_;
  int failures_ = 0;
  int tries_ = 0;  // those of failures_ that count
  Nanos spent_{0};
  MonoTime last_{};
  MonoTime due_{};
};

}  // namespace sft::worker
