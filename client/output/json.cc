#include "client/output/json.h"

#include <fmt/format.h>

#include <cmath>

#include "client/output/cost.h"
#include "client/output/format.h"
#include "client/output/job_hooks.h"
#include "client/output/progress.h"
#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/base/utf8.h"

namespace sft::client {
namespace {

// JSON has no NaN or infinity: they are written as strings.
Json Number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

Json PreferenceJson(const v1::Preference& preference) {
  return {{"rewards/chosen", Number(preference.rewards_chosen())},
          {"rewards/rejected", Number(preference.rewards_rejected())},
          {"rewards/margins", Number(MarginOf(preference))},
          {"rewards/accuracies", Number(preference.rewards_accuracies())},
          {"logps/chosen", Number(preference.logps_chosen())},
          {"logps/rejected", Number(preference.logps_rejected())},
          {"kl", Number(preference.kl())}};
}

}  // namespace

std::string PrintedJson(std::string_view json) {
  constexpr char32_t kPlane = 0x10000;
  std::string shown;
  for (std::string_view rest = json; !rest.empty();) {
    const std::string_view before = rest;
    bool valid = false;
    const char32_t character = TakeCharacter(rest, valid);
    if (character == '\n' || !IsControl(character)) {
      shown += before.substr(0, before.size() - rest.size());
    } else if (character < kPlane) {
      shown += fmt::format("\\u{:04x}", static_cast<uint32_t>(character));
    } else {
      const auto high = static_cast<uint32_t>((character - kPlane) >> 10);
      shown += fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + high,
                           0xdc00 + static_cast<uint32_t>(character & 0x3ff));
    }
  }
  return shown;
}

std::string DumpJson(const nlohmann::json& value, int indent) {
  return PrintedJson(sft::DumpJson(value, indent));
}

std::string DumpJson(const nlohmann::ordered_json& value, int indent) {
  return PrintedJson(sft::DumpJson(value, indent));
}

namespace {

// "val.rouge_l": 34.1, beside "val.loss".
void AddValues(const google::protobuf::RepeatedPtrField<v1::NamedValue>& values, Json& json) {
  for (const v1::NamedValue& value : values) json[value.name()] = Number(value.value());
}

// "comm.exposed_share", of all axes, and "comm.shard.exposed_share", "comm.shard.GBps" of each.
void AddTraffic(const google::protobuf::RepeatedPtrField<v1::AxisTraffic>& traffic, Json& json) {
  if (traffic.empty()) return;
  json["comm.exposed_share"] = Number(ExposedShare(traffic));
  for (const v1::AxisTraffic& each : traffic) {
    json[fmt::format("comm.{}.exposed_share", each.axis())] = Number(each.exposed_share());
    json[fmt::format("comm.{}.GBps", each.axis())] = Number(each.gigabytes_per_second());
  }
}

Json RanksJson(const v1::Progress& progress) {
  Json ranks = Json::array();
  for (const v1::RankProgress& each : progress.ranks()) {
    ranks.push_back({{"rank", each.rank()},
                     {"step", each.step()},
                     {"gpu_memory_bytes", each.gpu_memory_bytes()}});
  }
  return ranks;
}

Json ProgressJson(const v1::Progress& progress) {
  Json json = {{"step", progress.step()},
               {"total_steps", progress.total_steps()},
               {"loss", Number(progress.loss())},
               {"tokens_per_second", Number(progress.tokens_per_second())},
               {"gpu_memory_bytes", progress.gpu_memory_bytes()},
               {"eta_seconds", Number(progress.eta_seconds())}};
  if (progress.has_val_loss()) json["val_loss"] = Number(progress.val_loss());
  if (!progress.phase().empty()) json["phase"] = progress.phase();
  if (progress.mfu() > 0) json["mfu"] = progress.mfu();
  if (progress.of_limit() > 0) json["of_limit"] = progress.of_limit();
  if (progress.has_preference()) json.update(PreferenceJson(progress.preference()));
  AddValues(progress.values(), json);
  AddTraffic(progress.traffic(), json);
  if (!progress.ranks().empty()) json["ranks"] = RanksJson(progress);
  json["trainable_parameters"] = progress.trainable_parameters();
  json["total_parameters"] = progress.total_parameters();
  return json;
}

Json VerdictJson(const v1::Verdict& verdict) {
  static constexpr const char* kDomains[] = {"", "none", "user", "infrastructure", "unknown"};
  Json json = {{"domain", kDomains[verdict.domain()]},
               {"code", verdict.code()},
               {"message", verdict.message()},
               {"advice", verdict.advice()},
               {"rank", verdict.rank()},
               {"node", verdict.node()},
               {"process", verdict.process()}};
  json["action"] = verdict.action();
  json["retries_left"] = verdict.has_retries_left() ? Json(verdict.retries_left()) : Json(nullptr);
  json["evidence"] = std::vector<std::string>(verdict.evidence().begin(), verdict.evidence().end());
  return json;
}

Json TimeJson(const google::protobuf::Timestamp& time) {
  return time.seconds() == 0 ? Json(nullptr) : Json(Utc(time));
}

Json AttemptJson(const v1::Attempt& attempt) {
  return {{"number", attempt.number()},
          {"epoch", attempt.epoch()},
          {"state", attempt.state()},
          {"nodes", std::vector<std::string>(attempt.nodes().begin(), attempt.nodes().end())},
          {"first_step", attempt.first_step()},
          {"last_step", attempt.last_step()},
          {"verdict", attempt.has_verdict() ? VerdictJson(attempt.verdict()) : Json(nullptr)},
          {"create_time", TimeJson(attempt.create_time())},
          {"end_time", TimeJson(attempt.end_time())}};
}

}  // namespace

