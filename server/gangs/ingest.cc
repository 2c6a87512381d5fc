#include "server/gangs/ingest.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/rpc/progress.h"
#include "server/core/convert.h"
#include "server/gangs/node_checks.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/progress.h"

namespace sft::server {
namespace {

constexpr int kPrepareStreamRank = -1;  // as which `prepare` counts

std::string StreamOf(const std::string& attempt_uid, int rank, const std::string& node) {
  return rank == kPrepareStreamRank ? LogStore::PrepareStream(attempt_uid, node)
                                    : LogStore::RankStream(attempt_uid, rank);
}

// The attempt a report is about, and the part of it that the node was given; FAILED_PRECONDITION
// for another epoch or node.
struct Reported {
  AttemptRecord attempt;
  Dispatched part;
};
absl::StatusOr<Reported> ReportedOf(Database& db, const std::string& uid, int64_t epoch,
                                    const std::string& node) {
  Reported reported;
  SFT_ASSIGN_OR_RETURN(reported.attempt, store::GetAttempt(db, uid));
  if (reported.attempt.epoch != epoch) {
    return FailedPrecondition(fmt::format("attempt {} has epoch {}, the report is of {}", uid,
                                          reported.attempt.epoch, epoch));
  }
  SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members, store::MembersOf(db, uid));
  SFT_ASSIGN_OR_RETURN(reported.part, DispatchedTo(node, reported.attempt, members));
  return reported;
}

// Progress from a point of the curve: what `sftctl status` shows between two reports of the worker.
absl::Status AdvanceProgress(Database& db, const AttemptRecord& attempt,
                             const std::vector<MetricPoint>& points) {
  if (points.empty()) return absl::OkStatus();
  v1::Progress progress = ToProto(attempt.progress);
  for (const v1::Metric& metric : MetricsOf(points)) rpc::Advance(metric, progress);
  return store::SetProgress(db, attempt.uid, FromProto(progress));
}

}  // namespace

// A new segment was begun: the logs of the job may be more than they shall be.
absl::Status Ingest::TrimJobLogs(const std::string& attempt_uid) {
  std::vector<std::string> uids;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const AttemptRecord attempt, store::GetAttempt(db, attempt_uid));
    for (int number = 1; number < attempt.number; ++number) {
      SFT_ASSIGN_OR_RETURN(const auto earlier, store::AttemptOfJob(db, attempt.job_id, number));
      if (earlier.has_value()) uids.push_back(earlier->uid);
    }
    uids.push_back(attempt.uid);
    return absl::OkStatus();
  }));
  return logs_.TrimJob(uids);
}

absl::StatusOr<v1::AppendLogResponse> Ingest::AppendLog(const v1::AppendLogRequest& request) {
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const Reported reported,
                         ReportedOf(db, request.attempt_uid(), request.epoch(), request.node()));
    return CheckLog(request, reported.part);
  }));
  const std::string stream = StreamOf(request.attempt_uid(), request.rank(), request.node());
  LogStore::Piece piece{.offset = request.offset(), .bytes = request.data()};
  if (request.has_skipped_from()) piece.skipped_from = request.skipped_from();
  piece.sync = request.end_of_file();
  SFT_ASSIGN_OR_RETURN(const LogStore::Appended appended, logs_.Append(stream, piece));
  if (appended.started) SFT_RETURN_IF_ERROR(TrimJobLogs(request.attempt_uid()));
  const int64_t end = appended.end;
  const bool complete = request.end_of_file() &&
                        end == request.offset() + static_cast<int64_t>(request.data().size());
  if (complete) {
    SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
      SFT_ASSIGN_OR_RETURN(
          store::RankStream row,
          store::GetRankStream(db, request.attempt_uid(), request.rank(), request.node()));
      if (row.log_ended) return absl::OkStatus();
      row.log_ended = true;
      return store::PutRankStream(db, request.attempt_uid(), request.rank(), request.node(), row);
    }));
  }
  hub_.Bump("log/" + stream);
  v1::AppendLogResponse response;
  response.set_offset(end);
  return response;
}

