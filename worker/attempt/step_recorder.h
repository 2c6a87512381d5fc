#pragma once

#include <atomic>
#include <set>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/attempt/shim_client.h"
#include "worker/base/setup.h"
#include "worker/base/task_threads.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Has ranks record their next steps where the server asks for it (RecordSteps), and sends it their
// tables and traces. One recording of an attempt at a time, kMostAtOnce of all; a thread for each.
// What a recording has made goes with it, however it ends; what an earlier life of the worker has
// left, with the attempt's next recording or with the attempt.
class StepRecorder {
 public:
  static constexpr size_t kMostAtOnce = 16;

  // All are borrowed. The destructor ends the recordings.
  StepRecorder(const NodeSetup& setup, ServerApi& server, ShimHost& shims, Clock& clock)
      : setup_(setup), server_(server), shims_(shims), clock_(clock) {}
  ~StepRecorder() { ending_ = true; }

  // Called from any thread; does not block.
  void Record(const v1::RecordSteps& request);

 private:
  void Run(const v1::RecordSteps& request, bool refused);
  // Whether the attempt was free, or became so in a few seconds; it is taken then.
  bool Take(const std::string& attempt_uid);
  void Release(const std::string& attempt_uid);

  const NodeSetup& setup_;
  ServerApi& server_;
  ShimHost& shims_;
  Clock& clock_;
  std::atomic<bool> ending_ = false;
  Mutex mutex_;
  std::set<std::string> recorded_ SFT_GUARDED_BY(mutex_);  // attempts
  TaskThreads threads_{"record"};                          // last: its tasks use the others
};

}  // namespace sft::worker
