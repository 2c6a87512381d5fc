#include "server/stored/artifacts.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/base/bytes.h"
#include "common/base/ids.h"
#include "common/io/sha256.h"
#include "server/core/convert.h"
#include "server/gangs/node_checks.h"
#include "server/resume/job_folders.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/checkpoints.h"
#include "server/store/files.h"
#include "server/store/jobs.h"
#include "server/store/storage.h"
#include "server/stored/uploads.h"
#include "sft/v1/storage_service.pb.h"

namespace sft::server {
namespace {

constexpr std::string_view kArtifactPrefix = "artifacts/";

// The attempt, if the node may still deliver the artifact for it.
absl::StatusOr<AttemptRecord> CheckCommit(Database& db, const v1::CommitArtifactRequest& request) {
  SFT_ASSIGN_OR_RETURN(AttemptRecord attempt, store::GetAttempt(db, request.attempt_uid()));
  if (attempt.epoch != request.epoch()) {
    return FailedPrecondition(fmt::format("attempt {} has epoch {}, the artifact is of {}",
                                          attempt.uid, attempt.epoch, request.epoch()));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, attempt.uid));
  SFT_ASSIGN_OR_RETURN(const Dispatched part, DispatchedTo(request.node(), attempt, members));
  SFT_RETURN_IF_ERROR(CheckArtifact(request, part));
  SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
  if (attempt.number != job.attempt || IsTerminal(attempt.state)) {
    return FailedPrecondition(
        fmt::format("attempt {} is over: its artifact is refused", attempt.uid));
  }
  return attempt;
}

}  // namespace

absl::StatusOr<v1::Artifact> Artifacts::Commit(const v1::CommitArtifactRequest& request) {
  const MutexLock lock(blobs_.gate());
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) { return CheckCommit(db, request).status(); }));
  ArtifactRecord artifact;
  artifact.id = RandomId("artifact");
  artifact.attempt_uid = request.attempt_uid();
  artifact.kind = request.kind();
  artifact.created_us = UnixMicros(clock_.Wall());
  if (!request.node_path().empty()) {
    artifact.node = request.node();
    artifact.node_path = request.node_path();
  } else {
    SFT_RETURN_IF_ERROR(
        CheckDelivered(blobs_, request.files(), request.node(), request.attempt_uid()));
  }
  for (const v1::ArtifactFile& file : request.files()) {
    artifact.files.push_back({file.path(), file.blob().sha256(), file.blob().size()});
    artifact.bytes += file.blob().size();
  }
  SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, CheckCommit(db, request));
    artifact.job_id = attempt.job_id;
    const std::string offered_id = artifact.id;
    SFT_ASSIGN_OR_RETURN(artifact, store::PutArtifact(db, artifact));
    if (artifact.id != offered_id) return absl::OkStatus();
    return store::AddEvent(db, artifact.job_id,
                           {0, artifact.created_us, "artifact",
                            fmt::format("{}: {} files, {}{}", artifact.kind, artifact.files.size(),
                                        BytesText(artifact.bytes),
                                        artifact.node.empty() ? "" : " on " + artifact.node),
                            attempt.number});
  }));
  hub_.Bump(artifact.job_id);
  return ToProto(artifact);
}

absl::StatusOr<v1::Artifact> Artifacts::Get(const std::string& name) {
  ArtifactRecord artifact;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    if (name.compare(0, kArtifactPrefix.size(), kArtifactPrefix) == 0) {
      SFT_ASSIGN_OR_RETURN(artifact, store::GetArtifact(db, name.substr(kArtifactPrefix.size())));
      return absl::OkStatus();
    }
    SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
    SFT_ASSIGN_OR_RETURN(std::vector<ArtifactRecord> artifacts, store::ArtifactsOfJob(db, job.id));
    if (artifacts.empty()) {
      SFT_ASSIGN_OR_RETURN(const auto removal, store::RemovalOf(db, job.id, v1::ARTIFACTS));
      if (removal.has_value()) {
        return NotFound(fmt::format("what job {} delivered was removed {} by {}", job.id,
                                    FormatUtc(FromUnixMicros(removal->time_us)), removal->who));
      }
      return NotFound(fmt::format("job {} is {} and has delivered nothing{}", job.id,
                                  ToString(job.state), IsTerminal(job.state) ? "" : " yet"));
    }
    artifact = std::move(artifacts.front());
    return absl::OkStatus();
  }));
  // The age counts from the last use; one write an hour is precise enough.
  const int64_t now_us = UnixMicros(clock_.Wall());
  {
    const MutexLock lock(mutex_);
    int64_t& noted = noted_us_[artifact.id];
    if (now_us - noted < kNoteUse.count() * 1'000'000) return ToProto(artifact);
    if (noted_us_.size() > kMaxNoted) noted_us_.clear();
    noted_us_[artifact.id] = now_us;
  }
  const absl::Status noted =
      store_.Write([&](Database& db) { return store::TouchArtifact(db, artifact.id, now_us); });
  // A full disk must not prevent a download.
  if (!noted.ok()) spdlog::warn("last use of artifact {}: {}", artifact.id, Message(noted));
  return ToProto(artifact);
}

