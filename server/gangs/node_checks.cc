#include "server/gangs/node_checks.h"

#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <filesystem>
#include <set>

#include "common/base/plain_text.h"
#include "common/io/paths.h"
#include "common/io/sha256.h"
#include "server/blob/metric_log.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

constexpr int kPrepareRank = -1, kNodeRank = -2;  // processes of an attempt that are no ranks

// More than anything has, and small enough that sums of many do not overflow.
constexpr int64_t kMaxBytes = int64_t{1} << 50, kMaxOffset = int64_t{1} << 46;
constexpr int64_t kMaxSteps = int64_t{1} << 40, kMaxTokens = int64_t{1} << 58;
constexpr int64_t kMaxEventBytes = 16 << 20;      // that one request stands for
constexpr int64_t kLastSecond = 253'402'300'799;  // of the year 9999
constexpr int64_t kLastMicros = kLastSecond * 1'000'000, kMaxLeadSeconds = 7 * 24 * 3600;
constexpr int kMaxFiles = 4096, kMaxSlots = 4096, kMaxLinks = 1024, kMaxNetworks = 256;
constexpr int kMaxAxes = 4, kMaxAxisName = 32, kMaxSettings = 512, kMaxSetting = 4096;
constexpr int kMaxCpus = 1 << 16, kMaxValues = 64, kMaxWatts = 1 << 16, kMaxCelsius = 1000;
constexpr size_t kMaxWord = 128, kMaxLine = 512, kMaxPath = 4096, kMaxConfig = 1 << 20;
constexpr size_t kMaxText = 16'000, kMaxEvidence = 64;

absl::Status Wrong(std::string_view field, std::string_view value, std::string_view wanted) {
  return InvalidArgument(fmt::format("{}: \"{}\" is not {}", field, Plain(value, 80), wanted));
}

absl::Status Number(std::string_view field, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidArgument(fmt::format("{}: {} is not between {} and {}", field, value, least, most));
}

absl::Status Text(std::string_view field, const std::string& value, size_t most) {
  if (value.size() <= most && IsPlain(value)) return absl::OkStatus();
  return Wrong(field, value,
               fmt::format("a text without control characters of at most {} bytes", most));
}

// A number that goes into sums and narrower types; what a rank could not compute is none.
absl::Status Real(std::string_view field, double value) {
  if (!std::isfinite(value) || std::abs(value) <= FLT_MAX) return absl::OkStatus();
  return Wrong(field, std::to_string(value), "a number that a float holds");
}

absl::Status Rank(int rank, bool log, const Dispatched& part) {
  if (rank >= part.first_rank && rank < part.first_rank + part.ranks) return absl::OkStatus();
  if (rank == kPrepareRank || (rank == kNodeRank && !log)) return absl::OkStatus();
  return InvalidArgument(fmt::format("rank: attempt {} has the ranks {} to {} on node {}, not {}",
                                     part.attempt_uid, part.first_rank,
                                     part.first_rank + part.ranks - 1, part.node, rank));
}

// Whether an absolute path ends so, however it is written: a node's folders are as its operator
// typed them, with a slash at their end or a part that leads back.
bool LeadsTo(const std::string& path, std::string_view end) {
  return path.starts_with('/') && path.size() <= kMaxPath && IsPlain(path) &&
         std::filesystem::path(path).lexically_normal().string().ends_with(end);
}

absl::Status Files(const google::protobuf::RepeatedPtrField<v1::ArtifactFile>& files) {
  SFT_RETURN_IF_ERROR(Number("files", files.size(), 0, kMaxFiles));
  std::set<std::string_view> paths;
  int64_t sum = 0;
  for (const v1::ArtifactFile& file : files) {
    if (!io::IsSafeRelative(file.path()) || !IsPlain(file.path())) {
      return Wrong("files.path", file.path(), "a plain relative path");
    }
    if (!paths.insert(file.path()).second) {
      return Wrong("files.path", file.path(), "there once only");
    }
    if (!io::IsSha256Hex(file.blob().sha256())) {
      return Wrong("files.blob.sha256", file.blob().sha256(), "a SHA-256");
    }
    SFT_RETURN_IF_ERROR(Number("files.blob.size", file.blob().size(), 0, kMaxBytes));
    sum += file.blob().size();
  }
  return Number("files", sum, 0, kMaxBytes);
}

// It stands beside "val.loss" in what clients print.
bool IsValueName(std::string_view name) {
  constexpr std::string_view kBegin = "val.";
  return name.size() <= MetricLog::kMaxName && name.size() > kBegin.size() &&
         name.starts_with(kBegin) && name != "val.loss" &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' ||
                  c == '.';
         });
}

