#pragma once

#include <deque>
#include <memory>

#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/io_thread.h"
#include "worker/daemon/agent.h"
#include "worker/hub/model_store.h"

namespace sft::worker {

// Carries out what operators ask of the model cache (`sftctl models pull` and `rm`), one request
// after the other, in a thread of its own.
class ModelRequests {
 public:
  // Both are borrowed.
  ModelRequests(ModelStore& models, Agent& agent);
  ~ModelRequests();

  // Returns at once. Beyond a limit a request is dropped, which the log says.
  void Take(const v1::ModelRequest& request);

 private:
  void Carry(const v1::ModelRequest& request);

  ModelStore& models_;
  Agent& agent_;
  Mutex mutex_;
  std::deque<v1::ModelRequest> waiting_ SFT_GUARDED_BY(mutex_);
  bool ending_ SFT_GUARDED_BY(mutex_) = false;
  std::unique_ptr<IoThread> thread_;
};

}  // namespace sft::worker