Ingest::Believed Ingest::BelievedOf(const v1::AppendEventsRequest& request, int attempt) const {
  Believed believed;
  for (const v1::RankEvent& event : request.events()) {
    if (const absl::Status checked = CheckEvent(event); !checked.ok()) {
      if (refusals_ != nullptr) refusals_->Count(request.node(), checked);
      continue;
    }
    if (event.has_metric() && request.rank() == 0) {
      AddPoints(event.metric(), attempt, believed.points);
    }
    if (event.has_metric() && event.metric().has_rank_loss() && request.rank() >= 0) {
      const v1::Metric& metric = event.metric();
      believed.of_rank.push_back({.attempt = attempt,
                                  .step = metric.step(),
                                  .loss = metric.rank_loss(),
                                  .memory_bytes = metric.gpu_memory_bytes()});
    }
    if (event.body_case() == v1::RankEvent::kNote) believed.notes.push_back(&event);
  }
  return believed;
}

absl::Status Ingest::StoreNotes(Database& db, const AttemptRecord& attempt, const std::string& node,
                                const std::vector<const v1::RankEvent*>& notes) {
  const int64_t now_us = UnixMicros(clock_.Wall());
  const absl::Status too_many = InvalidArgument(
      fmt::format("events: attempt {} has more notes than its job's history keeps ({} at once, "
                  "then one in {} s): what comes faster is left out, its logs have it",
                  attempt.uid, NoteLimits::kAtOnce, NoteLimits::kOneIn.count()));
  for (const v1::RankEvent* note : notes) {
    EventRecord event{0, now_us, note->type().empty() ? "note" : note->type(),
                      BoundedText(note->note()), attempt.number};
    const NoteLimits::Answer answer = note_limits_.Take(attempt.uid);
    if (answer != NoteLimits::Answer::kTake && refusals_ != nullptr) {
      refusals_->Count(node, too_many);
    }
    if (answer == NoteLimits::Answer::kLeaveOut) continue;
    if (answer == NoteLimits::Answer::kLeaveOutAndTell) {
      event.type = "warning";
      event.message = std::string(Message(too_many));
    }
    SFT_RETURN_IF_ERROR(store::AddEvent(db, attempt.job_id, std::move(event)));
  }
  return absl::OkStatus();
}

absl::Status Ingest::StorePoints(const std::string& job_id, int rank, const Believed& believed) {
  // What no decision is made by does not keep the attempt's events from being taken.
  const absl::Status ranks = metrics_.ranks().Append(job_id, rank, believed.of_rank);
  if (!ranks.ok()) spdlog::warn("points of rank {} of {}: {}", rank, job_id, Message(ranks));
  if (believed.points.empty()) return absl::OkStatus();
  SFT_RETURN_IF_ERROR(metrics_.Append(job_id, believed.points));
  // Made of the metrics: what cannot be written now is made up for later.
  const absl::Status written = tensorboard_.Update(job_id, metrics_);
  if (!written.ok()) spdlog::warn("TensorBoard files of {}: {}", job_id, Message(written));
  return absl::OkStatus();
}

absl::StatusOr<bool> Ingest::HasLostPoints(const AttemptRecord& attempt) {
  if (attempt.progress.step == 0) return false;
  SFT_ASSIGN_OR_RETURN(const auto last, metrics_.Last(attempt.job_id));
  return !last || std::pair<int64_t, int64_t>(last->attempt, last->step) <
                      std::pair<int64_t, int64_t>(attempt.number, attempt.progress.step);
}

std::optional<int64_t> Ingest::AgainFrom(const std::string& attempt_uid) {
  const MutexLock lock(mutex_);
  const auto entry = again_.find(attempt_uid);
  return entry == again_.end() ? std::nullopt : std::optional(entry->second);
}

