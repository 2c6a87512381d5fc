#include "worker/node/rank_check.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace sft::worker {
namespace {

// Never again until the worker is restarted: once ranks can start, they go on being able to.
constexpr std::chrono::hours kNoMore{24 * 365};

}  // namespace

Nanos RankCheck::Look() {
  {
    const MutexLock lock(mutex_);
    if (found_ && found_->ok()) return kNoMore;
  }
  absl::StatusOr<RankProgram> found = locate_();
  const MutexLock lock(mutex_);
  const std::string before = found_ ? std::string(Message(found_->status())) : "";
  if (!found.ok() && before != Message(found.status())) {
    spdlog::error(
        "{}; nothing is placed on this node until it works, which is tried again and again",
        Message(found.status()));
  }
  if (found.ok() && !before.empty()) spdlog::info("ranks start on this node now");
  found_ = std::move(found);
  looked_.NotifyAll();
  return found_->ok() ? Nanos(kNoMore) : backoff_.Next();
}

absl::StatusOr<std::string> RankCheck::LibraryPath() const {
  const MutexLock lock(mutex_);
  while (!found_) looked_.Wait(mutex_);
  if (!found_->ok()) return found_->status();
  return (*found_)->library_path;
}

std::string RankCheck::Build() const {
  const MutexLock lock(mutex_);
  return found_ && found_->ok() ? (*found_)->build : std::string();
}

std::string RankCheck::Problem() const {
  const MutexLock lock(mutex_);
  if (!found_) return "its worker is still looking whether ranks start";
  return std::string(Message(found_->status()));
}

}  // namespace sft::worker
