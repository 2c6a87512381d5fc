#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/app/options.h"

namespace sft::server {

// The worker process of --dev: started beside the server, restarted when it dies, stopped with it.
// A worker left behind by an earlier server of the same data folder (one that was killed) is taken
// over if it dials the same address, else stopped first. Used by the main thread only.
class DevWorker {
 public:
  // `server` is the address that the worker dials.
  DevWorker(const Options& options, std::string data_dir, std::string server, Clock& clock);

  absl::Status Start();
  // Called about once a second: reaps the worker when it has died, and restarts it after a while.
  // INVALID_ARGUMENT when it has refused its options, as it would every time; it has printed the
  // reason on this process's standard error.
  absl::Status Watch();
  // Sends SIGTERM and, after a grace period, SIGKILL. The ranks of running jobs go on under their
  // shims.
  void Stop();

 private:
  static constexpr std::chrono::seconds kGrace{10};
  static constexpr std::chrono::seconds kMaxDelay{30};

  std::vector<std::string> Arguments() const;
  std::string RecordPath() const { return data_dir_ + "/dev-worker.json"; }
  absl::Status Spawn();
  // The pid of a worker that was left behind, or 0.
  pid_t FindLeftBehind(bool& same_server) const;
  bool Alive();
  void End(pid_t pid);

  const Options options_;
  const std::string data_dir_;
  const std::string server_;
  Clock& clock_;
  std::string binary_;
  pid_t pid_ = 0;
  bool is_child_ = false;
  bool refused_options_ = false;
  MonoTime started_{}, next_start_{};
  Nanos delay_ = std::chrono::seconds(1);
};

}  // namespace sft::server