absl::Status Ingest::TellOfLoss(const AttemptRecord& attempt, const std::string& text) {
  spdlog::error("job {}: {}", attempt.job_id, text);
  const int64_t now_us = UnixMicros(clock_.Wall());
  return store_.Write([&](Database& db) {
    return store::AddEvent(db, attempt.job_id, {0, now_us, "warning", text, attempt.number});
  });
}

absl::StatusOr<int64_t> Ingest::TakeAgain(const AttemptRecord& attempt, int64_t acknowledged,
                                          const v1::AppendEventsRequest& request) {
  int64_t next = 0;
  bool begins = false;
  {
    const MutexLock lock(mutex_);
    const auto [entry, added] = again_.try_emplace(attempt.uid, 0);
    next = entry->second;
    begins = added;
  }
  if (begins) {
    tensorboard_.Forget(attempt.job_id);
    SFT_RETURN_IF_ERROR(TellOfLoss(
        attempt,
        fmt::format("the server has lost points of the curve: node {} is asked for those of "
                    "this attempt again",
                    request.node())));
  }
  if (request.begin_offset() != next || request.end_offset() <= next) return next;
  SFT_RETURN_IF_ERROR(
      StorePoints(attempt.job_id, request.rank(), BelievedOf(request, attempt.number)));
  // What is news begins there, and is sent once more, from there.
  next = std::min(request.end_offset(), acknowledged);
  bool given_up = false;
  if (next == acknowledged) {
    SFT_ASSIGN_OR_RETURN(given_up, HasLostPoints(attempt));
  }
  {
    const MutexLock lock(mutex_);
    if (next < acknowledged) again_[attempt.uid] = next;
    if (next == acknowledged && given_up) again_[attempt.uid] = kGivenUp;
    if (next == acknowledged && !given_up) again_.erase(attempt.uid);
  }
  hub_.Bump(attempt.job_id);
  if (!given_up) return next;
  SFT_RETURN_IF_ERROR(TellOfLoss(
      attempt,
      fmt::format("node {} does not have all points that the server has lost", request.node())));
  return next;
}

absl::StatusOr<v1::AppendEventsResponse> Ingest::AppendEvents(
    const v1::AppendEventsRequest& request) {
  v1::AppendEventsResponse response;
  AttemptRecord attempt;
  store::RankStream row;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(Reported reported,
                         ReportedOf(db, request.attempt_uid(), request.epoch(), request.node()));
    SFT_RETURN_IF_ERROR(CheckEvents(request, reported.part));
    attempt = std::move(reported.attempt);
    SFT_ASSIGN_OR_RETURN(row,
                         store::GetRankStream(db, attempt.uid, request.rank(), request.node()));
    return absl::OkStatus();
  }));
  response.set_offset(row.events_offset);
  const std::optional<int64_t> again = AgainFrom(attempt.uid);
  if (request.rank() == 0 && row.events_offset > 0 && again != kGivenUp) {
    // Once begun it goes on to its end: the node may tell of earlier steps meanwhile.
    bool lost = again.has_value();
    if (!lost) {
      SFT_ASSIGN_OR_RETURN(lost, HasLostPoints(attempt));
    }
    if (lost) {
      SFT_ASSIGN_OR_RETURN(const int64_t next, TakeAgain(attempt, row.events_offset, request));
      response.set_offset(next);
      return response;
    }
  }
  // A gap, or a repeat of what is stored, with news or without: the answer says where to go on.
  if (request.begin_offset() != row.events_offset) return response;
  if (request.end_offset() <= row.events_offset) return response;

  const Believed believed = BelievedOf(request, attempt.number);
  // First the curve, then the offset: a crash between them repeats points, which the log drops.
  SFT_RETURN_IF_ERROR(StorePoints(attempt.job_id, request.rank(), believed));
  SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(store::RankStream now,
                         store::GetRankStream(db, attempt.uid, request.rank(), request.node()));
    response.set_offset(now.events_offset);
    if (now.events_offset != request.begin_offset()) return absl::OkStatus();
    response.set_offset(request.end_offset());
    now.events_offset = request.end_offset();
    SFT_RETURN_IF_ERROR(store::PutRankStream(db, attempt.uid, request.rank(), request.node(), now));
    SFT_RETURN_IF_ERROR(StoreNotes(db, attempt, request.node(), believed.notes));
    SFT_ASSIGN_OR_RETURN(const AttemptRecord current, store::GetAttempt(db, attempt.uid));
    return AdvanceProgress(db, current, believed.points);
  }));
  hub_.Bump(attempt.job_id);
  return response;
}