absl::Status Artifacts::DownloadBlob(const std::string& sha256, int64_t offset, const Sink& sink) {
  v1::DownloadChunk chunk;
  const auto pass_on = [&](int64_t at, const std::string& bytes, int64_t total) {
    chunk.set_offset(at);
    chunk.set_data(bytes);
    chunk.set_total_size(total);
    return sink(chunk);
  };
  const absl::Status read = blobs_.Read(sha256, offset, pass_on);
  if (!absl::IsNotFound(read)) return read;
  const absl::Status checkpoint = checkpoints_.Read(sha256, offset, pass_on);
  if (!absl::IsDataLoss(checkpoint)) return checkpoint;
  // So that no checkpoint with this file is chosen any more.
  const absl::Status noted = store_.Write([&](Database& db) {
    return store::SetProblemOfBlob(db, sha256, std::string(Message(checkpoint)));
  });
  if (!noted.ok()) spdlog::error("damaged checkpoint: {}", Message(noted));
  return checkpoint;
}

absl::Status Artifacts::Relay(const v1::Artifact& artifact, const v1::ArtifactFile& file,
                              int64_t offset, const Sink& sink) {
  if (offset < 0 || offset > file.blob().size()) {
    return OutOfRange(fmt::format("offset {} of {} bytes", offset, file.blob().size()));
  }
  SFT_ASSIGN_OR_RETURN(const auto transfer,
                       relay_.Start(artifact.node(), artifact.node_path() + "/" + file.path(),
                                    offset, JobsInPaths({artifact.node_path()})));
  v1::DownloadChunk chunk;
  while (true) {
    SFT_ASSIGN_OR_RETURN(v1::SendFileRequest part, transfer->Next());
    chunk.set_total_size(part.total_size() > 0 ? part.total_size() : chunk.total_size());
    if (part.data().empty() && part.request().empty()) break;
    if (chunk.total_size() != file.blob().size()) {
      return DataLoss(fmt::format("{} has {} bytes on {}, not the {} that were delivered",
                                  file.path(), chunk.total_size(), artifact.node(),
                                  file.blob().size()));
    }
    chunk.set_offset(part.offset());
    chunk.set_data(std::move(*part.mutable_data()));
    offset = part.offset() + static_cast<int64_t>(chunk.data().size());
    if (!sink(chunk)) return Aborted("the reader is gone");
  }
  if (offset != chunk.total_size()) {
    return Unavailable(fmt::format("{} ended the transfer at {} of {} bytes: try again",
                                   artifact.node(), offset, chunk.total_size()));
  }
  return absl::OkStatus();
}

absl::Status Artifacts::DownloadFile(const v1::DownloadArtifactFileRequest& request,
                                     const Sink& sink) {
  SFT_ASSIGN_OR_RETURN(const v1::Artifact artifact, Get(request.name()));
  for (const v1::ArtifactFile& file : artifact.files()) {
    if (file.path() != request.path()) continue;
    if (!artifact.node().empty()) return Relay(artifact, file, request.offset(), sink);
    return DownloadBlob(file.blob().sha256(), request.offset(), sink);
  }
  return NotFound(fmt::format("{} has no file \"{}\"", artifact.name(), request.path()));
}

}  // namespace sft::server
