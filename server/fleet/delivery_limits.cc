#include "server/fleet/delivery_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common/base/bytes.h"
#include "common/plan/model_config.h"
#include "common/plan/parameters.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

// Bytes that a checkpoint has at most per trained weight: the weight, two moments and the best
// weight so far, four bytes each.
constexpr double kBytesOfWeight = 16;
// Checkpoints beside those kept: the best one, one about to be removed and one arriving.
constexpr int kMoreCheckpoints = 3;
// Factor for a file's overhead, and for what this estimate does not know.
constexpr double kGenerous = 2;
constexpr int64_t kSmallFiles = int64_t{1} << 30;

// Number of weights that a job trains; nullopt where its model is not known.
std::optional<int64_t> TrainedWeights(const spec::JobSpec& spec, FleetCatalog& fleet) {
  const auto model = fleet.FindModel(spec.job.model);
  if (!model.ok() || *model == nullptr) return std::nullopt;
  const absl::StatusOr<plan::ModelConfig> config = plan::ParseModelConfig((*model)->config_json);
  if (!config.ok()) return std::nullopt;
  const absl::StatusOr<std::vector<plan::Unit>> units = plan::MakeUnits(*config, spec);
  if (!units.ok()) return std::nullopt;
  return plan::CountParameters(*units).trainable;
}

}  // namespace

DeliveryLimits::Reservation::~Reservation() {
  const MutexLock lock(limits_.mutex_);
  limits_.coming_.erase(file_);
}

absl::StatusOr<DeliveryLimits::Limit> DeliveryLimits::LimitOf(const std::string& attempt_uid) {
  const Limit unknown{unknown_bytes_,
                      "--max-delivery-gb, as its size cannot be told from its model and "
                      "checkpoint.save_total_limit"};
  if (attempt_uid.empty()) return unknown;
  {
    const MutexLock lock(mutex_);
    const auto known = limits_.find(attempt_uid);
    if (known != limits_.end()) return known->second;
  }
  absl::StatusOr<spec::JobSpec> spec = Internal("not run");
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, store::GetAttempt(db, attempt_uid));
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::GetJob(db, attempt.job_id));
    spec = store::ReadSpec(db, job);
    return absl::OkStatus();
  }));
  if (!spec.ok()) return unknown;
  const int kept = spec->checkpoint.save_total_limit;
  const std::optional<int64_t> weights = TrainedWeights(*spec, fleet_);
  if (kept <= 0 || !weights.has_value()) return unknown;
  const double bytes =
      kGenerous * kBytesOfWeight * static_cast<double>(*weights) * (kept + kMoreCheckpoints);
  const Limit limit{kSmallFiles + static_cast<int64_t>(std::min(bytes, 1e18)),
                    fmt::format("{} trained weights and {} kept checkpoints", *weights, kept)};
  const MutexLock lock(mutex_);
  if (limits_.size() >= kMaxKept) limits_.clear();
  limits_[attempt_uid] = limit;
  return limit;
}

absl::Status DeliveryLimits::Counted(const std::string& node, absl::Status status) {
  if (absl::IsResourceExhausted(status)) refusals_.Count(node.empty() ? "local" : node, status);
  return status;
}

absl::StatusOr<std::unique_ptr<DeliveryLimits::Reservation>> DeliveryLimits::Reserve(
    const BlobStore& blobs, const File& file) {
  SFT_ASSIGN_OR_RETURN(const Limit limit, LimitOf(file.attempt_uid));
  // Added before the uploads under way are listed: one that ends between the two is counted twice,
  // not missed.
  std::list<File>::iterator added;
  std::map<std::string, int64_t> files;
  {
    const MutexLock lock(mutex_);
    for (const File& each : coming_) {
      if (each.key == file.key) files[each.sha256] = each.size;
    }
    added = coming_.insert(coming_.end(), file);
  }
  std::unique_ptr<Reservation> reservation(new Reservation(*this, added));
  SFT_ASSIGN_OR_RETURN(const auto held, blobs.Held(file.key));
  const auto part = held.find(file.sha256);
  const int64_t received = part == held.end() ? 0 : part->second;
  SFT_RETURN_IF_ERROR(
      Counted(file.node, disk_.CheckDelivery(std::max<int64_t>(0, file.size - received))));
  for (const auto& [sha256, bytes] : held) files.emplace(sha256, bytes);
  files[file.sha256] = file.size;
  double sum = 0;
  for (const auto& [sha256, bytes] : files) sum += static_cast<double>(bytes);
  if (sum <= static_cast<double>(limit.bytes) && files.size() <= kMaxFiles) return reservation;
  return Counted(
      file.node,
      ResourceExhausted(fmt::format(
          "attempt {} may have {} in {} files on the server at a time ({}), and with this file of "
          "{} it has {} in {}: it waits until older checkpoints are removed",
          file.attempt_uid, BytesText(limit.bytes), kMaxFiles, limit.why, BytesText(file.size),
          BytesText(static_cast<int64_t>(std::min(sum, 9e18))), files.size())));
}

absl::Status DeliveryLimits::CheckGoingOn(const std::string& node) {
  return Counted(node, disk_.CheckDelivery(0));
}

}  // namespace sft::server
