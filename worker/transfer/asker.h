#pragma once

#include <list>
#include <thread>

#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Passes the server's questions on to the processes of attempts that serve, and their answers back
// as they come. A thread for each question, kMostAtOnce at most; more are refused.
class Asker {
 public:
  static constexpr int kMostAtOnce = 256;

  // Both are borrowed.
  Asker(const NodeSetup& setup, ServerApi& server) : setup_(setup), server_(server) {}
  // Waits for the answers under way.
  ~Asker();

  // Called from any thread; does not block.
  void Ask(const v1::Ask& ask);

 private:
  struct Running {
    std::thread thread;
    bool done = false;
  };
  void Answer(const v1::Ask& ask, bool refused);
  // Joins the threads that have ended.
  void Reap() SFT_REQUIRES(mutex_);

  const NodeSetup& setup_;
  ServerApi& server_;
  Mutex mutex_;
  std::list<Running> running_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::worker
