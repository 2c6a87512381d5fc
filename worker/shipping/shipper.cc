#include "worker/shipping/shipper.h"

#include <fmt/format.h>
#include <google/protobuf/util/time_util.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "common/io/file.h"
#include "common/rpc/channel.h"
#include "worker/channel/launch.h"

namespace sft::worker {
namespace {

// An event line longer than a chunk is not one of ours and is skipped up to here.
constexpr int64_t kMaxChunk = rpc::kChunkBytes;
constexpr int64_t kMaxGapBytes = 1 << 16;

// A rank can make its file unreadable for everybody: a link, a pipe, a file without permissions. It
// stays so, and the rest of the attempt does not wait for it.
absl::Status AsRankError(const absl::Status& status) {
  return absl::IsPermissionDenied(status) ? InvalidArgument(Message(status)) : status;
}

// Reads up to one chunk from `offset`; empty when the file is missing or has no more.
absl::StatusOr<std::string> ReadChunk(const std::string& path, int64_t offset,
                                      const std::optional<RankUser>& writer) {
  const RankRights rights(writer);
  const absl::StatusOr<io::UniqueFd> fd = io::OpenForRead(path, io::Links::kRefuse);
  if (absl::IsNotFound(fd.status())) return std::string();
  if (!fd.ok()) return AsRankError(fd.status());
  // Called often and mostly without new data: allocate no more than there is.
  SFT_ASSIGN_OR_RETURN(const int64_t size, io::FileSize(fd->get(), path));
  std::string chunk(static_cast<size_t>(std::clamp<int64_t>(size - offset, 0, kMaxChunk)), '\0');
  SFT_ASSIGN_OR_RETURN(const size_t got,
                       io::ReadAt(fd->get(), offset, chunk.data(), chunk.size(), path));
  chunk.resize(got);
  return chunk;
}

// The part that the log's limit has removed.
absl::StatusOr<channel::LogGap> ReadGap(const std::string& log_path,
                                        const std::optional<RankUser>& writer) {
  const RankRights rights(writer);
  const std::string path = log_path.substr(0, log_path.rfind('.')) + ".gap";
  const absl::StatusOr<std::string> text = io::ReadFile(path, kMaxGapBytes, io::Links::kRefuse);
  if (absl::IsNotFound(text.status())) return channel::LogGap();
  if (!text.ok()) return AsRankError(text.status());
  return channel::ParseLogGap(*text);
}

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

void SetTime(double seconds, v1::Metric& metric) {
  *metric.mutable_time() = google::protobuf::util::TimeUtil::NanosecondsToTimestamp(
      static_cast<int64_t>(seconds * 1e6) * 1000);
}

void SetNote(const char* type, std::string_view line, v1::RankEvent& event) {
  event.set_type(type);
  event.set_note(std::string(line));
}

struct BodyToProto {
  int rank;
  std::string_view line;
  double time;
  v1::RankEvent& out;

