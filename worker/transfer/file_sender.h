#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/io_thread.h"
#include "worker/base/setup.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Sends files that the server requests, one after the other, on a thread of its own: files of the
// shared folder, and the config.json of a model below the roots, from which a job is planned. Files
// of models in hub caches, which other nodes want, have threads of their own, kModelThreads: they
// are large. Any other path is refused. At most kMaxWaiting requests of each kind wait; more are
// dropped.
class FileSender {
 public:
  static constexpr size_t kMaxWaiting = 64;
  static constexpr int kModelThreads = 4;

  // Both are borrowed.
  FileSender(const NodeSetup& setup, ServerApi& server);

  // Called from any thread; does not block.
  void Send(const v1::FetchFile& request);

 private:
  using Requests = std::deque<v1::FetchFile>;
  Nanos SendNext(bool of_models);
  std::vector<std::string> RootsOf(const std::string& path) const;

  const NodeSetup& setup_;
  ServerApi& server_;
  Mutex mutex_;
  Requests waiting_ SFT_GUARDED_BY(mutex_), of_models_ SFT_GUARDED_BY(mutex_);
  // The last members: they use the others.
  IoThread thread_;
  std::vector<std::unique_ptr<IoThread>> model_threads_;
};

}  // namespace sft::worker
