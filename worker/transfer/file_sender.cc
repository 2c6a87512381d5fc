#include "worker/transfer/file_sender.h"

#include <spdlog/spdlog.h>

#include "common/io/paths.h"
#include "worker/base/job_folders.h"

namespace sft::worker {
namespace {

constexpr std::chrono::hours kIdle{1};

}  // namespace

FileSender::FileSender(const NodeSetup& setup, ServerApi& server)
    : setup_(setup), server_(server), thread_("file-sender", [this] { return SendNext(); }) {}

void FileSender::Send(const v1::FetchFile& request) {
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() == kMaxWaiting) {
      // The requester gets the server's own deadline error.
      spdlog::warn("{} files wait to be sent: {} is dropped", kMaxWaiting, request.path());
      return;
    }
    waiting_.push_back(request);
  }
  thread_.Wake();
}

std::vector<std::string> FileSender::RootsOf(const std::string& path) const {
  std::vector<std::string> roots = {setup_.shared_dir};
  if (path.ends_with("/config.json")) {
    roots.insert(roots.end(), setup_.roots.begin(), setup_.roots.end());
  }
  return roots;
}

Nanos FileSender::SendNext() {
  v1::FetchFile request;
  {
    const MutexLock lock(mutex_);
    if (waiting_.empty()) return kIdle;
    request = std::move(waiting_.front());
    waiting_.pop_front();
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
