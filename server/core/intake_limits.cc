#include "server/core/intake_limits.h"

#include <fmt/format.h>

#include "common/base/bytes.h"
#include "server/state/names.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr int kPageOfUses = 500;

}  // namespace

absl::StatusOr<std::map<std::string, int64_t>> IntakeLimits::ArtifactBytes() {
  {
    const MutexLock lock(mutex_);
    if (known_ && clock_.Mono() - summed_ < kArtifactsPeriod) return artifact_bytes_;
  }
  std::map<std::string, int64_t> bytes;
  std::string after;
  for (bool more = true; more;) {
    SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(const auto page, store::ArtifactUses(db, after, kPageOfUses));
      for (const store::ArtifactUse& use : page) {
        if (use.artifact.node.empty()) bytes[use.holder.project] += use.artifact.bytes;
        after = use.artifact.id;
      }
      more = page.size() == kPageOfUses;
      return absl::OkStatus();
    }));
  }
  const MutexLock lock(mutex_);
  artifact_bytes_ = bytes;
  summed_ = clock_.Mono();
  known_ = true;
  return bytes;
}

absl::Status IntakeLimits::CheckDatasets(Database& db, const store::Quota& quota,
                                         const std::map<std::string, int64_t>& sizes,
                                         const std::map<std::string, int64_t>& others) {
  if (quota.dataset_bytes == 0) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const int64_t used, store::DatasetBytesOf(db, quota.project));
  int64_t news = 0, coming = 0;
  for (const auto& [sha256, size] : sizes) {
    SFT_ASSIGN_OR_RETURN(const bool has, store::OwnsDataset(db, quota.project, sha256));
    if (!has) news += size;
  }
  for (const auto& [sha256, size] : others) {
    if (sizes.contains(sha256)) continue;
    SFT_ASSIGN_OR_RETURN(const bool has, store::OwnsDataset(db, quota.project, sha256));
    if (!has) coming += size;
  }
  if (news == 0 || used + coming + news <= quota.dataset_bytes) return absl::OkStatus();
  const std::string unfinished =
      coming == 0 ? "" : fmt::format("{} of uploads that have not ended, ", BytesText(coming));
  return ResourceExhausted(fmt::format(
      "project {} has {} of its {} for data sets, {}and this is {} more: remove some (`sftctl "
      "storage`, `sftctl rm dataset:SHA256`), or ask an operator for more (`sftctl admin quota set "
      "{} --datasets SIZE`)",
      quota.project, BytesText(used), BytesText(quota.dataset_bytes), unfinished, BytesText(news),
      quota.project));
}

absl::Status IntakeLimits::CheckCounts(const std::string& project, size_t under_way,
                                       size_t unfinished) {
  if (under_way >= kMostUnderWay) {
    return ResourceExhausted(
        fmt::format("{} uploads to project {} are under way: try again when one of them has ended",
                    under_way, project));
  }
  if (unfinished < kMostUnfinished) return absl::OkStatus();
  return ResourceExhausted(fmt::format(
      "{} uploads to project {} have begun and not ended: send the rest of one (submit "
      "its job again), or try again when they have expired, 7 days after their last byte",
      unfinished, project));
}

IntakeLimits::Reservation::~Reservation() {
  const MutexLock lock(limits_.mutex_);
  limits_.uploads_.erase(upload_);
}

absl::StatusOr<std::unique_ptr<IntakeLimits::Reservation>> IntakeLimits::Reserve(
    const std::string& project, const std::string& sha256, int64_t size, int64_t bytes,
    const std::map<std::string, int64_t>& parts) {
  SFT_RETURN_IF_ERROR(disk_.CheckRoom("an upload", bytes));
  const std::string name = project.empty() ? kDefaultProject : project;
  std::map<std::string, int64_t> others = parts;
  std::unique_ptr<Reservation> reservation;
  {
    // Earlier uploads count first, so that two that begin at once do not refuse each other.
    const MutexLock lock(mutex_);
    size_t under_way = 0;
    for (const Reservation::Upload& upload : uploads_) {
      if (upload.project != name) continue;
      others[upload.sha256] = upload.size;
      ++under_way;
    }
    SFT_RETURN_IF_ERROR(CheckCounts(name, under_way, others.contains(sha256) ? 0 : others.size()));
    const auto added = uploads_.insert(uploads_.end(), {name, sha256, size});
    reservation = std::unique_ptr<Reservation>(new Reservation(*this, added));
  }
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const auto quota, store::QuotaOf(db, name));
    return quota.has_value() ? CheckDatasets(db, *quota, {{sha256, size}}, others)
                             : absl::OkStatus();
  }));
  return reservation;
}

absl::Status IntakeLimits::CheckTaken(Database& db, const std::string& project,
                                      const std::string& sha256, int64_t size) {
  SFT_ASSIGN_OR_RETURN(const auto quota,
                       store::QuotaOf(db, project.empty() ? kDefaultProject : project));
  return quota.has_value() ? CheckDatasets(db, *quota, {{sha256, size}}) : absl::OkStatus();
}

absl::Status IntakeLimits::CheckSubmit(const std::string& project,
                                       const std::vector<JobFileRecord>& files) {
  SFT_RETURN_IF_ERROR(disk_.CheckRoom("a new job", 0));
  std::map<std::string, int64_t> sizes;
  for (const JobFileRecord& file : files) {
    if (!file.sha256.empty()) sizes[file.sha256] = file.size;
  }
  std::optional<store::Quota> quota;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(quota, store::QuotaOf(db, project));
    return quota.has_value() ? CheckDatasets(db, *quota, sizes) : absl::OkStatus();
  }));
  if (!quota.has_value() || quota->artifact_bytes == 0) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto all, ArtifactBytes());
  const auto used = all.find(project);
  if (used == all.end() || used->second < quota->artifact_bytes) return absl::OkStatus();
  return ResourceExhausted(fmt::format(
      "project {} has {} of its {} for artifacts: remove some (`sftctl storage`, `sftctl rm "
      "artifact:ID`), or ask an operator for more (`sftctl admin quota set {} --artifacts SIZE`)",
      project, BytesText(used->second), BytesText(quota->artifact_bytes), project));
}

}  // namespace sft::server
