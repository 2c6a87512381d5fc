#include "worker/attempt/staging.h"

#include <absl/cleanup/cleanup.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/base/bytes.h"
#include "common/base/duration.h"
#include "common/hub/model_name.h"
#include "common/io/file.h"
#include "common/io/file_stamp.h"
#include "common/io/model_folder.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "common/spec/mixture.h"
#include "worker/base/job_folders.h"
#include "worker/base/rank_user.h"
#include "worker/node/models.h"
#include "worker/transfer/blob_file.h"
#include "worker/transfer/checked_file.h"
#include "worker/transfer/checkpoint_folder.h"

namespace sft::worker {
namespace {

// Keys of an adapter's files in a dispatch.
constexpr std::string_view kAdapterFile = "job.adapter/";
constexpr std::string_view kAdapterConfig = "adapter_config.json";
constexpr std::string_view kAdapterWeights = "adapter_model.safetensors";
// How soon a stop ends the wait for another download.
constexpr std::chrono::milliseconds kClaimInterval{100};
// What has arrived broken so often in a row will not arrive whole.
constexpr int kMaxBroken = 3;

// What nobody but the node or the service can correct.
absl::Status NotOfOwner(const absl::Status& status) {
  const bool owners = absl::IsInvalidArgument(status) || absl::IsNotFound(status) ||
                      absl::IsPermissionDenied(status) || absl::IsAlreadyExists(status) ||
                      absl::IsFailedPrecondition(status) || absl::IsOutOfRange(status);
  return owners ? Internal(Message(status)) : status;
}

absl::StatusOr<std::string> FindModel(const std::string& model, const NodeSetup& setup) {
  const RankRights rights(setup.rank_user);
  return ResolveModel(model, setup);
}

// What keeps a model from being downloaded, and whose it is to correct: what the hub does not have
// or does not show is the job owner's, the rest the node's.
absl::Status JudgePull(const absl::Status& pulled) {
  if (absl::IsNotFound(pulled) || absl::IsPermissionDenied(pulled) || absl::IsAborted(pulled)) {
    return pulled;
  }
  return IsPassing(pulled) ? pulled : Internal(Message(pulled));
}

// ", 16.2 GB of it from node-a".
std::string FromNodes(const PulledModel& pulled) {
  std::string text;
  for (const auto& [node, bytes] : pulled.from_nodes) {
    text +=
        fmt::format("{}{} of it from {}", text.empty() ? ", " : " and ", BytesText(bytes), node);
  }
  return text;
}

// Whether a data set that is here is what its hash says.
absl::StatusOr<bool> IsWhole(const std::string& path, const std::string& sha256,
                             const StopCheck& stop) {
  if (WasChecked(path)) return true;
  const std::string stamp = io::FullStampOf(path);
  const absl::StatusOr<io::FileHash> kept = io::HashFile(path, stop);
  if (absl::IsAborted(kept.status())) return kept.status();
  if (!kept.ok()) return Unavailable(Message(kept.status()));
  if (kept->sha256 != sha256) return false;
  NoteChecked(path, stamp);
  return true;
}

// More files with rows than any job names.
constexpr size_t kMostParts = 1000;

// A file of an adapter's folder that is read and may reach the result: regular, and where links
// lead to, a file that the job may name itself. One that does not exist is fine.
absl::Status CheckAdapterFile(const std::string& path, const v1::Dispatch& dispatch,
                              const NodeSetup& setup) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 && errno == ENOENT) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const std::string real, ResolveForJob(path, dispatch, setup));
  return io::CheckRegularFile(real);
}

