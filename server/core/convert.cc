#include "server/core/convert.h"

#include <algorithm>
#include <utility>

#include "common/spec/visit.h"
#include "server/state/names.h"
#include "server/store/progress.h"

namespace sft::server {

google::protobuf::Timestamp ToTimestamp(int64_t unix_micros) {
  google::protobuf::Timestamp time;
  time.set_seconds(unix_micros / 1'000'000);
  time.set_nanos(static_cast<int32_t>(unix_micros % 1'000'000) * 1000);
  return time;
}

v1::Verdict ToProto(const Verdict& verdict) {
  v1::Verdict proto;
  proto.set_domain(static_cast<v1::Verdict::Domain>(verdict.domain));
  proto.set_code(verdict.code);
  proto.set_message(verdict.message);
  proto.set_advice(verdict.advice);
  proto.set_rank(verdict.rank);
  proto.set_node(verdict.node);
  proto.set_process(verdict.process);
  if (verdict.retries_left >= 0) proto.set_retries_left(verdict.retries_left);
  proto.set_action(verdict.action);
  for (const std::string& line : verdict.evidence) proto.add_evidence(line);
  return proto;
}

Verdict FromProto(const v1::Verdict& proto) {
  Verdict verdict;
  verdict.domain = static_cast<Verdict::Domain>(proto.domain());
  verdict.code = proto.code();
  verdict.message = proto.message();
  verdict.advice = proto.advice();
  verdict.rank = proto.rank();
  verdict.node = proto.node();
  verdict.process = proto.process();
  verdict.evidence.assign(proto.evidence().begin(), proto.evidence().end());
  return verdict;
}

namespace {

v1::Metric MetricOf(const MetricPoint& point) {
  v1::Metric metric;
  metric.set_attempt(static_cast<int32_t>(point.attempt));
  metric.set_step(point.step);
  metric.set_is_eval(point.is_eval != 0);
  metric.set_total_steps(point.total_steps);
  metric.set_tokens(point.tokens);
  metric.set_gpu_memory_bytes(point.gpu_memory_bytes);
  *metric.mutable_time() = ToTimestamp(point.time_us);
  metric.set_loss(point.loss);
  metric.set_lr(point.lr);
  metric.set_grad_norm(point.grad_norm);
  metric.set_tokens_per_second(point.tokens_per_second);
  metric.set_mfu(point.mfu);
  metric.set_of_limit(point.of_limit);
  if (point.preference) *metric.mutable_preference() = ToProto(*point.preference);
  for (const AxisTraffic& each : point.traffic) *metric.add_traffic() = ToProto(each);
  metric.set_val_loss(point.val_loss);
  metric.set_step_seconds(point.step_seconds);
  metric.set_epoch(point.epoch);
  return metric;
}

MetricPoint PointOf(const v1::Metric& metric, int attempt) {
  MetricPoint point;
  point.attempt = attempt;
  point.step = metric.step();
  point.is_eval = metric.is_eval() ? 1 : 0;
  point.total_steps = metric.total_steps();
  point.tokens = metric.tokens();
  point.gpu_memory_bytes = metric.gpu_memory_bytes();
  point.time_us = metric.time().seconds() * 1'000'000 + metric.time().nanos() / 1000;
  point.loss = metric.loss();
  point.lr = metric.lr();
  point.grad_norm = metric.grad_norm();
  point.tokens_per_second = metric.tokens_per_second();
  point.mfu = metric.mfu();
  point.of_limit = static_cast<float>(metric.of_limit());
  if (metric.has_preference()) point.preference = FromProto(metric.preference());
  for (const v1::AxisTraffic& each : metric.traffic()) point.traffic.push_back(FromProto(each));
  point.val_loss = metric.val_loss();
  point.step_seconds = metric.step_seconds();
  point.epoch = metric.epoch();
  return point;
}

}  // namespace

std::vector<v1::Metric> MetricsOf(const std::vector<MetricPoint>& points) {
  std::vector<v1::Metric> metrics;
  for (const MetricPoint& point : points) {
    if (point.name.empty()) {
      metrics.push_back(MetricOf(point));
      continue;
    }
    const bool follows = !metrics.empty() && metrics.back().is_eval() &&
                         metrics.back().step() == point.step &&
                         metrics.back().attempt() == point.attempt;
    if (!follows) continue;
    v1::NamedValue& value = *metrics.back().add_values();
    value.set_name(point.name);
    value.set_value(point.value);
  }
  return metrics;
}

void AddPoints(const v1::Metric& metric, int attempt, std::vector<MetricPoint>& points) {
  points.push_back(PointOf(metric, attempt));
  if (!metric.is_eval()) return;
  const MetricPoint validation = points.back();
  int32_t order = validation.is_eval;
  for (const v1::NamedValue& value : metric.values()) {
    MetricPoint& point = points.emplace_back();
    point.attempt = validation.attempt;
    point.step = validation.step;
    point.time_us = validation.time_us;
    point.is_eval = ++order;
    point.name = value.name();
    point.value = value.value();
  }
}

v1::JobEvent ToProto(const EventRecord& event) {
  v1::JobEvent proto;
  proto.set_sequence(event.sequence);
  *proto.mutable_time() = ToTimestamp(event.time_us);
  proto.set_type(event.type);
  proto.set_message(event.message);
  proto.set_attempt(event.attempt);
  return proto;
}

v1::Artifact ToProto(const ArtifactRecord& artifact) {
  v1::Artifact proto;
  proto.set_name(ArtifactName(artifact.id));
  proto.set_job(artifact.job_id);
  proto.set_kind(artifact.kind);
  for (const ArtifactFileRecord& file : artifact.files) {
    auto* added = proto.add_files();
    added->set_path(file.path);
    added->mutable_blob()->set_sha256(file.sha256);
    added->mutable_blob()->set_size(file.size);
  }
  proto.set_node(artifact.node);
  proto.set_node_path(artifact.node_path);
  *proto.mutable_create_time() = ToTimestamp(artifact.created_us);
  proto.set_bytes(artifact.bytes);
  return proto;
}

v1::Slot ToProto(const SlotRecord& slot) {
  v1::Slot proto;
  proto.set_index(slot.index);
  proto.set_gpu_type(slot.gpu_type);
  proto.set_product_name(slot.product_name);
  proto.set_uuid(slot.uuid);
  proto.set_memory_bytes(slot.memory_bytes);
  proto.set_job(slot.job_id);
  proto.set_healthy(slot.healthy);
  proto.set_health_reason(slot.health_reason);
  return proto;
}

SlotRecord FromProto(const v1::Slot& slot, const std::string& node) {
  return {node,        slot.index(),        slot.gpu_type(), slot.product_name(),
          slot.uuid(), slot.memory_bytes(), slot.healthy(),  slot.health_reason(),
          ""};
}

v1::Model ToProto(const ModelRecord& model) {
  v1::Model proto;
  proto.set_id(model.id);
  proto.set_path(model.path);
  proto.set_config_json(model.config_json);
  proto.set_bytes(model.bytes);
  proto.set_hash(model.hash);
  proto.set_problem(model.problem);
  return proto;
}

ModelRecord FromProto(const v1::Model& model, const std::string& node) {
  return {node,          model.id(),   model.path(),   model.config_json(),
          model.bytes(), model.hash(), model.problem()};
}

v1::Attempt ToProto(const AttemptRecord& attempt) {
  v1::Attempt proto;
  proto.set_number(attempt.number);
  proto.set_epoch(attempt.epoch);
  proto.set_state(std::string(ToString(attempt.state)));
  if (!attempt.verdict.empty()) *proto.mutable_verdict() = ToProto(attempt.verdict);
  proto.set_first_step(attempt.resume_step);
  proto.set_last_step(std::max<int64_t>(attempt.resume_step, attempt.progress.step));
  *proto.mutable_create_time() = ToTimestamp(attempt.created_us);
  if (attempt.ended_us > 0) *proto.mutable_end_time() = ToTimestamp(attempt.ended_us);
  return proto;
}

v1::Node ToProto(const NodeRecord& node) {
  v1::Node proto;
  proto.set_name(NodeName(node.name));
  proto.set_state(static_cast<v1::Node::State>(node.state));
  proto.set_reason(node.reason);
  proto.set_worker_version(node.version);
  proto.set_incarnation(node.incarnation);
  for (const SlotRecord& slot : node.slots) *proto.add_slots() = ToProto(slot);
  *proto.mutable_last_seen() = ToTimestamp(node.last_seen_us);
  proto.set_simulated(node.simulated);
  proto.set_hostname(node.hostname);
  proto.set_cpus(node.cpus);
  proto.set_memory_bytes(node.memory_bytes);
  return proto;
}

std::string PriorityName(int priority) {
  return std::string(spec::EnumName(static_cast<spec::Priority>(priority)));
}

v1::Job ToProto(const JobRecord& job, std::string spec_text) {
  v1::Job proto;
  proto.set_name(JobName(job.project, job.id));
  proto.set_kind(static_cast<v1::Job::Kind>(job.kind));
  proto.set_state(static_cast<v1::Job::State>(job.state));
  proto.set_reason(job.reason);
  proto.set_display_name(job.display_name);
  proto.set_owner(job.owner);
  proto.set_project(job.project);
  proto.set_variant(job.variant);
  proto.set_node_count(job.nodes);
  *proto.mutable_create_time() = ToTimestamp(job.created_us);
  if (job.started_us > 0) *proto.mutable_start_time() = ToTimestamp(job.started_us);
  if (job.ended_us > 0) *proto.mutable_end_time() = ToTimestamp(job.ended_us);
  proto.set_source_text(job.source_text);
  proto.set_resolved_json(std::move(spec_text));
  for (const ResolvedRecord& value : job.resolved_values) {
    auto* added = proto.add_resolved();
    added->set_key(value.key);
    added->set_value(value.value);
    added->set_origin(value.origin);
  }
  for (const WarningRecord& warning : job.warnings) {
    auto* added = proto.add_warnings();
    added->set_key(warning.key);
    added->set_line(warning.line);
    added->set_message(warning.message);
  }
  proto.set_attempt(job.attempt);
  if (!job.verdict.empty()) *proto.mutable_verdict() = ToProto(job.verdict);
  proto.set_request_id(job.request_id);
  proto.set_model(job.model);
  for (const auto& [key, value] : job.metadata) (*proto.mutable_metadata())[key] = value;
  return proto;
}

}  // namespace sft::server