absl::Status Metric(const v1::Metric& metric) {
  SFT_RETURN_IF_ERROR(Number("step", metric.step(), 0, kMaxSteps));
  SFT_RETURN_IF_ERROR(Number("total_steps", metric.total_steps(), 0, kMaxSteps));
  SFT_RETURN_IF_ERROR(Number("tokens", metric.tokens(), 0, kMaxTokens));
  SFT_RETURN_IF_ERROR(Number("gpu_memory_bytes", metric.gpu_memory_bytes(), 0, kMaxBytes));
  SFT_RETURN_IF_ERROR(Number("time.seconds", metric.time().seconds(), 0, kLastSecond));
  SFT_RETURN_IF_ERROR(Number("time.nanos", metric.time().nanos(), 0, 999'999'999));
  const v1::Preference& preference = metric.preference();
  for (const auto& [field, value] :
       {std::pair("loss", metric.loss()),
        {"lr", metric.lr()},
        {"grad_norm", metric.grad_norm()},
        {"tokens_per_second", metric.tokens_per_second()},
        {"mfu", metric.mfu()},
        {"of_limit", metric.of_limit()},
        {"val_loss", metric.val_loss()},
        {"step_seconds", metric.step_seconds()},
        {"epoch", metric.epoch()},
        {"preference.rewards_chosen", preference.rewards_chosen()},
        {"preference.rewards_rejected", preference.rewards_rejected()},
        {"preference.rewards_accuracies", preference.rewards_accuracies()},
        {"preference.logps_chosen", preference.logps_chosen()},
        {"preference.logps_rejected", preference.logps_rejected()},
        {"preference.kl", preference.kl()},
        {"rank_loss", metric.rank_loss()}}) {
    SFT_RETURN_IF_ERROR(Real(field, value));
  }
  SFT_RETURN_IF_ERROR(Number("traffic", metric.traffic_size(), 0, kMaxAxes));
  for (const v1::AxisTraffic& each : metric.traffic()) {
    SFT_RETURN_IF_ERROR(Text("traffic.axis", each.axis(), kMaxAxisName));
    SFT_RETURN_IF_ERROR(Real("traffic.exposed_share", each.exposed_share()));
    SFT_RETURN_IF_ERROR(Real("traffic.gigabytes_per_second", each.gigabytes_per_second()));
  }
  SFT_RETURN_IF_ERROR(Number("values", metric.values_size(), 0, kMaxValues));
  for (const v1::NamedValue& value : metric.values()) {
    if (!IsValueName(value.name())) {
      return Wrong("values.name", value.name(), "\"val.\" and a name of a-z, A-Z, 0-9, _, - and .");
    }
    SFT_RETURN_IF_ERROR(Real("values.value", value.value()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Dispatched> DispatchedTo(const std::string& node, const AttemptRecord& attempt,
                                        const std::vector<MemberRecord>& members) {
  Dispatched part{.attempt_uid = attempt.uid, .job_id = attempt.job_id, .node = node};
  bool there = false;
  for (const MemberRecord& member : members) {
    const int ranks = static_cast<int>(member.slots.size());
    part.world_size += ranks;
    part.nodes.push_back(member.status.node);
    if (member.status.node != node) continue;
    there = true;
    part.first_rank = member.first_rank;
    part.ranks = ranks;
  }
  if (there) return part;
  return FailedPrecondition(
      fmt::format("attempt {} is not on node {}", attempt.uid, Plain(node, 80)));
}

absl::Status CheckLog(const v1::AppendLogRequest& request, const Dispatched& part) {
  SFT_RETURN_IF_ERROR(Rank(request.rank(), /*log=*/true, part));
  SFT_RETURN_IF_ERROR(Number("offset", request.offset(), 0, kMaxOffset));
  if (!request.has_skipped_from()) return absl::OkStatus();
  return Number("skipped_from", request.skipped_from(), 0, request.offset());
}

absl::Status CheckEvents(const v1::AppendEventsRequest& request, const Dispatched& part) {
  SFT_RETURN_IF_ERROR(Rank(request.rank(), /*log=*/false, part));
  SFT_RETURN_IF_ERROR(Number("begin_offset", request.begin_offset(), 0, kMaxOffset));
  return Number("end_offset", request.end_offset(), request.begin_offset(),
                request.begin_offset() + kMaxEventBytes);
}

absl::Status CheckEvent(const v1::RankEvent& event) {
  switch (event.body_case()) {
    case v1::RankEvent::kMetric:
      return Metric(event.metric());
    case v1::RankEvent::kProgress:
      return CheckProgress(event.progress());
    case v1::RankEvent::kNote:
      // The type is a column of lists and a word that people look for.
      if (event.type().empty() || IsValidLabel(event.type())) return absl::OkStatus();
      return Wrong("type", event.type(), "a word");
    case v1::RankEvent::BODY_NOT_SET:
      return absl::OkStatus();  // of a worker that knows more kinds
  }
  return absl::OkStatus();
}

absl::Status CheckArtifact(const v1::CommitArtifactRequest& request, const Dispatched& part) {
  const bool model = request.kind() == "model";
  if (!model && request.kind() != "adapter" && request.kind() != "answers" &&
      request.kind() != "evaluation") {
    return Wrong("kind", request.kind(), "\"adapter\", \"answers\", \"evaluation\" or \"model\"");
  }
  if (request.files_size() == 0) return InvalidArgument("files: an artifact has some");
  SFT_RETURN_IF_ERROR(Files(request.files()));
  const std::string& path = request.node_path();
  if (!model) return path.empty() ? absl::OkStatus() : Wrong("node_path", path, "an adapter's");
  if (LeadsTo(path, "/" + part.job_id + "/model")) return absl::OkStatus();
  return Wrong("node_path", path, fmt::format("an absolute path to {}/model", part.job_id));
}

absl::Status CheckCheckpoint(const v1::CommitCheckpointRequest& request, const Dispatched& part) {
  SFT_RETURN_IF_ERROR(Number("step", request.step(), 1, kMaxSteps));
  SFT_RETURN_IF_ERROR(Number("bytes", request.bytes(), 0, kMaxBytes));
  SFT_RETURN_IF_ERROR(Text("reason", request.reason(), kMaxWord));
  SFT_RETURN_IF_ERROR(Files(request.files()));
  const std::string &shared = request.shared_path(), &path = request.node_path();
  const int places = (request.files_size() > 0) + !path.empty() + !shared.empty();
  if (places != 1) return InvalidArgument("a checkpoint is in one place: files, node or shared");
  const std::string own = fmt::format("step-{}", request.step());
  if (!shared.empty() && shared != fmt::format("{}/checkpoints/{}", part.job_id, own)) {
    return Wrong("shared_path", shared, fmt::format("{}/checkpoints/{}", part.job_id, own));
  }
  const std::string folders[] = {fmt::format("/checkpoints/{}/{}", part.job_id, own),
                                 fmt::format("/{}/checkpoints/{}", part.job_id, own)};
  const bool ours = LeadsTo(path, folders[0]) || LeadsTo(path, folders[1]);
  if (!path.empty() && !ours) {
    return Wrong("node_path", path, fmt::format("an absolute path to {}", folders[0].substr(1)));
  }
  return absl::OkStatus();
}

absl::Status CheckStatus(const v1::AttemptStatus& status) {
  if (!v1::AttemptStatus::State_IsValid(status.state())) {
    return Wrong("state", std::to_string(status.state()), "a state that this server knows");
  }
  SFT_RETURN_IF_ERROR(Text("rendezvous", status.rendezvous(), kMaxLine));
  SFT_RETURN_IF_ERROR(Number("checkpoint_newest", status.checkpoint_newest(), 0, kMaxSteps));
  return Number("checkpoint_settled", status.checkpoint_settled(), 0, kMaxSteps);
}

absl::Status CheckProgress(const v1::Progress& progress) {
  SFT_RETURN_IF_ERROR(Number("progress.step", progress.step(), 0, kMaxSteps));
  SFT_RETURN_IF_ERROR(Number("progress.total_steps", progress.total_steps(), 0, kMaxSteps));
  SFT_RETURN_IF_ERROR(
      Number("progress.gpu_memory_bytes", progress.gpu_memory_bytes(), 0, kMaxBytes));
  SFT_RETURN_IF_ERROR(
      Number("progress.trainable_parameters", progress.trainable_parameters(), 0, kMaxBytes));
  SFT_RETURN_IF_ERROR(
      Number("progress.total_parameters", progress.total_parameters(), 0, kMaxBytes));
  SFT_RETURN_IF_ERROR(Number("progress.ranks", progress.ranks_size(), 0, kMaxSlots));
  for (const v1::RankProgress& rank : progress.ranks()) {
    SFT_RETURN_IF_ERROR(Number("progress.ranks.step", rank.step(), 0, kMaxSteps));
    SFT_RETURN_IF_ERROR(
        Number("progress.ranks.gpu_memory_bytes", rank.gpu_memory_bytes(), 0, kMaxBytes));
  }
  return Text("progress.phase", progress.phase(), kMaxLine);
}

v1::Verdict Bounded(v1::Verdict verdict, const Dispatched& part) {
  if (!v1::Verdict::Domain_IsValid(verdict.domain())) verdict.set_domain(v1::Verdict::UNKNOWN);
  if (!verdict.code().empty() && !IsValidLabel(verdict.code())) {
    verdict.set_code("unknown");
    verdict.set_domain(v1::Verdict::UNKNOWN);
  }
  // It would count against a node that has nothing to do with it.
  const bool known =
      std::find(part.nodes.begin(), part.nodes.end(), verdict.node()) != part.nodes.end();
  if (!known) verdict.clear_node();
  if (verdict.rank() < 0 || verdict.rank() >= part.world_size) verdict.set_rank(-1);
  verdict.set_process(Plain(verdict.process(), kMaxWord));
  verdict.set_message(BoundedText(verdict.message()));
  verdict.set_advice(BoundedText(verdict.advice()));
  if (verdict.evidence_size() > static_cast<int>(kMaxEvidence)) {
    verdict.mutable_evidence()->DeleteSubrange(
        kMaxEvidence, verdict.evidence_size() - static_cast<int>(kMaxEvidence));
  }
  size_t left = 4 * kMaxText;
  for (std::string& line : *verdict.mutable_evidence()) {
    line = BoundedText(Shortened(line, left));
    left -= std::min(left, line.size());
  }
  return verdict;
}

absl::Status CheckNode(const v1::Register& message) {
  if (!IsValidLabel(message.node())) {
    return InvalidArgument(fmt::format(
        "node name \"{}\": letters, digits, '-', '_' and '.', at most 63 (sft-worker --node)",
        Plain(message.node(), 80)));
  }
  if (message.incarnation().empty()) return InvalidArgument("a Register without incarnation");
  SFT_RETURN_IF_ERROR(Text("incarnation", message.incarnation(), kMaxWord));
  SFT_RETURN_IF_ERROR(Text("version", message.version(), kMaxWord));
  SFT_RETURN_IF_ERROR(Text("hostname", message.hostname(), kMaxLine));
  SFT_RETURN_IF_ERROR(Text("address", message.address(), kMaxLine));
  SFT_RETURN_IF_ERROR(Text("data_dir_id", message.data_dir_id(), kMaxWord));
  SFT_RETURN_IF_ERROR(Number("cpus", message.cpus(), 0, kMaxCpus));
  SFT_RETURN_IF_ERROR(Number("memory_bytes", message.memory_bytes(), 0, kMaxBytes));
  return CheckSlots(message.slots());
}

absl::Status CheckSlots(const google::protobuf::RepeatedPtrField<v1::Slot>& slots) {
  SFT_RETURN_IF_ERROR(Number("slots", slots.size(), 0, kMaxSlots));
  std::set<int> indexes;
  for (const v1::Slot& slot : slots) {
    SFT_RETURN_IF_ERROR(Number("slots.index", slot.index(), 0, kMaxSlots - 1));
    if (!indexes.insert(slot.index()).second) {
      return InvalidArgument(fmt::format("slots.index: {} is named twice", slot.index()));
    }
    if (slot.gpu_type().empty()) {
      return InvalidArgument(fmt::format("slots.gpu_type: slot {} has no type", slot.index()));
    }
    SFT_RETURN_IF_ERROR(Text("slots.gpu_type", slot.gpu_type(), kMaxWord));
    SFT_RETURN_IF_ERROR(Text("slots.product_name", slot.product_name(), kMaxLine));
    SFT_RETURN_IF_ERROR(Text("slots.uuid", slot.uuid(), kMaxWord));
    SFT_RETURN_IF_ERROR(Number("slots.memory_bytes", slot.memory_bytes(), 0, kMaxBytes));
    SFT_RETURN_IF_ERROR(Number("slots.memory_used_bytes", slot.memory_used_bytes(), 0, kMaxBytes));
    SFT_RETURN_IF_ERROR(Number("slots.utilization_percent", slot.utilization_percent(), 0, 100));
    if (!(slot.power_watts() >= 0 && slot.power_watts() <= kMaxWatts)) {
      return Wrong("slots.power_watts", fmt::format("{}", slot.power_watts()), "a GPU's power");
    }
    SFT_RETURN_IF_ERROR(
        Number("slots.temperature_celsius", slot.temperature_celsius(), 0, kMaxCelsius));
  }
  return absl::OkStatus();
}

absl::Status CheckModel(const v1::Model& model) {
  if (model.id().empty()) return InvalidArgument("models.id: a model without one");
  SFT_RETURN_IF_ERROR(Text("models.id", model.id(), kMaxLine));
  SFT_RETURN_IF_ERROR(Text("models.path", model.path(), kMaxPath));
  SFT_RETURN_IF_ERROR(Text("models.hash", model.hash(), kMaxWord));
  SFT_RETURN_IF_ERROR(Number("models.bytes", model.bytes(), 0, kMaxBytes));
  return Number("models.config_json", static_cast<int64_t>(model.config_json().size()), 0,
                kMaxConfig);
}

absl::Status CheckDisk(const v1::NodeDisk& disk) {
  if (!v1::NodeDisk::Level_IsValid(disk.level())) {
    return Wrong("disk.level", std::to_string(disk.level()), "a level that this server knows");
  }
  for (const auto& [field, bytes] : {std::pair("disk.total_bytes", disk.total_bytes()),
                                     {"disk.free_bytes", disk.free_bytes()},
                                     {"disk.low_bytes", disk.low_bytes()},
                                     {"disk.full_bytes", disk.full_bytes()}}) {
    SFT_RETURN_IF_ERROR(Number(field, bytes, 0, int64_t{1} << 60));
  }
  return absl::OkStatus();
}

absl::Status CheckFacts(const v1::NodeFacts& facts) {
  SFT_RETURN_IF_ERROR(Text("facts.driver_version", facts.driver_version(), kMaxWord));
  SFT_RETURN_IF_ERROR(Text("facts.interconnect", facts.interconnect(), kMaxLine));
  SFT_RETURN_IF_ERROR(Text("facts.data_dir.machine", facts.data_dir().machine(), kMaxWord));
  SFT_RETURN_IF_ERROR(Text("facts.data_dir.path", facts.data_dir().path(), kMaxPath));
  SFT_RETURN_IF_ERROR(Number("facts.links", facts.links_size(), 0, kMaxSlots));
  SFT_RETURN_IF_ERROR(Number("facts.networks", facts.networks_size(), 0, kMaxNetworks));
  SFT_RETURN_IF_ERROR(Text("facts.hub.endpoint", facts.hub().endpoint(), kMaxLine));
  SFT_RETURN_IF_ERROR(Number("facts.graders.roots", facts.graders().roots_size(), 0, kMaxValues));
  for (const std::string& root : facts.graders().roots()) {
    SFT_RETURN_IF_ERROR(Text("facts.graders.roots", root, kMaxPath));
  }
  SFT_RETURN_IF_ERROR(Number("facts.lease.end_us", facts.lease().end_us(), 0, kLastMicros));
  SFT_RETURN_IF_ERROR(
      Number("facts.lease.lead_seconds", facts.lease().lead_seconds(), 0, kMaxLeadSeconds));
  SFT_RETURN_IF_ERROR(Text("facts.lease.allocation", facts.lease().allocation(), kMaxWord));
  for (const v1::SlotLinks& link : facts.links()) {
    SFT_RETURN_IF_ERROR(Number("facts.links.slot", link.slot(), 0, kMaxSlots - 1));
    SFT_RETURN_IF_ERROR(Number("facts.links.active_links", link.active_links(), 0, kMaxLinks));
    SFT_RETURN_IF_ERROR(Text("facts.links.domain", link.domain(), kMaxLine));
  }
  SFT_RETURN_IF_ERROR(Text("facts.place", facts.place(), kMaxLine));
  SFT_RETURN_IF_ERROR(
      Number("facts.network_settings", facts.network_settings_size(), 0, kMaxSettings));
  for (const std::string& setting : facts.network_settings()) {
    SFT_RETURN_IF_ERROR(Text("facts.network_settings", setting, kMaxSetting));
  }
  for (const std::string& network : facts.networks()) {
    SFT_RETURN_IF_ERROR(Text("facts.networks", network, kMaxLine));
  }
  return absl::OkStatus();
}

absl::Status CheckTime(int64_t time_us) { return Number("time_us", time_us, 0, kLastMicros); }

std::string BoundedText(const std::string& text) {
  return Escaped(Shortened(text, kMaxText), /*keep_breaks=*/true);
}

}  // namespace sft::server
