#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/setup.h"
#include "worker/base/task_threads.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Passes the server's questions on to the processes of attempts that serve, each to the one of its
// attempt that has the fewest, and their answers back as they come. A thread for each question,
// kMostAtOnce at most; more are refused.
class Asker {
 public:
  static constexpr int kMostAtOnce = 256;

  // Both are borrowed. The destructor waits for the answers under way.
  Asker(const NodeSetup& setup, ServerApi& server) : setup_(setup), server_(server) {}

  // Called from any thread; does not block.
  void Ask(const v1::Ask& ask);

 private:
  class Connection;
  void Answer(const v1::Ask& ask, bool refused);
  // Connects to the process of the attempt that has the fewest questions, or to another one where
  // that does not listen.
  absl::Status Open(const std::string& attempt_uid, Connection& connection);
  // Takes the one with the fewest questions out of the list, and counts one more.
  std::string TakeLeast(std::vector<std::string>& sockets);
  // Counts one less.
  void Close(const std::string& socket);

  const NodeSetup& setup_;
  ServerApi& server_;
  Mutex mutex_;
  std::map<std::string, int> asked_ SFT_GUARDED_BY(mutex_);  // by socket
  TaskThreads threads_{"ask"};
};

}  // namespace sft::worker
