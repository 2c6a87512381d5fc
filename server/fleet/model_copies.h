#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/mutex.h"
#include "server/fleet/file_relay.h"
#include "server/fleet/worker_registry.h"
#include "server/resume/job_folders.h"
#include "server/store/store.h"
#include "sft/v1/worker_service.pb.h"

namespace sft::server {

// Passes files of models on from nodes that have them: those of hub models to nodes that need them,
// those of a tokenizer to users. Nothing is kept here, and nothing is checked: a node that receives
// them has the hub's hashes. Thread-safe.
class ModelCopies {
 public:
  // Files on their way at once, so that users' downloads keep room among the relay's.
  static constexpr int kMostAtOnce = 8;
  // And of one node: as many as its worker sends at once (FileSender::kModelThreads). One more
  // would wait there until its receiver gives up.
  static constexpr int kMostOfNode = 4;
  // Tokenizers on their way to users, and to one of them: they take no place of nodes.
  static constexpr int kMostOfUsers = 4, kMostOfReader = 2;

  // All are borrowed.
  ModelCopies(Store& store, WorkerRegistry& registry, FileRelay& relay)
      : store_(store), registry_(registry), relay_(relay) {}

  // As WorkerService.FetchModelFile. `take` returns false when the reader is gone.
  // RESOURCE_EXHAUSTED: those that have it send as much as they may.
  using Take = std::function<bool(const v1::FetchModelFileResponse& part)>;
  absl::Status Send(const v1::FetchModelFileRequest& request, const Take& take,
                    const FileRelay::Gone& gone);

  // As ClusterService.ReadTokenizer, for this reader. The parts of a file come one after the other.
  using TakeText = std::function<bool(std::string_view file, std::string bytes)>;
  absl::Status SendTokenizer(const std::string& model, const FolderReader& reader,
                             const TakeText& take, const FileRelay::Gone& gone);

 private:
  // The copies of other nodes that are connected now.
  absl::StatusOr<std::vector<ModelRecord>> Copies(const v1::FetchModelFileRequest& request);
  // Those that are connected, of a model that this reader sees.
  absl::StatusOr<std::vector<ModelRecord>> CopiesFor(const FolderReader& reader,
                                                     const std::string& model);
  // A file of one node's copy; the bytes of an empty one are taken once. Before the first of them
  // NOT_FOUND: the node said that it has none, RESOURCE_EXHAUSTED: it sends others as many as it
  // may, UNAVAILABLE and DEADLINE_EXCEEDED: it is away or silent. Later ones are UNAVAILABLE.
  using TakeBytes = std::function<bool(std::string bytes)>;
  absl::Status SendFrom(const ModelRecord& copy, const std::string& file, int64_t offset,
                        const TakeBytes& take, const FileRelay::Gone& gone);
  // Counts what is sent, while the object that it returns lives. RESOURCE_EXHAUSTED at the limits.
  // An empty `reader`: to a node.
  absl::StatusOr<std::shared_ptr<void>> Begin(const std::string& reader = "");

  Store& store_;
  WorkerRegistry& registry_;
  FileRelay& relay_;
  Mutex mutex_;
  int under_way_ SFT_GUARDED_BY(mutex_) = 0, of_users_ SFT_GUARDED_BY(mutex_) = 0;
  std::map<std::string, int> of_reader_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, int> of_node_ SFT_GUARDED_BY(mutex_);  // by sender, of those that send
};

}  // namespace sft::server
