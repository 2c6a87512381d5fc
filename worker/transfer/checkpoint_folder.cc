#include "worker/transfer/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <set>

#include "common/base/ids.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "common/io/tree.h"
#include "worker/transfer/blob_file.h"

namespace sft::worker {
namespace {

constexpr std::string_view kPrefix = "step-";

absl::Status Lost(const std::string& what) {
  return DataLoss(fmt::format("the checkpoint to go on from is not there: {}", what));
}

// True when the file has the blob's hash; ABORTED when `stop` returned true.
absl::StatusOr<bool> Matches(const std::string& path, const v1::Blob& blob, const StopCheck& stop) {
  if (io::FileSize(path).value_or(-1) != blob.size()) return false;
  const absl::StatusOr<io::FileHash> hash = io::HashFile(path, stop);
  if (absl::IsAborted(hash.status())) return hash.status();
  return hash.ok() && hash->sha256 == blob.sha256();
}

// Hard-links a file that this node's ranks wrote, if it has the blob's hash. It is opened with
// their rights, and then the descriptor is used: a path of theirs may lead elsewhere the next
// moment.
absl::StatusOr<bool> LinkOwn(const std::string& local, const v1::Blob& blob,
                             const std::string& path, const std::optional<RankUser>& rank_user,
                             const StopCheck& stop) {
  const absl::StatusOr<io::UniqueFd> fd = [&] {
    const RankRights rights(rank_user);
    return io::OpenForRead(local, io::Links::kRefuse);
  }();
  struct stat info {};
  if (!fd.ok() || fstat(fd->get(), &info) != 0) return false;
  if (rank_user && info.st_uid != rank_user->uid) return false;
  const std::string open_file = fmt::format("/proc/self/fd/{}", fd->get());
  SFT_ASSIGN_OR_RETURN(const bool matches, Matches(open_file, blob, stop));
  return matches && io::RemoveAll(path).ok() &&
         linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

absl::StatusOr<bool> AllMatch(const std::string& dir, const v1::Resume& resume,
                              const std::optional<RankUser>& rank_user, const StopCheck& stop) {
  const RankRights rights(rank_user);
  for (const v1::ArtifactFile& file : resume.files()) {
    SFT_ASSIGN_OR_RETURN(const bool matches, Matches(dir + "/" + file.path(), file.blob(), stop));
    if (!matches) return false;
  }
  return true;
}

// Puts one file of the checkpoint into the folder being built: left by an earlier try, written by
// this node's own ranks, or from the server.
absl::Status Bring(const v1::ArtifactFile& file, const std::string& own, const std::string& target,
                   const std::optional<RankUser>& rank_user, ServerApi& server,
                   const StopCheck& stop) {
  const std::string path = target + "/" + file.path();
  SFT_ASSIGN_OR_RETURN(const bool is_there, Matches(path, file.blob(), stop));
  if (is_there) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(io::MakeDirs(path.substr(0, path.rfind('/'))));
  SFT_ASSIGN_OR_RETURN(const bool linked,
                       LinkOwn(own + "/" + file.path(), file.blob(), path, rank_user, stop));
  if (linked) return absl::OkStatus();
  const v1::Blob& blob = file.blob();
  const absl::Status fetched =
      FetchBlob(server, blob.sha256(), blob.size(), path, file.path(), stop);
  return absl::IsDataLoss(fetched) ? Lost(std::string(Message(fetched))) : fetched;
}

// True for a folder of this user in which nobody else can make anything.
bool IsOwnDir(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid() &&
         (info.st_mode & 022) == 0;
}

// Makes a folder of the worker's inside one where ranks may write too: anything they put there
// under this name is removed, and once the folder is the worker's they cannot. Never follows a
// link.
absl::Status MakeOwnDir(const std::string& path) {
  for (int tries = 0; tries < 2; ++tries) {
    if (mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
    if (errno != EEXIST)
      return ErrnoStatus(fmt::format("cannot create the folder {}", path), errno);
    if (IsOwnDir(path)) return absl::OkStatus();
    SFT_RETURN_IF_ERROR(io::RemoveAll(path));
  }
  return Unavailable(fmt::format("cannot create the folder {}: somebody else makes it", path));
}

absl::StatusOr<std::string> StageBlobs(const v1::Resume& resume, const std::string& job_id,
                                       const NodeSetup& setup, ServerApi& server,
                                       const StopCheck& stop) {
  const std::string dir =
      fmt::format("{}/checkpoints/{}/step-{}", setup.data_dir, job_id, resume.step());
  for (const v1::ArtifactFile& file : resume.files()) {
    if (!io::IsSafeRelative(file.path()) || !io::IsSha256Hex(file.blob().sha256())) {
      return Internal(fmt::format("the server sent \"{}\" as a checkpoint's file", file.path()));
    }
  }
  SFT_RETURN_IF_ERROR(OpenCheckpointFolder(job_id, setup));
  SFT_ASSIGN_OR_RETURN(const bool all_here, AllMatch(dir, resume, setup.rank_user, stop));
  if (all_here) return dir;
  const std::string target = dir + kFetchSuffix, old = dir + kReplacedSuffix;
  SFT_RETURN_IF_ERROR(MakeOwnDir(target));
  for (const v1::ArtifactFile& file : resume.files()) {
    SFT_RETURN_IF_ERROR(Bring(file, dir, target, setup.rank_user, server, stop));
  }
  SFT_RETURN_IF_ERROR(io::SyncDir(target));
  if (setup.rank_user) {
    SFT_RETURN_IF_ERROR(
        io::CloseTree(target, io::Owner{setup.rank_user->uid, setup.rank_user->gid}));
  }
  // A crash between the two renames leaves no folder of that name: the next try downloads again.
  SFT_RETURN_IF_ERROR(io::RemoveAll(old));
  if (io::Exists(dir)) SFT_RETURN_IF_ERROR(io::RenameDurably(dir, old));
  SFT_RETURN_IF_ERROR(io::RenameDurably(target, dir));
  SFT_RETURN_IF_ERROR(io::RemoveAll(old));
  return dir;
}

using Kept = std::map<std::string, std::set<int64_t>>;

// Deletes a job's folders that are not kept. `all`: no more can arrive. `live`: null where the job
// has no attempt here. An attempt that continues from an earlier step may write steps below the
// newest one kept.
absl::Status CleanJob(const std::string& dir, const std::set<int64_t>& kept, bool all,
                      const LiveJob* live) {
  const absl::StatusOr<std::vector<std::string>> names = io::ListDir(dir);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(names.status());
  const int64_t newest = kept.empty() ? 0 : *kept.rbegin();
  const int64_t coming = live != nullptr ? std::min(live->settled, newest) : newest;
  absl::Status first_error;
  for (const std::string& name : *names) {
    const int64_t step = StepOfFolder(name);
    const bool whole = name == fmt::format("{}{}", kPrefix, step);
    if (step == 0 || (whole && kept.contains(step))) continue;
    if (live != nullptr && live->in_use.contains(step)) continue;
    if (!all && step >= coming) continue;
    spdlog::info("checkpoint {}/{} is deleted", dir, name);
    first_error.Update(io::RemoveAll(dir + "/" + name));
  }
  if (kept.empty() && all) rmdir(dir.c_str());  // fails on a folder that is not empty, which stays
  return first_error;
}

}  // namespace

int64_t StepOfFolder(const std::string& name) {
  if (!name.starts_with(kPrefix)) return 0;
  int64_t step = 0;
  const char* const begin = name.data() + kPrefix.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), step);
  const bool ends = *end == '\0' || *end == '.';
  return error == std::errc() && ends && step > 0 ? step : 0;
}

std::string SharedCheckpointPath(const std::string& job_id, const NodeSetup& setup) {
  return setup.has_shared ? job_id + "/checkpoints" : "";
}

std::string CheckpointDir(const std::string& job_id, const NodeSetup& setup) {
  return setup.has_shared ? setup.shared_dir + "/" + SharedCheckpointPath(job_id, setup)
                          : setup.data_dir + "/checkpoints/" + job_id;
}

std::string AnswersDir(const std::string& job_id, const NodeSetup& setup) {
  return CheckpointDir(job_id, setup) + "/answers";
}

absl::Status OpenCheckpointFolder(const std::string& job_id, const NodeSetup& setup) {
  return GiveToRanks(fmt::format("{}/checkpoints/{}", setup.data_dir, job_id), setup.rank_user);
}

absl::StatusOr<std::string> StageCheckpoint(const v1::Resume& resume, const std::string& job_id,
                                            const NodeSetup& setup, ServerApi& server,
                                            const StopCheck& stop) {
  const auto there = [&](const std::string& dir) {
    const RankRights rights(setup.rank_user);
    return io::IsDirectory(dir);
  };
  if (!resume.shared_path().empty()) {
    if (!io::IsSafeRelative(resume.shared_path())) return Internal("a shared path that is none");
    const std::string dir = setup.shared_dir + "/" + resume.shared_path();
    if (!setup.has_shared || !there(dir)) {
      return Lost(
          fmt::format("{} in the shared folder of node {}", resume.shared_path(), setup.node));
    }
    return dir;
  }
  if (!resume.node_path().empty()) {
    // The step belongs to another job when this one continues from it.
    const std::vector<std::string> jobs = IdsInPath("job", resume.node_path());
    const std::string job = jobs.empty() ? job_id : jobs.back();
    if (resume.node_path().starts_with(fmt::format("{}/checkpoints/{}/", setup.data_dir, job))) {
      SFT_RETURN_IF_ERROR(OpenCheckpointFolder(job, setup));
    }
    if (!there(resume.node_path())) {
      return Lost(fmt::format("{} on node {}", resume.node_path(), setup.node));
    }
    return resume.node_path();
  }
  if (resume.files().empty()) return Lost(fmt::format("step {} has no files", resume.step()));
  return StageBlobs(resume, job_id, setup, server, stop);
}

bool HaveSettled(const LiveJobs& before, const LiveJobs& now) {
  if (before.size() != now.size()) return false;
  bool more = false;
  for (const auto& [job, live] : now) {
    const auto former = before.find(job);
    if (former == before.end() || former->second.in_use != live.in_use) return false;
    more = more || live.settled > former->second.settled;
  }
  return more;
}

absl::Status CleanCheckpoints(const v1::CheckpointSet& kept, const LiveJobs& live_jobs,
                              const NodeSetup& setup) {
  Kept here;
  for (const v1::CheckpointSet::OfJob& job : kept.jobs()) {
    if (!job.shared()) here[job.job_id()].insert(job.steps().begin(), job.steps().end());
  }
  const auto live = [&](const std::string& job) {
    const auto found = live_jobs.find(job);
    return found == live_jobs.end() ? nullptr : &found->second;
  };
  absl::Status first_error;
  const std::string root = setup.data_dir + "/checkpoints";
  const absl::StatusOr<std::vector<std::string>> jobs = io::ListDir(root);
  if (!jobs.ok() && !absl::IsNotFound(jobs.status())) first_error.Update(jobs.status());
  for (const std::string& job : jobs.ok() ? *jobs : std::vector<std::string>()) {
    const LiveJob* const attempts = live(job);
    first_error.Update(CleanJob(root + "/" + job, here[job], attempts == nullptr, attempts));
  }
  if (!setup.has_shared) return first_error;
  for (const v1::CheckpointSet::OfJob& job : kept.jobs()) {
    if (!job.shared() || !io::IsSafeRelative(job.job_id())) continue;
    const LiveJob* const attempts = live(job.job_id());
    // This node cannot know what other nodes are writing for an attempt that is not here.
    if (attempts == nullptr && !job.ended()) continue;
    const std::string dir = setup.shared_dir + "/" + SharedCheckpointPath(job.job_id(), setup);
    const RankRights rights(setup.rank_user);
    first_error.Update(
        CleanJob(dir, {job.steps().begin(), job.steps().end()}, attempts == nullptr, attempts));
  }
  return first_error;
}

}  // namespace sft::worker
