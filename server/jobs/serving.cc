#include "server/jobs/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "server/core/convert.h"
#include "server/jobs/questions.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"

namespace sft::server {

absl::StatusOr<std::vector<v1::ServedModel>> Serving::List(
    const std::optional<std::vector<std::string>>& visible) {
  std::vector<v1::ServedModel> models;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(std::vector<JobRecord> jobs, store::LiveJobs(db));
    std::ranges::sort(jobs, std::ranges::greater(), &JobRecord::sequence);
    for (const JobRecord& job : jobs) {
      const bool seen =
          !visible.has_value() || std::ranges::find(*visible, job.project) != visible->end();
      if (job.kind != v1::Job::SERVE || !seen || IsTerminal(job.state)) continue;
      // One whose settings cannot be read serves no one.
      const absl::StatusOr<spec::JobSpec> spec = store::ReadSpec(db, job);
      if (!spec.ok()) continue;
      v1::ServedModel& model = models.emplace_back();
      model.set_name(JobName(job.project, job.id));
      model.set_model(job.model);
      model.set_has_adapter(!spec->job.adapter.empty());
      model.set_adapter(spec->job.adapter);
      model.set_running(job.state == JobState::kRunning);
      if (!model.running()) model.set_reason(std::string(ToString(job.state)) + ": " + job.reason);
      *model.mutable_create_time() = ToTimestamp(job.created_us);
    }
    return absl::OkStatus();
  }));
  return models;
}

absl::StatusOr<Serving::Place> Serving::Find(const std::string& name) {
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(name));
  Place place;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord job, store::FindJob(db, ref));
    if (job.kind != v1::Job::SERVE) {
      return FailedPrecondition(
          fmt::format("job {} is no job that can be asked: those of kind = \"serve\" can", job.id));
    }
    if (IsTerminal(job.state) || job.state == JobState::kCancelling) {
      return FailedPrecondition(fmt::format("job {} is {}", job.id, ToString(job.state)));
    }
    if (job.state != JobState::kRunning) {
      return Unavailable(fmt::format("job {} is {}: {}", job.id, ToString(job.state), job.reason));
    }
    SFT_ASSIGN_OR_RETURN(const auto attempt, store::AttemptOfJob(db, job.id, job.attempt));
    if (!attempt.has_value()) return Internal(fmt::format("job {} has no attempt", job.id));
    SFT_ASSIGN_OR_RETURN(const auto members, store::MembersOf(db, attempt->uid));
    if (members.empty()) return Internal(fmt::format("job {} is on no node", job.id));
    place = {members.front().status.node, attempt->uid};
    return absl::OkStatus();
  }));
  return place;
}

absl::Status Serving::Lines(const std::string& name, const std::string& question,
                            const TakeLine& take, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const Place place, Find(name));
  SFT_ASSIGN_OR_RETURN(const auto transfer, relay_.Ask(place.node, place.attempt_uid, question));
  for (;;) {
    const absl::StatusOr<v1::SendFileRequest> line = transfer->Next(FileRelay::kPatience, gone);
    if (absl::IsCancelled(line.status())) return line.status();
    // Whatever it is: the job may be there in a moment.
    if (!line.ok()) return Unavailable(Message(line.status()));
    if (line->data().empty()) return Unavailable("the job's process ended before its answer");
    SFT_ASSIGN_OR_RETURN(const bool last, take(line->data()));
    if (last) return absl::OkStatus();
  }
}

absl::Status Serving::Ask(const v1::GenerateRequest& request,
                          const Take<v1::GenerateResponse>& take, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  const TakeLine take_line = [&](const std::string& line) -> absl::StatusOr<bool> {
    v1::GenerateResponse piece;
    SFT_RETURN_IF_ERROR(server::TakeLine(line, piece));
    if (!take(piece)) return Aborted("the reader is gone");
    return !piece.finish_reason().empty();
  };
  return Lines(request.name(), question, take_line, gone);
}

absl::Status Serving::Complete(const v1::CompleteRequest& request,
                               const Take<v1::CompleteResponse>& take, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  std::set<int32_t> finished;
  const int64_t answers = AnswersOf(request);
  const TakeLine take_line = [&](const std::string& line) -> absl::StatusOr<bool> {
    v1::CompleteResponse piece;
    SFT_RETURN_IF_ERROR(server::TakeLine(line, piece));
    if (piece.index() >= answers) {
      return Unavailable("the job's process answers what was not asked");
    }
    if (!take(piece)) return Aborted("the reader is gone");
    if (!piece.finish_reason().empty()) finished.insert(piece.index());
    return static_cast<int64_t>(finished.size()) == answers;
  };
  return Lines(request.name(), question, take_line, gone);
}

absl::StatusOr<v1::TokenizeResponse> Serving::Tokenize(const v1::TokenizeRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  v1::TokenizeResponse answer;
  SFT_RETURN_IF_ERROR(Lines(
      request.name(), question,
      [&](const std::string& line) { return server::TakeLine(line, answer); }, nullptr));
  return answer;
}

absl::StatusOr<v1::DetokenizeResponse> Serving::Detokenize(const v1::DetokenizeRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  v1::DetokenizeResponse answer;
  SFT_RETURN_IF_ERROR(Lines(
      request.name(), question,
      [&](const std::string& line) { return server::TakeLine(line, answer); }, nullptr));
  return answer;
}

absl::StatusOr<v1::ServedTokenizer> Serving::Tokenizer(const v1::GetTokenizerRequest& request) {
  v1::ServedTokenizer answer;
  SFT_RETURN_IF_ERROR(Lines(
      request.name(), QuestionAboutTokenizer(),
      [&](const std::string& line) { return server::TakeLine(line, answer); }, nullptr));
  return answer;
}

}  // namespace sft::server
