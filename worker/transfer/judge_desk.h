#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/io/file.h"
#include "worker/base/setup.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Passes questions of an attempt's ranks to judges on to the server, and the replies back. Ranks
// ask on NodeSetup::JudgeSocket, a connection for each question; worker/grading/judges.h has the
// lines. A thread listens, and each question has one, kMostAtOnce at most; more wait until they are
// accepted. The next life of the worker listens on the same path.
class JudgeDesk {
 public:
  static constexpr int kMostAtOnce = 64;

  // Both are borrowed.
  JudgeDesk(const NodeSetup& setup, ServerApi& server, std::string uid, int64_t epoch);
  // Ends the questions under way; the ranks ask again.
  ~JudgeDesk();
  JudgeDesk(const JudgeDesk&) = delete;

 private:
  struct Running {
    std::thread thread;
    bool done = false;
  };

  void Listen();
  void Take(io::UniqueFd fd);
  void Answer(int fd);
  // Joins the threads that have ended; how many have not.
  int Reap();

  const NodeSetup& setup_;
  ServerApi& server_;
  const std::string uid_;
  const int64_t epoch_;
  std::atomic<bool> stop_ = false;
  Mutex mutex_;
  std::list<Running> running_ SFT_GUARDED_BY(mutex_);
  std::thread listener_;
};

}  // namespace sft::worker
