#include "worker/shipping/checkpoint_shipper.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "common/io/file.h"
#include "worker/transfer/blob_file.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

constexpr std::chrono::seconds kIdleInterval{3600};  // woken by new work
// Limit for one step: a newer one may succeed, and the attempt's end waits for it.
constexpr Retries::Limit kLimit{10, std::chrono::minutes(30)};

// True for an error that would recur at every try.
bool IsFinal(const absl::Status& status) {
  return absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status) ||
         absl::IsNotFound(status) || absl::IsPermissionDenied(status) ||
         absl::IsUnimplemented(status);
}

}  // namespace

CheckpointShipper::CheckpointShipper(Identity identity, const NodeSetup& setup, ServerApi& server,
                                     Clock& clock, int64_t registered, Hooks hooks)
    : identity_(std::move(identity)),
      setup_(setup),
      server_(server),
      clock_(clock),
      hooks_(std::move(hooks)),
      retries_(kLimit),
      newest_(registered) {}

void CheckpointShipper::Add(const channel::CheckpointEvent& event) {
  const MutexLock lock(mutex_);
  if (dropped_ || event.step <= newest_) return;
  newest_ = event.step;
  queue_.push_back(event);
}

void CheckpointShipper::Collect(int64_t step) {
  const MutexLock lock(mutex_);
  collect_ = std::max(collect_, step);
}

bool CheckpointShipper::End() {
  const MutexLock lock(mutex_);
  return !std::exchange(ended_, true);
}

void CheckpointShipper::Drop() {
  const MutexLock lock(mutex_);
  dropped_ = true;
  queue_.clear();
}

void CheckpointShipper::Interrupt() {
  const MutexLock lock(mutex_);
  interrupted_ = true;
}

bool CheckpointShipper::Idle() const {
  const MutexLock lock(mutex_);
  return queue_.empty();
}

int64_t CheckpointShipper::newest() const {
  const MutexLock lock(mutex_);
  return newest_;
}

bool CheckpointShipper::Stopped() const {
  const MutexLock lock(mutex_);
  return dropped_ || interrupted_;
}

std::optional<channel::CheckpointEvent> CheckpointShipper::Next() {
  if (queue_.empty() || interrupted_) return std::nullopt;
  // For a gang on several nodes no step is overtaken until the server has said by which.
  const bool newest = identity_.whole || ended_;
  const int64_t collected = collect_;
  const int64_t last = newest ? queue_.back().step : collected;
  std::erase_if(queue_, [&](const auto& each) {
    return each.step < last && each.step != collected && !each.best;
  });
  if (queue_.empty() || queue_.front().step > last) return std::nullopt;
  return queue_.front();
}

std::string CheckpointShipper::retrying() const {
  const MutexLock lock(mutex_);
  return retrying_;
}

void CheckpointShipper::SetRetrying(const std::string& text) {
  {
    const MutexLock lock(mutex_);
    if (retrying_ == text) return;
    retrying_ = text;
  }
  hooks_.on_change();
}

bool CheckpointShipper::TryAgain(int64_t step, const absl::Status& why) {
  const std::string what = fmt::format("registering the checkpoint of step {}", step);
  if (IsFinal(why)) {
    spdlog::warn("attempt {}: {} failed: {}", identity_.attempt_uid, what, Message(why));
    return false;
  }
  if (std::exchange(tried_, step) != step)
    retries_.Succeeded();  // failures of the older step do not count
  const MonoTime now = clock_.Mono();
  retries_.Failed(now, hooks_.server_is_away());
  const std::string text = retries_.Text(what, why, now);
  spdlog::warn("attempt {}: {}", identity_.attempt_uid, text);
  if (!retries_.Enough()) {
    SetRetrying(text);
    return true;
  }
  spdlog::error("attempt {}: {} failed {}: it is left out", identity_.attempt_uid, what,
                retries_.Counts());
  return false;
}

