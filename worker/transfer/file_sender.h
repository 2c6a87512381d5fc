#pragma once

#include <deque>
#include <memory>

#include "common/base/mutex.h"
#include "sft/v1/worker_service.pb.h"
#include "worker/base/io_thread.h"
#include "worker/base/setup.h"
#include "worker/transfer/server_api.h"

namespace sft::worker {

// Sends files that the server requests, one after the other, on a thread of its own: files of the
// shared folder, and the config.json of a model below the roots, from which a job is planned. Any
// other path is refused. At most kMaxWaiting requests wait; more are dropped.
class FileSender {
 public:
  static constexpr size_t kMaxWaiting = 64;

  // Both are borrowed.
  FileSender(const NodeSetup& setup, ServerApi& server);

  // Called from any thread; does not block.
  void Send(const v1::FetchFile& request);

 private:
  Nanos SendNext();
  std::vector<std::string> RootsOf(const std::string& path) const;

  const NodeSetup& setup_;
  ServerApi& server_;
  Mutex mutex_;
  std::deque<v1::FetchFile> waiting_ SFT_GUARDED_BY(mutex_);
  IoThread thread_;  // last member: it uses the others
};

}  // namespace sft::worker
