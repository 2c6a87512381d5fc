#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/app/options.h"
#include "server/app/standby_source.h"

namespace sft::server {

// What a standby says of itself, on /metrics and in its log.
struct StandbyFigures {
  std::optional<WallTime> begun;  // of the last whole copy: nothing that was acknowledged before it
                                  // would be lost
  Nanos took{0};                  // that the last round took
  int64_t rounds = 0, failures = 0;
  std::string error;  // of the last round; empty: it succeeded
};
// The most that a loss of the server costs while rounds succeed: what it acknowledges from the
// beginning of one round to the end of the next.
Nanos LossBound(const StandbyFigures& figures, Nanos every);
std::string StandbyMetrics(const StandbyFigures& figures, Nanos every, WallTime now);

// Copies the server of Options::standby_of every so often, serving /metrics and /healthz on
// loopback meanwhile, until SIGINT or SIGTERM (false) or until SIGUSR1, which `sft-server takeover`
// sends: then the data folder is made that of the fleet's server (true), and the process is to
// serve it. True at once for a folder whose standby took over before. The signals are blocked in
// all threads.
absl::StatusOr<bool> RunStandby(const Options& options, Clock& clock);

// Runs `sft-server takeover`: tells the standby of the data folder to take its server's place, and
// waits until it has; where none runs, makes the folder ready itself. Returns the text for the
// operator.
absl::StatusOr<std::string> TakeOver(const Options& options, Clock& clock);

// Tells the server whose place this one has taken that it was replaced, every few seconds, for it
// may come back. In a thread, until it is destroyed.
class Successor {
 public:
  // Without effect where the options name no server whose place this data folder has taken.
  Successor(const Options& options, int64_t generation, const std::string& address);
  ~Successor();

 private:
  void Loop(int64_t generation, const std::string& address) SFT_EXCLUDES(mutex_);

  std::unique_ptr<RemoteSource> source_;
  std::string of_;
  Mutex mutex_;
  CondVar stopped_;
  bool stopping_ SFT_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace sft::server
