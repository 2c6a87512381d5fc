#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "server/app/options.h"

namespace sft::server {

// The worker process of --dev: started beside the server, started again when it dies, stopped with
// it. A worker that an earlier server of the same data folder left behind (that server was killed)
// is taken over when it dials the same address, else stopped first. Used by the main thread alone.
class DevWorker {
 public:
  // `server` is the address it dials.
  DevWorker(const Options& options, std::string data_dir, std::string server, Clock& clock);

  absl::Status Start();
  // Called about once a second: reaps it when it has died, and starts it again after a while.
  // INVALID_ARGUMENT when it has refused its options: it would do so every time. It has said why on
  // this process's standard error.
  absl::Status Watch();
  // SIGTERM, a grace, SIGKILL. The ranks of running jobs go on under their shims.
  void Stop();

 private:
  static constexpr std::chrono::seconds kGrace{10};
  static constexpr std::chrono::seconds kMaxDelay{30};

  std::vector<std::string> Arguments() const;
  std::string RecordPath() const { return data_dir_ + "/dev-worker.json"; }
  absl::Status Spawn();
  // The pid of a worker left behind, or 0.
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