  void operator()(const channel::ProgressEvent& e) const {
    out.mutable_progress()->set_phase(fmt::format("{} {}/{}", e.phase, e.done, e.total));
  }
  void operator()(const channel::PreparedEvent&) const { SetNote("prepared", line, out); }
  void operator()(const channel::ReadyEvent&) const { SetNote("ready", line, out); }
  void operator()(const channel::StepEvent& e) const {
    if (rank != 0 && !std::isfinite(e.rank_loss)) return;
    v1::Metric& metric = *out.mutable_metric();
    if (rank == 0) {
      metric = MetricOf(e);
    } else {
      metric.set_step(e.step);
      metric.set_gpu_memory_bytes(e.gpu_memory_bytes);
    }
    if (std::isfinite(e.rank_loss)) metric.set_rank_loss(e.rank_loss);
    SetTime(time, metric);
  }
  void operator()(const channel::EvalEvent& e) const {
    if (rank != 0) return;
    *out.mutable_metric() = MetricOf(e);
    SetTime(time, *out.mutable_metric());
  }
  void operator()(const channel::AnswersEvent& e) const {
    if (rank != 0) return;
    *out.mutable_metric() = MetricOf(e);
    SetTime(time, *out.mutable_metric());
  }
  void operator()(const channel::ConsistencyEvent&) const { SetNote("consistency", line, out); }
  void operator()(const channel::PlanEvent&) const { SetNote("plan", line, out); }
  void operator()(const channel::CheckpointEvent&) const { SetNote("checkpoint", line, out); }
  void operator()(const channel::ResumedEvent&) const { SetNote("resumed", line, out); }
  void operator()(const channel::WarningEvent& e) const {
    SetNote(e.kind.empty() ? "warning" : e.kind.c_str(), e.message, out);
  }
  // The server learns of these in other ways: as a registered artifact and in the verdict.
  void operator()(const channel::ArtifactEvent&) const {}
  void operator()(const channel::FatalEvent&) const {}
};

}  // namespace

namespace {

void SetPreference(const std::vector<channel::PreferenceFigures>& figures, v1::Metric& metric) {
  if (figures.empty()) return;
  const channel::PreferenceFigures& own = figures.front();
  v1::Preference& preference = *metric.mutable_preference();
  preference.set_rewards_chosen(own.rewards_chosen);
  preference.set_rewards_rejected(own.rewards_rejected);
  preference.set_rewards_accuracies(own.rewards_accuracies);
  preference.set_logps_chosen(own.logps_chosen);
  preference.set_logps_rejected(own.logps_rejected);
  preference.set_kl(own.kl);
}

}  // namespace

v1::Metric MetricOf(const channel::StepEvent& step) {
  v1::Metric metric;
  SetPreference(step.preference, metric);
  metric.set_step(step.step);
  metric.set_total_steps(step.total_steps);
  metric.set_loss(step.loss);
  metric.set_lr(step.lr);
  metric.set_grad_norm(step.grad_norm);
  metric.set_tokens(step.tokens);
  metric.set_tokens_per_second(step.tokens_per_second);
  metric.set_gpu_memory_bytes(step.gpu_memory_bytes);
  metric.set_mfu(step.mfu);
  metric.set_of_limit(step.of_limit);
  metric.set_step_seconds(step.seconds);
  metric.set_epoch(step.epoch);
  for (const channel::AxisTraffic& each : step.traffic) {
    v1::AxisTraffic& traffic = *metric.add_traffic();
    traffic.set_axis(each.axis);
    traffic.set_exposed_share(each.exposed_share);
    traffic.set_gigabytes_per_second(each.gigabytes_per_second);
  }
  return metric;
}

v1::Metric MetricOf(const channel::EvalEvent& eval) {
  v1::Metric metric;
  SetPreference(eval.preference, metric);
  metric.set_step(eval.step);
  metric.set_val_loss(eval.loss);
  metric.set_tokens(eval.tokens);
  metric.set_is_eval(true);
  for (const channel::EvalMetric& graded : eval.metrics) {
    v1::NamedValue& value = *metric.add_values();
    value.set_name(graded.name);
    value.set_value(graded.value);
  }
  return metric;
}

v1::Metric MetricOf(const channel::AnswersEvent& answers) {
  v1::Metric metric;
  metric.set_step(answers.answers);
  metric.set_total_steps(answers.total);
  metric.set_tokens(answers.tokens);
  metric.set_tokens_per_second(answers.tokens_per_second);
  metric.set_step_seconds(answers.seconds);
  return metric;
}

v1::RankEvent ToRankEvent(int rank, const channel::Event& event, std::string_view line) {
  v1::RankEvent result;
  std::visit(BodyToProto{rank, line, event.time, result}, event.body);
  return result;
}

Shipper::Shipper(Identity identity, const std::vector<Source>& sources, ServerApi& server,
                 std::function<void(int, const channel::Event&)> on_event)
    : identity_(std::move(identity)), server_(server), on_event_(std::move(on_event)) {
  for (const Source& source : sources) {
    if (source.log) {
      streams_.push_back(
          {source.rank, fmt::format("{}/{}.log", identity_.dir, source.name), false});
    }
    streams_.push_back(
        {source.rank, fmt::format("{}/{}.events", identity_.dir, source.name), true});
  }
}

v1::AppendLogRequest Shipper::LogRequest(const Stream& stream) const {
  v1::AppendLogRequest request;
  request.set_attempt_uid(identity_.attempt_uid);
  request.set_epoch(identity_.epoch);
  request.set_node(identity_.node);
  request.set_rank(stream.rank);
  request.set_offset(std::max<int64_t>(stream.offset, 0));
  return request;
}

v1::AppendEventsRequest Shipper::EventsRequest(const Stream& stream) const {
  v1::AppendEventsRequest request;
  request.set_attempt_uid(identity_.attempt_uid);
  request.set_epoch(identity_.epoch);
  request.set_node(identity_.node);
  request.set_rank(stream.rank);
  request.set_begin_offset(std::max<int64_t>(stream.offset, 0));
  request.set_end_offset(request.begin_offset());
  return request;
}

absl::StatusOr<Shipper::Progress> Shipper::ShipOnce(bool final) {
  Progress progress{.complete = final};
  absl::Status first_error;
  for (Stream& stream : streams_) {
    if (stream.finished) continue;
    const absl::Status shipped = stream.events ? ShipEvents(stream, final, progress.more)
                                               : ShipLog(stream, final, progress.more);
    if (absl::IsInvalidArgument(shipped)) {
      // The same bytes would get the same answer, and the other files must not wait for them.
      spdlog::warn("attempt {}: {} cannot be sent: {}; the rest of it is left out",
                   identity_.attempt_uid, stream.path, Message(shipped));
      stream.finished = stream.left_out = true;
      continue;
    }
    stream.failed = !shipped.ok();
    if (!shipped.ok() && first_error.ok()) first_error = shipped;
    if (!stream.finished) progress.complete = false;
  }
  if (!first_error.ok()) return first_error;
  return progress;
}

std::vector<std::string> Shipper::GiveUp() {
  std::vector<std::string> left_out;
  for (Stream& stream : streams_) {
    if (stream.finished || !stream.failed) continue;
    stream.finished = stream.left_out = true;
    left_out.push_back(fmt::format("{} from byte {} on", NameOf(stream.path),
                                   std::max<int64_t>(stream.offset, 0)));
  }
  return left_out;
}

absl::StatusOr<bool> Shipper::Confirm() {
  bool has_all = true;
  for (Stream& stream : streams_) {
    // The server keeps figures of rank 0 only.
    if (!stream.events || stream.rank != 0 || stream.left_out) continue;
    v1::AppendEventsRequest nothing = EventsRequest(stream);
    SFT_ASSIGN_OR_RETURN(const int64_t has, server_.AppendEvents(nothing));
    if (has >= stream.offset) continue;
    stream.offset = has;
    stream.finished = has_all = false;
  }
  return has_all;
}

// Appends nothing at the start of the file: the answer is the server's offset.
absl::Status Shipper::AskOffset(Stream& stream) {
  if (stream.offset >= 0) return absl::OkStatus();
  if (stream.events) {
    SFT_ASSIGN_OR_RETURN(stream.offset, server_.AppendEvents(EventsRequest(stream)));
  } else {
    SFT_ASSIGN_OR_RETURN(stream.offset, server_.AppendLog(LogRequest(stream)));
  }
  return absl::OkStatus();
}

absl::Status Shipper::ShipLog(Stream& stream, bool final, bool& more) {
  if (!final && stream.offset < 0 && !io::Exists(stream.path)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(AskOffset(stream));
  SFT_ASSIGN_OR_RETURN(std::string chunk,
                       ReadChunk(stream.path, stream.offset, identity_.rank_user));
  const bool whole_chunk = static_cast<int64_t>(chunk.size()) == kMaxChunk;
  v1::AppendLogRequest request = LogRequest(stream);
  // Read after the bytes, so that zeros where the shim has removed bytes meanwhile are not taken
  // for log text.
  SFT_ASSIGN_OR_RETURN(const channel::LogGap gap, ReadGap(stream.path, identity_.rank_user));
  const bool in_gap = stream.offset >= gap.begin && stream.offset < gap.end;
  const bool before_gap =
      stream.offset < gap.begin && stream.offset + static_cast<int64_t>(chunk.size()) > gap.begin;
  if (in_gap) {
    chunk.clear();
    request.set_skipped_from(stream.offset);
    request.set_offset(gap.end);
  } else if (before_gap) {
    chunk.resize(static_cast<size_t>(gap.begin - stream.offset));
  }
  const bool all = !whole_chunk && !in_gap && !before_gap;
  if (chunk.empty() && !final && !in_gap) return absl::OkStatus();
  request.set_end_of_file(final && all);
  const int64_t end = request.offset() + static_cast<int64_t>(chunk.size());
  request.set_data(std::move(chunk));
  SFT_ASSIGN_OR_RETURN(const int64_t has, server_.AppendLog(request));
  // An older server cannot leave a hole: it would ask for the same bytes for ever.
  if (in_gap && has < gap.end) return Unavailable("the server does not take a log with a gap");
  stream.offset = has;
  if (request.end_of_file() && has == end) stream.finished = true;
  if (!all || has < end) more = true;
  return absl::OkStatus();
}

std::vector<channel::Event> Shipper::ReadEvents(const Stream& stream, std::string_view lines,
                                                v1::AppendEventsRequest& request) const {
  std::vector<channel::Event> events;
  int damaged = 0;
  for (size_t at = 0; at < lines.size();) {
    const size_t end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = lines.substr(at, end - at);
    at = end + 1;
    absl::StatusOr<channel::Event> event = channel::ParseLine(line);
    if (!event.ok()) {
      // A line without an end was not finished by its rank, or continues in the next chunk.
      if (!absl::IsNotFound(event.status()) && end < lines.size()) ++damaged;
      continue;
    }
    v1::RankEvent parsed = ToRankEvent(stream.rank, *event, line);
    if (parsed.body_case() != v1::RankEvent::BODY_NOT_SET)
      *request.add_events() = std::move(parsed);
    events.push_back(*std::move(event));
  }
  if (damaged > 0) {
    const std::string lost = fmt::format(
        "{} {} of {} before byte {} {} damaged on node {}: what {} said of the training is lost",
        damaged, damaged == 1 ? "line" : "lines", NameOf(stream.path), request.end_offset(),
        damaged == 1 ? "is" : "are", identity_.node, damaged == 1 ? "it" : "they");
    spdlog::warn("attempt {}: {}", identity_.attempt_uid, lost);
    SetNote("warning", lost, *request.add_events());
  }
  return events;
}

absl::Status Shipper::ShipEvents(Stream& stream, bool final, bool& more) {
  if (!final && stream.offset < 0 && !io::Exists(stream.path)) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(AskOffset(stream));
  SFT_ASSIGN_OR_RETURN(const std::string chunk,
                       ReadChunk(stream.path, stream.offset, identity_.rank_user));
  const bool whole_chunk = static_cast<int64_t>(chunk.size()) == kMaxChunk;
  // Up to the last complete line; at the end of the file also an unfinished last line.
  size_t usable = chunk.rfind('\n') == std::string::npos ? 0 : chunk.rfind('\n') + 1;
  if (usable == 0 && whole_chunk) usable = chunk.size();
  if (final && !whole_chunk) usable = chunk.size();
  if (usable == 0) {
    stream.finished = final;
    return absl::OkStatus();
  }
  v1::AppendEventsRequest request = EventsRequest(stream);
  request.set_end_offset(stream.offset + static_cast<int64_t>(usable));
  const std::vector<channel::Event> events =
      ReadEvents(stream, std::string_view(chunk).substr(0, usable), request);
  SFT_ASSIGN_OR_RETURN(stream.offset, server_.AppendEvents(request));
  for (const channel::Event& event : events) on_event_(stream.rank, event);
  if (whole_chunk || stream.offset < request.end_offset()) more = true;
  if (final && !whole_chunk && stream.offset >= request.end_offset()) stream.finished = true;
  return absl::OkStatus();
}

}  // namespace sft::worker