absl::StatusOr<Ingest::LogPlace> Ingest::FindLog(const v1::ReadLogRequest& request) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(request.name()));
  const std::string& id = ref.id;
  const std::string& kind = request.stream();
  if (!kind.empty() && kind != "log" && kind != "prepare") {
    return InvalidArgument(fmt::format("stream \"{}\": \"log\" or \"prepare\"", kind));
  }
  LogPlace place;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
    place.attempt = request.attempt() > 0 ? request.attempt() : job.attempt;
    place.newest_attempt = job.attempt;
    place.job_ended = IsTerminal(job.state);
    place.hub_keys = {id};
    SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, id, place.attempt));
    if (!attempt.has_value()) {
      if (request.attempt() > job.attempt) {
        return NotFound(fmt::format("job {} has no attempt {}", id, request.attempt()));
      }
      place.ended = place.job_ended;
      return absl::OkStatus();
    }
    SFT_ASSIGN_OR_RETURN(const std::vector<MemberRecord> members,
                         store::MembersOf(db, attempt->uid));
    const MemberRecord* member = nullptr;
    for (const MemberRecord& each : members) {
      if (request.rank() >= each.first_rank) member = &each;
    }
    const bool exists =
        member != nullptr &&
        request.rank() < member->first_rank + static_cast<int>(member->slots.size());
    if (!exists)
      return NotFound(
          fmt::format("attempt {} of {} has no rank {}", place.attempt, id, request.rank()));
    const int rank = kind == "prepare" ? kPrepareStreamRank : request.rank();
    SFT_ASSIGN_OR_RETURN(const store::RankStream row,
                         store::GetRankStream(db, attempt->uid, rank, member->status.node));
    place.stream = StreamOf(attempt->uid, rank, member->status.node);
    place.ended = row.log_ended || IsTerminal(attempt->state);
    if (!place.ended) place.hub_keys.push_back("log/" + place.stream);
    return absl::OkStatus();
  }));
  return place;
}

absl::StatusOr<Ingest::CurvePart> Ingest::ReadCurve(const std::string& job_id, int64_t index,
                                                    int max, bool all_attempts) {
  CurvePart part;
  SFT_ASSIGN_OR_RETURN(part.points, metrics_.Read(job_id, index, max));
  // More may follow: a validation is given with all of its values, or later.
  if (static_cast<int>(part.points.size()) == max) {
    const auto whole = std::find_if(part.points.rbegin(), part.points.rend(),
                                    [](const MetricPoint& p) { return p.name.empty(); });
    if (whole != part.points.rend() && whole->is_eval != 0 && whole + 1 != part.points.rend()) {
      part.points.erase(whole.base() - 1, part.points.end());
    }
  }
  part.next_index = index + static_cast<int64_t>(part.points.size());
  if (all_attempts || part.points.empty()) return part;
  SFT_ASSIGN_OR_RETURN(const std::vector<MetricLog::Start> starts, metrics_.Starts(job_id));
  std::erase_if(part.points, [&](const MetricPoint& p) { return IsSuperseded(p, starts); });
  return part;
}

absl::StatusOr<std::vector<std::string>> Ingest::TensorBoardFiles(const std::string& job_id) {
  SFT_RETURN_IF_ERROR(tensorboard_.Update(job_id, metrics_));
  return tensorboard_.Files(job_id);
}

}  // namespace sft::server