double ExposedShare(const google::protobuf::RepeatedPtrField<v1::AxisTraffic>& traffic) {
  double share = 0;
  for (const v1::AxisTraffic& each : traffic) share += each.exposed_share();
  return share;
}

std::string StateName(v1::Job::State state) { return v1::Job::State_Name(state); }

bool IsEnded(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

Json OutlookJson(const v1::Outlook& outlook) {
  return {{"place", outlook.place() > 0 ? Json(outlook.place()) : Json(nullptr)},
          {"expected_start_time", TimeJson(outlook.start_time())},
          {"expected_end_time", TimeJson(outlook.end_time())},
          {"promised_start_time", TimeJson(outlook.promised_start_time())},
          {"source", outlook.source()},
          {"lacks_slots", outlook.lacks_slots()}};
}

std::string KindName(v1::Job::Kind kind) {
  switch (kind) {
    case v1::Job::GENERATE:
      return "generate";
    case v1::Job::EVALUATE:
      return "evaluate";
    case v1::Job::SERVE:
      return "serve";
    case v1::Job::EXPORT:
      return "export";
    default:
      return "sft";
  }
}

bool CountsAnswers(v1::Job::Kind kind) {
  return kind == v1::Job::GENERATE || kind == v1::Job::EVALUATE;
}

Json JobJson(const v1::Job& job) {
  Json json = {
      {"job", ShortName(job.name())},
      {"name", job.display_name()},
      {"kind", KindName(job.kind())},
      {"state", StateName(job.state())},
      {"reason", job.reason()},
      {"attempt", job.attempt()},
      {"nodes", std::vector<std::string>(job.nodes().begin(), job.nodes().end())},
      {"progress", ProgressJson(job.progress())},
      {"variant", job.variant()},
      {"node_count", job.node_count()},
      {"exclusive", job.exclusive()},
      {"owner", job.owner()},
      {"project", job.project()},
      {"request_id", job.request_id()},
      {"create_time", TimeJson(job.create_time())},
      {"start_time", TimeJson(job.start_time())},
      {"end_time", TimeJson(job.end_time())},
      {"artifacts", std::vector<std::string>(job.artifacts().begin(), job.artifacts().end())}};
  Json attempts = Json::array();
  for (const v1::Attempt& attempt : job.attempts()) attempts.push_back(AttemptJson(attempt));
  json["attempts"] = attempts;
  json["checkpoint_step"] = job.checkpoint_step();
  json["priority"] = job.priority();
  json["sweep"] = job.sweep().empty() ? Json(nullptr) : Json(job.sweep());
  json["group"] = job.group().empty() ? Json(nullptr) : Json(job.group());
  json["held"] = job.held();
  json["after"] = std::vector<std::string>(job.after().begin(), job.after().end());
  json["deadline"] = TimeJson(job.deadline());
  json["outlook"] = job.has_outlook() ? OutlookJson(job.outlook()) : Json(nullptr);
  json["cost"] = CostJson(job.has_cost(), job.cost());
  json["resumed_from"] =
      job.resumed_from().empty()
          ? Json(nullptr)
          : Json({{"job", ShortName(job.resumed_from())}, {"step", job.resumed_step()}});
  json["verdict"] = job.has_verdict() ? VerdictJson(job.verdict()) : Json(nullptr);
  Json warnings = Json::array();
  for (const v1::Problem& warning : job.warnings()) warnings.push_back(ProblemJson(warning));
  json["warnings"] = warnings;
  json["hooks"] = JobHooksJson(job);
  json["resolved"] =
      job.resolved_json().empty() ? Json(nullptr) : ParseOrderedJson(job.resolved_json());
  return json;
}

namespace {

Json PlainMetricJson(const v1::Metric& metric) {
  if (metric.is_eval()) {
    return {{"type", "validation"},
            {"step", metric.step()},
            {"val_loss", Number(metric.val_loss())},
            {"val.loss", Number(metric.val_loss())},  // the original spelling, which stays
            {"time", Utc(metric.time())},
            {"attempt", metric.attempt()}};
  }
  return {{"type", "step"},
          {"step", metric.step()},
          {"loss", Number(metric.loss())},
          {"lr", Number(metric.lr())},
          {"grad_norm", Number(metric.grad_norm())},
          {"tokens", metric.tokens()},
          {"tokens_per_second", Number(metric.tokens_per_second())},
          {"gpu_memory_bytes", metric.gpu_memory_bytes()},
          {"mfu", Number(metric.mfu())},
          {"of_limit", Number(metric.of_limit())},
          {"epoch", Number(metric.epoch())},
          {"seconds", Number(metric.step_seconds())},
          {"time", Utc(metric.time())},
          {"attempt", metric.attempt()}};
}

}  // namespace

Json MetricJson(const v1::Metric& metric) {
  Json json = PlainMetricJson(metric);
  if (metric.has_preference()) json.update(PreferenceJson(metric.preference()));
  AddValues(metric.values(), json);
  AddTraffic(metric.traffic(), json);
  return json;
}

Json CurveJson(const v1::CurveSeries& series) {
  Json x = Json::array(), y = Json::array();
  for (const double value : series.x()) x.push_back(value);
  // As short as a float is: 0.1, not 0.10000000149011612.
  for (const float value : series.y()) y.push_back(Number(std::stod(fmt::format("{}", value))));
  Json json = {{"name", series.name()}};
  if (series.name().starts_with("rank_")) json["rank"] = series.rank();
  json.update(
      {{"points", series.points()}, {"parts", series.parts()}, {"x", std::move(x)}, {"y", y}});
  return json;
}

Json EventJson(const v1::JobEvent& event) {
  return {{"sequence", event.sequence()},
          {"time", Utc(event.time())},
          {"type", event.type()},
          {"attempt", event.attempt()},
          {"message", event.message()}};
}

Json ClusterEventJson(const v1::ClusterEvent& event) {
  const bool of_job = event.job_sequence() > 0;
  return {{"sequence", event.sequence()},
          {"time", Utc(event.time())},
          {"subject", event.subject()},
          {"job", of_job ? Json(ShortName(event.subject())) : Json(nullptr)},
          {"type", event.type()},
          {"attempt", event.attempt()},
          {"message", event.message()}};
}

Json CheckpointJson(const v1::Checkpoint& checkpoint) {
  return {{"step", checkpoint.step()},
          {"attempt", checkpoint.attempt()},
          {"bytes", checkpoint.bytes()},
          {"reason", checkpoint.reason()},
          {"metric", checkpoint.has_metric() ? Number(checkpoint.metric()) : Json(nullptr)},
          {"best", checkpoint.best()},
          {"commit_time", TimeJson(checkpoint.commit_time())},
          {"place", checkpoint.place()},
          {"problem", checkpoint.problem()}};
}

namespace {

Json HoldJson(const v1::Node& node) {
  if (!node.has_hold()) return nullptr;
  const v1::NodeHold& hold = node.hold();
  return {{"mode", v1::NodeHold::Mode_Name(hold.mode())},
          {"reason", hold.reason()},
          {"who", hold.who()},
          {"time", TimeJson(hold.time())},
          {"move_time", hold.has_move_time() ? TimeJson(hold.move_time()) : Json(nullptr)},
          {"jobs", hold.jobs()}};
}

Json LeaseJson(const v1::Node& node) {
  if (!node.facts().has_lease()) return nullptr;
  const v1::Lease& lease = node.facts().lease();
  constexpr int64_t kSecondUs = 1'000'000;
  google::protobuf::Timestamp end;
  end.set_seconds(lease.end_us() / kSecondUs);
  return {{"allocation", lease.allocation()},
          {"end_time", TimeJson(end)},
          {"lead_seconds", lease.lead_seconds()}};
}

Json DiskJson(const v1::Node& node) {
  if (!node.has_disk()) return nullptr;
  return {{"total_bytes", node.disk().total_bytes()},
          {"free_bytes", node.disk().free_bytes()},
          {"level", v1::NodeDisk::Level_Name(node.disk().level())},
          {"low_bytes", node.disk().low_bytes()},
          {"full_bytes", node.disk().full_bytes()}};
}

}  // namespace

std::string NodeStateName(const v1::Node& node) {
  if (!node.has_hold() || node.state() != v1::Node::UP) return v1::Node::State_Name(node.state());
  if (node.hold().mode() == v1::NodeHold::CORDON) return "CORDONED";
  return node.hold().jobs().empty() ? "DRAINED" : "DRAINING";
}

Json NodeJson(const v1::Node& node) {
  Json slots = Json::array();
  for (const v1::Slot& slot : node.slots()) {
    slots.push_back({{"index", slot.index()},
                     {"gpu_type", slot.gpu_type()},
                     {"product_name", slot.product_name()},
                     {"uuid", slot.uuid()},
                     {"memory_bytes", slot.memory_bytes()},
                     {"memory_used_bytes", slot.memory_used_bytes()},
                     {"utilization_percent", slot.utilization_percent()},
                     {"power_watts", slot.power_watts()},
                     {"temperature_celsius", slot.temperature_celsius()},
                     {"job", ShortName(slot.job())},
                     {"healthy", slot.healthy()},
                     {"health_reason", slot.health_reason()}});
  }
  return {{"node", ShortName(node.name())},
          {"state", v1::Node::State_Name(node.state())},
          {"reason", node.reason()},
          {"worker_version", node.worker_version()},
          {"hostname", node.hostname()},
          {"simulated", node.simulated()},
          {"cpus", node.cpus()},
          {"memory_bytes", node.memory_bytes()},
          {"left_out", node.left_out()},
          {"rival", node.rival()},
          {"incarnation", node.incarnation()},
          {"data_dir", node.facts().data_dir().path()},
          {"status", NodeStateName(node)},
          {"unusable", node.unusable()},
          {"hold", HoldJson(node)},
          {"lease", LeaseJson(node)},
          {"disk", DiskJson(node)},
          {"clock_offset_seconds",
           node.has_clock_offset_seconds() ? Json(node.clock_offset_seconds()) : Json(nullptr)},
          {"rank_build", node.facts().rank_build()},
          {"driver_version", node.facts().driver_version()},
          {"interconnect", node.facts().interconnect()},
          {"networks", node.facts().networks()},
          {"place", node.facts().place()},
          {"network_settings", node.facts().network_settings()},
          {"first_seen", TimeJson(node.first_seen())},
          {"last_seen", TimeJson(node.last_seen())},
          {"slots", slots}};
}

Json VariantJson(const v1::Variant& variant) {
  return {{"variant", variant.name()},
          {"gpu_type", variant.gpu_type()},
          {"gpus_per_node", variant.gpus_per_node()},
          {"nodes", variant.nodes()},
          {"nodes_free", variant.nodes_free()}};
}

Json ModelJson(const v1::NodeModel& entry) {
  const v1::Model& model = entry.model();
  Json needs = Json::array();
  for (const v1::ModelNeed& need : entry.needs()) {
    needs.push_back({{"gpu_type", need.gpu_type()},
                     {"gpu_memory_bytes", need.gpu_memory_bytes()},
                     {"assumed", need.assumed()},
                     {"for", need.smallest() ? "smallest" : "fastest"},
                     {"method", need.method()},
                     {"sequence_length", need.sequence_length()},
                     {"gpus", need.gpus()},
                     {"memory_bytes", need.memory_bytes()},
                     {"tokens_per_second", need.tokens_per_second()},
                     {"speed_from_peaks", need.speed_from_peaks()}});
  }
  Json json = {{"model", model.id()},
               {"node", ShortName(entry.node())},
               {"path", model.path()},
               {"bytes", model.bytes()},
               {"hash", model.hash()},
               {"problem", model.problem()},
               {"family", entry.family()},
               {"parameters", entry.parameters()},
               {"active_parameters", entry.active_parameters()},
               {"stored", entry.stored()},
               {"needs", std::move(needs)}};
  if (entry.has_download()) {
    json["download"] = {{"commit", entry.download().commit()},
                        {"bytes_done", entry.download().bytes_done()},
                        {"bytes_total", entry.download().bytes_total()},
                        {"bytes_per_second", entry.download().bytes_per_second()},
                        {"problem", entry.download().problem()}};
  }
  return json;
}

Json ProblemJson(const v1::Problem& problem) {
  return {{"key", problem.key()}, {"line", problem.line()}, {"message", problem.message()}};
}

}  // namespace sft::client
