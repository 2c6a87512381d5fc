#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "server/fleet/worker_registry.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// Relays a node's file to a caller of the server: FetchFile goes down the node's stream, the node
// answers with a SendFile call, and its chunks pass through a bounded queue. Thread-safe.
class FileRelay {
 public:
  static constexpr size_t kMaxQueuedChunks = 8;
  static constexpr int kMaxTransfers = 16;
  // Longest wait for the other side before a transfer is abandoned.
  static constexpr std::chrono::seconds kPatience{30};

  explicit FileRelay(WorkerRegistry& registry) : registry_(registry) {}

  // The receiving end.
  class Transfer {
   public:
    ~Transfer();
    // The next chunk; an empty one at the end of the file. DEADLINE_EXCEEDED when the node sends
    // nothing for kPatience or `timeout`.
    absl::StatusOr<v1::SendFileRequest> Next(Nanos timeout = kPatience);

   private:
    friend class FileRelay;
    Transfer(FileRelay& relay, std::string request, std::string node)
        : relay_(relay), request_(std::move(request)), node_(std::move(node)) {}
    FileRelay& relay_;
    const std::string request_;
    const std::string node_;
  };

  // UNAVAILABLE when the node is not connected, RESOURCE_EXHAUSTED at kMaxTransfers. `jobs`: jobs
  // into whose folders the path may lead, links included.
  absl::StatusOr<std::unique_ptr<Transfer>> Start(const std::string& node, const std::string& path,
                                                  int64_t offset,
                                                  const std::vector<std::string>& jobs);

  // The same for a question to an attempt that serves: the chunks are lines of the answer.
  absl::StatusOr<std::unique_ptr<Transfer>> Ask(const std::string& node,
                                                const std::string& attempt_uid,
                                                const std::string& question);

  // The sending end: takes a chunk of the node's SendFile call. Blocks while the queue is full.
  // NOT_FOUND when nobody wants the file any more, or it was requested of another node (an empty
  // `node` matches any); INVALID_ARGUMENT for a chunk that is not the next one of the file.
  absl::Status Push(v1::SendFileRequest chunk, const std::string& node = "");
  // Called when the node's call for this request has ended.
  void End(const std::string& request);

 private:
  struct Queue {
    std::string node;
    int64_t next = 0;  // offset of the next chunk
    std::deque<v1::SendFileRequest> chunks;
    bool ended = false;
  };
  // Sends the node its request, which `fill` completes.
  using Fill = std::function<void(const std::string& request, v1::ServerMessage& message)>;
  absl::StatusOr<std::unique_ptr<Transfer>> Begin(const std::string& node, int64_t offset,
                                                  const Fill& fill);

  WorkerRegistry& registry_;
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, Queue> queues_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