Nanos CheckpointShipper::Work() {
  // Changes elsewhere wake this thread.
  const Nanos wait = retries_.Wait(clock_.Mono());
  if (wait > Nanos(0) && !Stopped()) return wait;
  std::optional<channel::CheckpointEvent> next;
  {
    const MutexLock lock(mutex_);
    next = Next();
  }
  if (!next.has_value()) {
    SetRetrying("");
    return kIdleInterval;
  }
  const channel::CheckpointEvent& event = *next;
  const absl::Status registered = Register(event);
  if (!registered.ok() && Stopped()) return kIdleInterval;
  if (!registered.ok() && TryAgain(event.step, registered)) return retries_.Wait(clock_.Mono());
  retries_.Succeeded();
  SetRetrying("");
  {
    const MutexLock lock(mutex_);
    if (!queue_.empty() && queue_.front().step == event.step) queue_.erase(queue_.begin());
  }
  hooks_.on_registered(event.step);
  return Nanos(0);
}

bool CheckpointShipper::Uploads(const channel::CheckpointEvent& event) const {
  return !setup_.has_shared && (!identity_.whole || event.bytes <= setup_.checkpoint_upload_limit);
}

bool CheckpointShipper::IsDirectory(const std::string& path) const {
  const RankRights rights(identity_.rank_user);
  return io::IsDirectory(path);
}

absl::Status CheckpointShipper::Register(const channel::CheckpointEvent& event) {
  // A step that the server released meanwhile was deleted.
  const std::string own =
      fmt::format("{}/step-{}", CheckpointDir(identity_.job_id, setup_), event.step);
  if (event.path != own) return InvalidArgument(fmt::format("it was to be in {}", own));
  if (!IsDirectory(own)) return NotFound(own + " is not there any more");
  v1::CommitCheckpointRequest request;
  request.set_attempt_uid(identity_.attempt_uid);
  request.set_epoch(identity_.epoch);
  request.set_node(setup_.node);
  request.set_step(event.step);
  request.set_bytes(event.bytes);
  request.set_reason(event.reason);
  if (event.has_metric) request.set_metric(event.metric);
  request.set_best(event.best);
  if (setup_.has_shared) {
    request.set_shared_path(
        fmt::format("{}/step-{}", SharedCheckpointPath(identity_.job_id, setup_), event.step));
  } else if (Uploads(event)) {
    const absl::Status uploaded = Upload(event, request);
    // The server has no room: a whole checkpoint is still useful on this node.
    const bool stays = absl::IsResourceExhausted(uploaded) && identity_.whole;
    if (!stays) SFT_RETURN_IF_ERROR(uploaded);
    if (!uploaded.ok()) {
      spdlog::warn("checkpoint of step {} stays on this node alone: {}", event.step,
                   Message(uploaded));
      request.clear_files();
    }
  }
  if (request.files().empty() && request.shared_path().empty()) request.set_node_path(event.path);
  return server_.CommitCheckpoint(request);
}

absl::Status CheckpointShipper::Upload(const channel::CheckpointEvent& event,
                                       v1::CommitCheckpointRequest& request) {
  const absl::StatusOr<std::vector<std::string>> listed = [&] {
    const RankRights rights(identity_.rank_user);
    return io::ListDir(event.path);
  }();
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, listed);
  for (const std::string& name : names) {
    if (Stopped()) return Aborted("the upload was stopped");
    const std::string path = event.path + "/" + name;
    SFT_ASSIGN_OR_RETURN(
        BlobFile file,
        MakeBlobFile(path, fmt::format("{}/step-{}/{}", identity_.job_id, event.step, name),
                     identity_.rank_user, [this] { return Stopped(); }));
    file.is_checkpoint = true;
    file.attempt_uid = identity_.attempt_uid;
    file.node = setup_.node;
    SFT_RETURN_IF_ERROR(server_.UploadArtifact(file, [this] { return Stopped(); }));
    *request.add_files() = ToArtifactFile(file, name);
  }
  return absl::OkStatus();
}

}  // namespace sft::worker
