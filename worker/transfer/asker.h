#pragma once

#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"
#include "worker/base/task_threads.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Passes the server's questions on to the processes of attempts that serve, and their answers back
// as they come. A thread for each question, kMostAtOnce at most; more are refused.
class Asker {
 public:
  static constexpr int kMostAtOnce = 256;

  // Both are borrowed. The destructor waits for the answers under way.
  Asker(const NodeSetup& setup, ServerApi& server) : setup_(setup), server_(server) {}

  // Called from any thread; does not block.
  void Ask(const v1::Ask& ask);

 private:
  void Answer(const v1::Ask& ask, bool refused);

  const NodeSetup& setup_;
  ServerApi& server_;
  TaskThreads threads_{"ask"};
};

}  // namespace sft::worker
