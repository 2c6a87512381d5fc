#pragma once

#include <string>
#include <string_view>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "worker/base/backoff.h"

namespace sft::worker {

// The tries in a row of one thing that fails: when it is tried again, what is told meanwhile, and
// when it has been enough. Thread-compatible.
class Retries {
 public:
  // Enough is when both are reached: a server that is restarted uses up tries fast, a slow transfer
  // uses up time with few.
  struct Limit {
    int tries = 10;
    Nanos time = std::chrono::minutes(15);
  };
  explicit Retries(Limit limit)
      : limit_(limit), backoff_(std::chrono::milliseconds(250), std::chrono::seconds(10)) {}

  // A try has failed. While the server is `away` nobody could be told of an end, and nothing the
  // server holds is lost by waiting: neither the try nor the time counts.
  void Failed(MonoTime now, bool away);
  // The next failure is the first of another row.
  void Succeeded();

  // The next try is due now.
  void Hurry() { due_ = MonoTime{}; }

  // No other try shall follow.
  bool Enough() const { return tries_ >= limit_.tries && spent_ >= limit_.time; }
  int failures() const { return failures_; }
  // Until the next try is due: whoever is woken early waits on.
  Nanos Wait(MonoTime now) const { return now < due_ ? due_ - now : Nanos(0); }
  // "download of ab12 failed twice: the connection broke; tries again in 8 s"
  std::string Text(std::string_view what, const absl::Status& why, MonoTime now) const;
  // "10 times in 15m"
  std::string Counts() const;

 private:
  const Limit limit_;
  Backoff backoff_;
  int failures_ = 0;
  int tries_ = 0;  // of failures_ that count
  Nanos spent_{0};
  MonoTime last_{};
  MonoTime due_{};
};

}  // namespace sft::worker