absl::Status CheckAdapterFolder(const std::string& dir, const v1::Dispatch& dispatch,
                                const NodeSetup& setup) {
  for (const std::string_view name : {kAdapterConfig, kAdapterWeights}) {
    SFT_RETURN_IF_ERROR(CheckAdapterFile(fmt::format("{}/{}", dir, name), dispatch, setup));
  }
  for (const std::string_view name : io::kModelCompanions) {
    SFT_RETURN_IF_ERROR(CheckAdapterFile(fmt::format("{}/{}", dir, name), dispatch, setup));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsPassing(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

absl::StatusOr<StagedJob> Stager::Stage(const v1::Dispatch& dispatch, const std::string& model,
                                        const StopCheck& stop, const ModelAsk& ask) {
  StagedJob staged;
  if (model.starts_with("/")) {
    const RankRights rights(setup_.rank_user);
    SFT_RETURN_IF_ERROR(ResolveForJob(model, dispatch, setup_).status());
  }
  SFT_ASSIGN_OR_RETURN(staged.model_dir, StageModel(model, stop, ask));
  SFT_RETURN_IF_ERROR(CheckJobFolders(staged.model_dir, model, dispatch, setup_));
  for (const v1::JobFileRef& file : dispatch.files()) {
    if (file.key() == "job.adapter") {
      SFT_ASSIGN_OR_RETURN(staged.adapter_dir, StageFolder(file, dispatch));
      continue;
    }
    SFT_ASSIGN_OR_RETURN(StagedFile here, StageFile(file, dispatch, stop));
    if (file.key().starts_with(kAdapterFile)) {
      const std::string name = file.key().substr(kAdapterFile.size());
      if (!io::IsSafeRelative(name)) return Internal("a file of an adapter has no name");
      staged.adapter_files[name] = std::move(here.path);
    } else if (file.key() == "job.data") {
      staged.train_file = std::move(here.path);
      staged.train_name = file.name();
      staged.train_stamp = std::move(here.stamp);
    } else if (file.key() == "data.val") {
      staged.val_file = std::move(here.path);
      staged.val_name = file.name();
      staged.val_stamp = std::move(here.stamp);
    } else if (const size_t part = spec::PartOfKey(file.key()); part != std::string::npos) {
      if (part > kMostParts) return Internal("the dispatch has a file of no known part");
      if (staged.more_train_files.size() < part) staged.more_train_files.resize(part);
      staged.more_train_files[part - 1] = {std::move(here.path), file.name(),
                                           std::move(here.stamp)};
    }
  }
  if (dispatch.has_resume()) {
    absl::StatusOr<std::string> dir =
        StageCheckpoint(dispatch.resume(), dispatch.job_id(), setup_, server_, stop);
    const std::string what =
        fmt::format("checkpoint of step {} of {}", dispatch.resume().step(), dispatch.job_id());
    const absl::Status judged = Judge(what, dir.status());
    if (!judged.ok()) return judged;
    staged.resume_dir = *std::move(dir);
  }
  return staged;
}

absl::StatusOr<std::string> Stager::StageModel(const std::string& model, const StopCheck& stop,
                                               const ModelAsk& ask) {
  absl::StatusOr<std::string> dir = FindModel(model, setup_);
  if (model.starts_with("/")) return dir;  // the job's own word
  const auto name = hub::ParseModelName(model);
  if (dir.ok()) {
    if (models_ != nullptr && name) models_->MarkUsed(name->id);
    return dir;
  }
  // The server places the job on nodes that have the model or download it: that it is not here any
  // more, or no longer whole, is not the job's fault.
  const bool broken = absl::IsInvalidArgument(dir.status());
  if (models_ == nullptr || !models_->Downloads() || !name ||
      (!broken && !absl::IsNotFound(dir.status()))) {
    return NotOfOwner(dir.status());
  }
  absl::StatusOr<std::string> token = std::string();
  if (ask.token) token = ask.token();
  // A server of an earlier release keeps no tokens.
  if (absl::IsUnimplemented(token.status())) token = std::string();
  if (!token.ok()) return IsPassing(token.status()) ? token.status() : NotOfOwner(token.status());
  const absl::StatusOr<PulledModel> pulled =
      models_->Fetch(*name, *token, stop, ask.on_text, broken);
  const auto show = [&](const std::string& text) {
    if (ask.on_text) ask.on_text(text);
  };
  if (!pulled.ok()) {
    show(fmt::format("model {} has not come", name->id));
    return JudgePull(broken ? Annotate(pulled.status(), Message(dir.status())) : pulled.status());
  }
  show(fmt::format("model {} has come: {}", name->id, BytesText(pulled->bytes)));
  if (ask.on_event) {
    ask.on_event(fmt::format("model {}@{} has come to this node from {}: {} in {:.1f} s{}",
                             name->id, pulled->commit, models_->setup().endpoint,
                             BytesText(pulled->bytes), SecondsOf(pulled->took),
                             FromNodes(*pulled)));
  }
  dir = FindModel(model, setup_);
  if (!dir.ok()) return NotOfOwner(dir.status());
  return dir;
}

absl::Status Stager::Judge(const std::string& what, const absl::Status& fetched) {
  const MutexLock lock(mutex_);
  if (!absl::IsUnknown(fetched)) {
    if (fetched.ok() || !IsPassing(fetched)) broken_.erase(what);
    return NotOfOwner(fetched);
  }
  if (++broken_[what] < kMaxBroken) return Unavailable(Message(fetched));
  broken_.erase(what);
  // The server looks at what it sends, and says so itself where its copy is damaged.
  return Internal(fmt::format(
      "{}, {} times in a row: this node's disk or memory is damaged, or its way to the server",
      Message(fetched), kMaxBroken));
}

absl::StatusOr<std::string> Stager::StageFolder(const v1::JobFileRef& file,
                                                const v1::Dispatch& dispatch) {
  const RankRights rights(setup_.rank_user);
  absl::StatusOr<std::string> path = ResolveForJob(file.node_path(), dispatch, setup_);
  absl::Status found = path.status();
  if (found.ok()) found = CheckAdapterFolder(*path, dispatch, setup_);
  if (found.ok() && !io::Exists(fmt::format("{}/{}", *path, kAdapterConfig))) {
    found = NotFound(fmt::format("{} holds no {}", file.node_path(), kAdapterConfig));
  }
  if (found.ok()) return path;
  return Annotate(found, fmt::format("{} on node {}", file.key(), setup_.node));
}

absl::StatusOr<Stager::StagedFile> Stager::StageFile(const v1::JobFileRef& file,
                                                     const v1::Dispatch& dispatch,
                                                     const StopCheck& stop) {
  if (file.node_path().empty()) {
    SFT_ASSIGN_OR_RETURN(std::string path, FetchBlob(file, stop));
    return StagedFile{std::move(path), ""};
  }
  const RankRights rights(setup_.rank_user);
  absl::StatusOr<std::string> path = ResolveForJob(file.node_path(), dispatch, setup_);
  if (!path.ok()) {
    return Annotate(path.status(), fmt::format("{} on node {}", file.key(), setup_.node));
  }
  const absl::StatusOr<io::UniqueFd> fd = io::OpenForRead(*path);
  if (!fd.ok()) {
    return Annotate(fd.status(), fmt::format("{} on node {}", file.key(), setup_.node));
  }
  struct stat info {};
  if (fstat(fd->get(), &info) != 0) {
    return ErrnoStatus(fmt::format("{} on node {}: cannot read {}", file.key(), setup_.node, *path),
                       errno);
  }
  return StagedFile{*std::move(path), io::ContentStamp(info)};
}

absl::StatusOr<std::string> Stager::FetchBlob(const v1::JobFileRef& file, const StopCheck& stop) {
  if (!io::IsSha256Hex(file.sha256())) {
    return Internal(fmt::format("{}: the server sent \"{}\" as a hash", file.key(), file.sha256()));
  }
  SFT_RETURN_IF_ERROR(Claim(file.sha256(), stop));
  const absl::Cleanup release = [&] { Release(file.sha256()); };
  const std::string path = setup_.BlobPath(file.sha256());
  if (io::Exists(path)) {
    SFT_RETURN_IF_ERROR(NotOfOwner(LetRanksRead(path, setup_.rank_user)));
    SFT_ASSIGN_OR_RETURN(const bool whole, IsWhole(path, file.sha256(), stop));
    if (whole) {
      MarkUsed(path);
      return path;
    }
    spdlog::error("{} is damaged on this node's disk: it is fetched again", path);
    SFT_RETURN_IF_ERROR(NotOfOwner(io::RemoveAll(path)));
  }
  SFT_RETURN_IF_ERROR(NotOfOwner(io::MakeDirs(setup_.data_dir + "/datasets")));
  const std::string part = path + ".part";
  const std::string what =
      fmt::format("download of data set {}{}", file.sha256().substr(0, 12),
                  file.name().empty() ? "" : fmt::format(" ({})", file.name()));
  const absl::Status fetched =
      Judge(what, worker::FetchBlob(server_, file.sha256(), file.size(), part, what, stop));
  if (absl::IsDataLoss(fetched)) return FailedPrecondition(Message(fetched));
  SFT_RETURN_IF_ERROR(fetched);
  SFT_RETURN_IF_ERROR(NotOfOwner(io::RenameDurably(part, path)));
  SFT_RETURN_IF_ERROR(NotOfOwner(LetRanksRead(path, setup_.rank_user)));
  NoteChecked(path, io::FullStampOf(path));
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
