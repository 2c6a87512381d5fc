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

// Relays a node's file, a job's answer or what its ranks recorded to a caller of the server:
// FetchFile, Ask or RecordSteps goes down the node's stream, the node answers with a SendFile call,
// and its chunks pass through a bounded queue. Files and questions are counted apart, so that
// neither keeps out the other. Thread-safe.
class FileRelay {
 public:
  static constexpr size_t kMaxQueuedChunks = 8;
  static constexpr int kMaxTransfers = 16;  // files
  static constexpr int kMaxQuestions = 256;
  static constexpr int kMaxQuestionsOfJob = 64;  // on a node
  // A node answers each in a stream of its own, and needs others for its deliveries.
  static constexpr int kMaxQuestionsOfNode = 80;
  // Longest wait for the other side before a transfer is abandoned.
  static constexpr std::chrono::seconds kPatience{30};
  // That of a node whose recording waits until those of others have been read.
  static constexpr std::chrono::minutes kRecordingPatience{10};

  explicit FileRelay(WorkerRegistry& registry) : registry_(registry) {}

  // Whether the caller that a transfer is for has gone.
  using Gone = std::function<bool()>;

 private:
  // Guarded by mutex_.
  struct Queue {
    std::string node;
    std::string attempt_uid;     // that is asked; empty: a file is fetched
    int64_t next = 0;            // offset of the next chunk
    Nanos patience = kPatience;  // of the node
    std::deque<v1::SendFileRequest> chunks;
    bool heard = false;    // a chunk has come
    bool ended = false;    // by the node
    bool dropped = false;  // by the reader
    CondVar changed;
  };

 public:
  // The receiving end.
  class Transfer {
   public:
    ~Transfer();
    // The next chunk; an empty one at the end of the file. DEADLINE_EXCEEDED when the node sends
    // nothing for kPatience or `timeout`, CANCELLED soon after `gone`.
    absl::StatusOr<v1::SendFileRequest> Next(Nanos timeout = kPatience, const Gone& gone = nullptr);

   private:
    friend class FileRelay;
    Transfer(FileRelay& relay, std::string request, std::shared_ptr<Queue> queue)
        : relay_(relay), request_(std::move(request)), queue_(std::move(queue)) {}
    // Waits at most so long for a chunk or the end; true when there is one. `heard`: some chunk
    // has come by now.
    bool Await(Nanos timeout, v1::SendFileRequest& chunk, bool& heard);
    absl::Status Silent(Nanos timeout) const;
    FileRelay& relay_;
    const std::string request_;
    const std::shared_ptr<Queue> queue_;
  };

  // UNAVAILABLE when the node is not connected, RESOURCE_EXHAUSTED at kMaxTransfers. `jobs`: jobs
  // into whose folders the path may lead, links included.
  absl::StatusOr<std::unique_ptr<Transfer>> Start(const std::string& node, const std::string& path,
                                                  int64_t offset,
                                                  const std::vector<std::string>& jobs);

  // The same for a question to an attempt that serves: the chunks are lines of the answer.
  // RESOURCE_EXHAUSTED at kMaxQuestions, at kMaxQuestionsOfJob of this attempt on this node and at
  // kMaxQuestionsOfNode.
  absl::StatusOr<std::unique_ptr<Transfer>> Ask(const std::string& node,
                                                const std::string& attempt_uid,
                                                const std::string& question);
  // Of these nodes, the first of those that answer the fewest questions to the attempt.
  std::string LeastAsked(const std::vector<std::string>& nodes, const std::string& attempt_uid);

  // The same for a recording: the chunks are v1::RecordedPiece. It counts as a question.
  absl::StatusOr<std::unique_ptr<Transfer>> Record(const std::string& node,
                                                   const v1::RecordSteps& order);

  // The sending end: takes a chunk of the node's SendFile call. Blocks while the queue is full.
  // NOT_FOUND when nobody wants the file any more, or it was requested of another node (an empty
  // `node` matches any); INVALID_ARGUMENT for a chunk that is not the next one of the file.
  absl::Status Push(v1::SendFileRequest chunk, const std::string& node = "");
  // Called when the node's call for this request has ended.
  void End(const std::string& request);

 private:
  // Sends the node its request, which `fill` completes.
  using Fill = std::function<void(const std::string& request, v1::ServerMessage& message)>;
  absl::StatusOr<std::unique_ptr<Transfer>> Begin(const std::shared_ptr<Queue>& queue,
                                                  const Fill& fill);
  // OK where there is room for one more such transfer.
  absl::Status HasRoom(const Queue& wanted) const SFT_REQUIRES(mutex_);

  WorkerRegistry& registry_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Queue>> queues_ SFT_GUARDED_BY(mutex_);
};

}  // namespace sft::server
