#include "worker/channel/event.h"

#include <fmt/format.h>

#include "worker/channel/json_fields.h"

namespace sft::channel {

// Functions for nested records: json_fields.h finds them by their namespace.
template <typename V>
void Fields(V& v, PlanBytes& b) {
  v("predicted", b.predicted);
  v("measured", b.measured);
}

template <typename V>
void Fields(V& v, PlanCategory& c) {
  v("name", c.name);
  v("bytes", c.bytes);
}

template <typename V>
void Fields(V& v, SkippedRows& e) {
  v("reason", e.reason);
  v("rows", e.rows);
}

template <typename V>
void Fields(V& v, EvalMetric& e) {
  v("name", e.name);
  v("value", e.value);
}

template <typename V>
void Fields(V& v, PreferenceFigures& p) {
  v("rewards_chosen", p.rewards_chosen);
  v("rewards_rejected", p.rewards_rejected);
  v("rewards_accuracies", p.rewards_accuracies);
  v("logps_chosen", p.logps_chosen);
  v("logps_rejected", p.logps_rejected);
  v("kl", p.kl);
}

template <typename V>
void Fields(V& v, AxisTraffic& t) {
  v("axis", t.axis);
  v("exposed_share", t.exposed_share);
  v("gigabytes_per_second", t.gigabytes_per_second);
}

namespace {

// Longest line a reader accepts; a rank writes far less.
constexpr size_t kMaxLineBytes = 1 << 20;

// The `event` member, in the order of EventBody's alternatives.
constexpr const char* kNames[] = {"progress",    "prepared", "ready",  "step", "eval",
                                  "consistency", "artifact", "fatal",  "plan", "checkpoint",
                                  "resumed",     "warning",  "answers"};
static_assert(std::size(kNames) == std::variant_size_v<EventBody>);

template <typename V>
void Fields(V& v, ProgressEvent& e) {
  v("phase", e.phase);
  v("done", e.done);
  v("total", e.total);
}

template <typename V>
void Fields(V& v, PreparedEvent& e) {
  v("rows", e.rows);
  v("used", e.used);
  v("skipped", e.skipped);
  v.ListIfAny("skipped_by", e.skipped_by);
  v("skipped_tokens", e.skipped_tokens);
  v("skipped_loss_tokens", e.skipped_loss_tokens);
  v("tokens", e.tokens);
  v("loss_tokens", e.loss_tokens);
  v("from_cache", e.from_cache);
  v("forms", e.forms);
  v("documents", e.documents);
  v("cut", e.cut);
  v("cut_tokens", e.cut_tokens);
  v("cut_loss_tokens", e.cut_loss_tokens);
  v("repeated", e.repeated);
  v("validation", e.validation);
}

template <typename V>
void Fields(V& v, ReadyEvent& e) {
  v("rank", e.rank);
  v("world", e.world);
  v("device", e.device);
  v("total_steps", e.total_steps);
  v("trainable_parameters", e.trainable_parameters);
  v("total_parameters", e.total_parameters);
  v("seconds", e.seconds);
}

template <typename V>
void Fields(V& v, StepEvent& e) {
  v("step", e.step);
  v("total_steps", e.total_steps);
  v("loss", e.loss);
  v("lr", e.lr);
  v("grad_norm", e.grad_norm);
  v("tokens", e.tokens);
  v("tokens_per_second", e.tokens_per_second);
  v("seconds", e.seconds);
  v("gpu_memory_bytes", e.gpu_memory_bytes);
  v("mfu", e.mfu);
  v("of_limit", e.of_limit);
  v("epoch", e.epoch);
  v.ListIfAny("preference", e.preference);
  v.ListIfAny("traffic", e.traffic);
  v("rank_loss", e.rank_loss);
}

template <typename V>
void Fields(V& v, EvalEvent& e) {
  v("step", e.step);
  v("loss", e.loss);
  v("tokens", e.tokens);
  v("seconds", e.seconds);
  v.List("metrics", e.metrics);
  v("answered_rows", e.answered_rows);
  v.ListIfAny("preference", e.preference);
}

template <typename V>
void Fields(V& v, ConsistencyEvent& e) {
  v("rank", e.rank);
  v("weights_sha256", e.weights_sha256);
  v("delivered_sha256", e.delivered_sha256);
  v("consistent", e.consistent);
  v("packing_difference", e.packing_difference);
  v("delivered_difference", e.delivered_difference);
  v("packing_seconds", e.packing_seconds);
  v("delivered_seconds", e.delivered_seconds);
}

template <typename V>
void Fields(V& v, ArtifactEvent& e) {
  v("kind", e.kind);
  v("path", e.path);
  v("bytes", e.bytes);
}

template <typename V>
void Fields(V& v, FatalEvent& e) {
  v("domain", e.domain);
  v("code", e.code);
  v("message", e.message);
  v("advice", e.advice);
}

template <typename V>
void Fields(V& v, PlanEvent& e) {
  v("rank", e.rank);
  v("rows", e.rows);
  v("micro_batches", e.micro_batches);
  v("description", e.description);
  v.List("categories", e.categories);
  v.Object("resident_bytes", e.resident_bytes);
  v.Object("allocated_bytes", e.allocated_bytes);
  v.Object("reserved_bytes", e.reserved_bytes);
  v.Object("outside_bytes", e.outside_bytes);
  v("predicted_tokens_per_second", e.predicted_tokens_per_second);
  v("measured_tokens_per_second", e.measured_tokens_per_second);
}

template <typename V>
void Fields(V& v, CheckpointEvent& e) {
  v("step", e.step);
  v("path", e.path);
  v("bytes", e.bytes);
  v("reason", e.reason);
  v("seconds", e.seconds);
  v("stall_seconds", e.stall_seconds);
  v("metric", e.metric);
  v("has_metric", e.has_metric);
  v("best", e.best);
}

template <typename V>
void Fields(V& v, ResumedEvent& e) {
  v("step", e.step);
  v("path", e.path);
  v("changes", e.changes);
}

template <typename V>
void Fields(V& v, WarningEvent& e) {
  v("message", e.message);
  v("kind", e.kind);
}

template <typename V>
void Fields(V& v, AnswersEvent& e) {
  v("answers", e.answers);
  v("total", e.total);
  v("tokens", e.tokens);
  v("tokens_per_second", e.tokens_per_second);
  v("seconds", e.seconds);
}

// A default-constructed alternative with that index.
template <size_t I = 0>
EventBody MakeBody(size_t index) {
  if constexpr (I + 1 < std::variant_size_v<EventBody>) {
    if (index != I) return MakeBody<I + 1>(index);
  }
  return EventBody(std::in_place_index<I>);
}

}  // namespace

std::string ToLine(const Event& event) {
  FieldWriter writer;
  writer("event", std::string(kNames[event.body.index()]));
  writer("time", event.time);
  std::visit([&writer](auto body) { Fields(writer, body); }, event.body);
  return writer.Take() + "\n";
}

absl::StatusOr<Event> ParseLine(std::string_view line) {
  SFT_ASSIGN_OR_RETURN(const nlohmann::json object, ParseObject(line, kMaxLineBytes, "event line"));
  FieldReader reader(object);
  std::string name;
  Event event;
  reader.Require("event");
  reader("event", name);
  reader("time", event.time);
  SFT_RETURN_IF_ERROR(reader.status());
  size_t index = 0;
  while (index < std::size(kNames) && name != kNames[index]) ++index;
  if (index == std::size(kNames)) return NotFound(fmt::format("unknown event \"{}\"", name));
  event.body = MakeBody(index);
  std::visit([&reader](auto& body) { Fields(reader, body); }, event.body);
  if (!reader.status().ok()) return Annotate(reader.status(), name + " event");
  return event;
}

}  // namespace sft::channel
