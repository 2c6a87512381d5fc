#include "worker/hub/model_pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/io/file.h"
#include "worker/hub/blob_download.h"
#include "worker/hub/hub_cache.h"

namespace sft::worker {
namespace {

// Connections of one model.
constexpr size_t kConnections = 8;
constexpr int64_t kMaxIndexBytes = 64 << 20;

// Bytes of the blobs that are not in the cache yet, parts counted.
int64_t MissingBytes(const std::vector<hub::HubFile>& files, const HubCache& cache) {
  int64_t missing = 0;
  for (const hub::HubFile& file : files) {
    if (io::FileSize(cache.BlobPath(file.etag())).value_or(-1) == file.size) continue;
    const int64_t part = io::FileSize(cache.PartPath(file.etag())).value_or(0);
    missing += file.size - std::min(part, file.size);
  }
  return missing;
}

// Downloads all files, kConnections at once. The first error ends the others.
class Pull {
 public:
  Pull(const BlobSource& source, const HubCache& cache, const PullWatch& watch, Clock& clock)
      : source_(source), cache_(cache), watch_(watch), clock_(clock) {}

  absl::Status Run(std::vector<hub::HubFile> files) {
    // The largest first: they take longest.
    std::stable_sort(files.begin(), files.end(),
                     [](const auto& a, const auto& b) { return a.size > b.size; });
    next_ = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < std::min(kConnections, files.size()); ++i) {
      threads.emplace_back([&] { Work(files); });
    }
    for (std::thread& thread : threads) thread.join();
    const MutexLock lock(mutex_);
    return status_;
  }
  void SetTotal(int64_t total) { total_ = total; }
  std::map<std::string, int64_t> from_nodes() const {
    const MutexLock lock(mutex_);
    return from_nodes_;
  }

 private:
  void Work(const std::vector<hub::HubFile>& files) {
    BlobWatch watch;
    watch.stop = [this] { return failed_ || (watch_.stop && watch_.stop()); };
    watch.on_bytes = [this](int64_t bytes) {
      const int64_t done = done_ += bytes;
      if (watch_.on_progress) watch_.on_progress({done, total_});
    };
    watch.verify = watch_.verify;
    watch.on_node_bytes = [this](const std::string& node, int64_t bytes) {
      const MutexLock lock(mutex_);
      from_nodes_[node] += bytes;
    };
    for (size_t i = next_++; i < files.size() && !failed_; i = next_++) {
      const absl::Status got = DownloadBlob(source_, files[i], cache_, watch, clock_);
      if (got.ok()) continue;
      const MutexLock lock(mutex_);
      if (status_.ok()) status_ = got;
      failed_ = true;
    }
  }

  const BlobSource& source_;
  const HubCache& cache_;
  const PullWatch& watch_;
  Clock& clock_;
  std::atomic<size_t> next_ = 0;
  std::atomic<int64_t> done_ = 0;
  std::atomic<int64_t> total_ = 0;
  std::atomic<bool> failed_ = false;
  mutable Mutex mutex_;
  absl::Status status_ SFT_GUARDED_BY(mutex_);
  std::map<std::string, int64_t> from_nodes_ SFT_GUARDED_BY(mutex_);
};

absl::StatusOr<std::vector<hub::HubFile>> ListFiles(const hub::Hub& hub, const std::string& id,
                                                    const std::string& commit,
                                                    const HubCache& cache,
                                                    const hub::StopCheck& stop) {
  // A commit never changes.
  if (auto known = ReadTree(cache.folder(), commit)) return *std::move(known);
  SFT_ASSIGN_OR_RETURN(std::vector<hub::HubFile> files, hub.List(id, commit, stop));
  SFT_RETURN_IF_ERROR(cache.Prepare());
  SFT_RETURN_IF_ERROR(cache.WriteTree(commit, files));
  return files;
}

}  // namespace

absl::StatusOr<PulledModel> PullModel(const hub::Hub& hub, const hub::ModelName& name,
                                      const std::string& hub_dir, const PullWatch& watch,
                                      Clock& clock) {
  const HubCache cache(hub_dir, name.id);
  const std::string revision = name.revision.empty() ? "main" : name.revision;
  std::string commit = revision;
  if (!hub::IsCommit(revision)) {
    SFT_ASSIGN_OR_RETURN(commit, hub.Resolve(name.id, revision, watch.stop));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<hub::HubFile> all,
                       ListFiles(hub, name.id, commit, cache, watch.stop));
  const auto needed = [&](std::string_view index) {
    auto files = NeededFiles(all, index);
    return files.ok() ? files
                      : absl::StatusOr<std::vector<hub::HubFile>>(Annotate(
                            files.status(), fmt::format("model {} cannot be used", name.id)));
  };
  SFT_ASSIGN_OR_RETURN(std::vector<hub::HubFile> files, needed(""));
  // Also where the listing was known: the folders may be gone.
  SFT_RETURN_IF_ERROR(cache.Prepare());
  const BlobSource source{hub, name.id, commit, watch.peers};
  if (NeedsIndex(all)) {
    const auto index = std::find_if(files.begin(), files.end(),
                                    [](const auto& file) { return file.path == kIndexFile; });
    Pull first(source, cache, watch, clock);
    SFT_RETURN_IF_ERROR(first.Run({*index}));
    SFT_ASSIGN_OR_RETURN(const std::string text,
                         io::ReadFile(cache.BlobPath(index->etag()), kMaxIndexBytes));
    SFT_ASSIGN_OR_RETURN(files, needed(text));
  }
  if (watch.make_room) SFT_RETURN_IF_ERROR(watch.make_room(MissingBytes(files, cache)));
  int64_t total = 0;
  for (const hub::HubFile& file : files) total += file.size;
  Pull pull(source, cache, watch, clock);
  pull.SetTotal(total);
  SFT_RETURN_IF_ERROR(pull.Run(files));
  SFT_RETURN_IF_ERROR(cache.LinkSnapshot(commit, files));
  if (!hub::IsCommit(revision)) SFT_RETURN_IF_ERROR(cache.WriteRef(revision, commit));
  PulledModel pulled{cache.SnapshotDir(commit), commit, total};
  pulled.from_nodes = pull.from_nodes();
  return pulled;
}

}  // namespace sft::worker
