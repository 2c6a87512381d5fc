#include "worker/transfer/file_sender.h"

#include <spdlog/spdlog.h>

#include "common/io/model_folder.h"
#include "common/io/paths.h"
#include "worker/base/job_folders.h"

namespace sft::worker {
namespace {

constexpr std::chrono::hours kIdle{1};

// A file of a snapshot in a hub cache.
bool IsOfModel(const std::string& path) { return path.find("/snapshots/") != path.npos; }

}  // namespace

FileSender::FileSender(const NodeSetup& setup, ServerApi& server)
    : setup_(setup),
      server_(server),
      thread_("file-sender", [this] { return SendNext(/*of_models=*/false); }) {
  for (int i = 0; i < kModelThreads; ++i) {
    model_threads_.push_back(std::make_unique<IoThread>(
        "model-sender", [this] { return SendNext(/*of_models=*/true); }));
  }
}

void FileSender::Send(const v1::FetchFile& request) {
  const bool of_model = IsOfModel(request.path());
  {
    const MutexLock lock(mutex_);
    Requests& waiting = of_model ? of_models_ : waiting_;
    if (waiting.size() == kMaxWaiting) {
      // The requester gets the server's own deadline error.
      spdlog::warn("{} files wait to be sent: {} is dropped", kMaxWaiting, request.path());
      return;
    }
    waiting.push_back(request);
  }
  if (!of_model) return thread_.Wake();
  for (const std::unique_ptr<IoThread>& thread : model_threads_) thread->Wake();
}

std::vector<std::string> FileSender::RootsOf(const std::string& path) const {
  std::vector<std::string> roots = {setup_.shared_dir};
  if (io::IsTextFile(std::string_view(path).substr(path.rfind('/') + 1))) {
    roots.insert(roots.end(), setup_.roots.begin(), setup_.roots.end());
  }
  if (IsOfModel(path)) roots.insert(roots.end(), setup_.hub_dirs.begin(), setup_.hub_dirs.end());
  return roots;
}

Nanos FileSender::SendNext(bool of_models) {
  v1::FetchFile request;
  {
    const MutexLock lock(mutex_);
    Requests& waiting = of_models ? of_models_ : waiting_;
    if (waiting.empty()) return kIdle;
    request = std::move(waiting.front());
    waiting.pop_front();
  }
  absl::StatusOr<std::string> path = [&] {
    const RankRights rights(setup_.rank_user);
    return io::ResolveBelow(request.path(), RootsOf(request.path()));
  }();
  if (path.ok()) {
    const absl::Status allowed = CheckFetchFolders(*path, request, setup_);
    if (!allowed.ok()) path = allowed;
  }
  const absl::Status sent =
      path.ok() ? server_.SendFile(request, *path, "")
                : server_.SendFile(request, "", std::string(Message(path.status())));
  if (!sent.ok()) spdlog::warn("sending {}: {}", request.path(), Message(sent));
  return Nanos(0);
}

}  // namespace sft::worker
