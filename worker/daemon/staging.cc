#include "worker/daemon/staging.h"

#include <absl/cleanup/cleanup.h>
#include <fcntl.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "common/spec/job_json.h"
#include "worker/daemon/blob_file.h"
#include "worker/daemon/checkpoint_folder.h"
#include "worker/daemon/models.h"

namespace sft::worker {
namespace {

// How soon a stop ends the wait for another download.
constexpr std::chrono::milliseconds kClaimInterval{100};

}  // namespace

absl::StatusOr<StagedJob> Stager::Stage(const v1::Dispatch& dispatch, const StopCheck& stop) {
  StagedJob staged;
  const auto json = ParseJson(dispatch.resolved_json());
  SFT_ASSIGN_OR_RETURN(staged.spec, spec::FromJson(json));
  SFT_ASSIGN_OR_RETURN(staged.model_dir, ResolveModel(staged.spec.job.model, setup_));
  for (const v1::JobFileRef& file : dispatch.files()) {
    SFT_ASSIGN_OR_RETURN(std::string path, StageFile(file, stop));
    if (file.key() == "job.data") {
      staged.train_file = std::move(path);
      staged.train_name = file.name();
    } else if (file.key() == "data.val") {
      staged.val_file = std::move(path);
      staged.val_name = file.name();
    }
  }
  if (staged.train_file.empty()) return Internal("the dispatch has no file for job.data");
  if (dispatch.has_resume()) {
    SFT_ASSIGN_OR_RETURN(staged.resume_dir, StageCheckpoint(dispatch.resume(), dispatch.job_id(),
                                                            setup_, server_, stop));
  }
  return staged;
}

absl::StatusOr<std::string> Stager::StageFile(const v1::JobFileRef& file, const StopCheck& stop) {
  if (file.node_path().empty()) return FetchBlob(file, stop);
  absl::StatusOr<std::string> path = io::ResolveBelow(file.node_path(), setup_.roots);
  if (!path.ok()) {
    return Annotate(path.status(), fmt::format("{} on node {}", file.key(), setup_.node));
  }
  const absl::Status regular = io::CheckRegularFile(*path);
  if (!regular.ok()) {
    return Annotate(regular, fmt::format("{} on node {}", file.key(), setup_.node));
  }
  return path;
}

absl::StatusOr<std::string> Stager::FetchBlob(const v1::JobFileRef& file, const StopCheck& stop) {
  if (!io::IsSha256Hex(file.sha256())) {
    return Internal(fmt::format("{}: the server sent \"{}\" as a hash", file.key(), file.sha256()));
  }
  SFT_RETURN_IF_ERROR(Claim(file.sha256(), stop));
  const absl::Cleanup release = [&] { Release(file.sha256()); };
  const std::string path = setup_.BlobPath(file.sha256());
  if (io::Exists(path)) {
    MarkUsed(path);
    return path;
  }
  SFT_RETURN_IF_ERROR(io::MakeDirs(setup_.data_dir + "/datasets"));
  const std::string part = path + ".part";
  SFT_RETURN_IF_ERROR(
      worker::FetchBlob(server_, file.sha256(), file.size(), part, file.key(), stop));
  SFT_RETURN_IF_ERROR(io::RenameDurably(part, path));
  return path;
}

absl::Status Stager::Claim(const std::string& sha256, const StopCheck& stop) {
  const MutexLock lock(mutex_);
  while (!claimed_.insert(sha256).second) {
    if (stop()) return Aborted("the wait for another attempt's download was stopped");
    released_.WaitFor(mutex_, kClaimInterval);
  }
  return absl::OkStatus();
}

void Stager::Release(const std::string& sha256) {
  const MutexLock lock(mutex_);
  claimed_.erase(sha256);
  released_.NotifyAll();
}

absl::Status Stager::Clean(const std::function<DataInUse()>& in_use, WallTime now) {
  // An attempt that comes now waits, and fetches what is gone; one that came just before has marked
  // what it uses.
  const MutexLock lock(mutex_);
  DataInUse used = in_use();
  used.blobs.insert(claimed_.begin(), claimed_.end());
  return CleanData(used, setup_, now, [this] { return io::SpaceOf(setup_.data_dir); });
}

}  // namespace sft::worker
