#include "server/jobs/serving.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "server/core/convert.h"
#include "server/jobs/questions.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

// What the caller has of an answer. A process that is asked again gives the same one, bit for bit
// on one kind of device: of that, only what is new is passed on.
class Passed {
 public:
  // Another process begins.
  void Begin() { text_at_ = tokens_at_ = 0; }

  // Takes out of a piece what the caller has. UNAVAILABLE where this is another answer.
  absl::Status Skip(std::string& text) {
    const size_t had = std::min(text.size(), text_.size() - text_at_);
    if (text_.compare(text_at_, had, text, 0, had) != 0) {
      return Unavailable(
          "the job's process ended before its answer, and another one answers otherwise");
    }
    text_at_ += text.size();
    text.erase(0, had);
    text_ += text;
    return absl::OkStatus();
  }
  absl::Status Skip(v1::CompleteResponse& piece) {
    const int had = std::min(piece.tokens_size(), tokens_ - tokens_at_);
    tokens_at_ += piece.tokens_size();
    piece.mutable_tokens()->DeleteSubrange(0, had);
    tokens_ += piece.tokens_size();
    return Skip(*piece.mutable_text());
  }

 private:
  std::string text_;
  int tokens_ = 0;
  // How far the process that answers now is in these.
  size_t text_at_ = 0;
  int tokens_at_ = 0;
};

}  // namespace

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
    for (const auto& member : members) place.nodes.push_back(member.status.node);
    place.attempt_uid = attempt->uid;
    return absl::OkStatus();
  }));
  return place;
}

absl::Status Serving::Lines(const std::string& name, const std::string& question,
                            const Begin& begin, const TakeLine& take, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(Place place, Find(name));
  absl::Status first;
  while (!place.nodes.empty()) {
    const std::string node = relay_.LeastAsked(place.nodes, place.attempt_uid);
    std::erase(place.nodes, node);
    begin();
    const absl::Status status = LinesOf(node, place.attempt_uid, question, take, gone);
    if (!absl::IsUnavailable(status) && !absl::IsResourceExhausted(status)) return status;
    first.Update(status);
  }
  return first;
}

absl::Status Serving::LinesOf(const std::string& node, const std::string& attempt_uid,
                              const std::string& question, const TakeLine& take, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const auto transfer, relay_.Ask(node, attempt_uid, question));
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
  Passed passed;
  const TakeLine take_line = [&](const std::string& line) -> absl::StatusOr<bool> {
    v1::GenerateResponse piece;
    SFT_RETURN_IF_ERROR(server::TakeLine(line, piece));
    SFT_RETURN_IF_ERROR(passed.Skip(*piece.mutable_text()));
    if (!take(piece)) return Aborted("the reader is gone");
    return !piece.finish_reason().empty();
  };
  return Lines(
      request.name(), question, [&] { passed.Begin(); }, take_line, gone);
}

absl::Status Serving::Complete(const v1::CompleteRequest& request,
                               const Take<v1::CompleteResponse>& take, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  std::map<int32_t, Passed> passed;  // by index
  std::set<int32_t> finished;
  const auto begin = [&] {
    for (auto& [index, answer] : passed) answer.Begin();
  };
  const int64_t answers = AnswersOf(request);
  const TakeLine take_line = [&](const std::string& line) -> absl::StatusOr<bool> {
    v1::CompleteResponse piece;
    SFT_RETURN_IF_ERROR(server::TakeLine(line, piece));
    if (piece.index() >= answers) {
      return Unavailable("the job's process answers what was not asked");
    }
    if (finished.contains(piece.index())) return false;
    SFT_RETURN_IF_ERROR(passed[piece.index()].Skip(piece));
    if (!take(piece)) return Aborted("the reader is gone");
    if (!piece.finish_reason().empty()) finished.insert(piece.index());
    return static_cast<int64_t>(finished.size()) == answers;
  };
  return Lines(request.name(), question, begin, take_line, gone);
}

absl::StatusOr<v1::TokenizeResponse> Serving::Tokenize(const v1::TokenizeRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  v1::TokenizeResponse answer;
  SFT_RETURN_IF_ERROR(Lines(
      request.name(), question, [&] { answer.Clear(); },
      [&](const std::string& line) { return server::TakeLine(line, answer); }, nullptr));
  return answer;
}

absl::StatusOr<v1::DetokenizeResponse> Serving::Detokenize(const v1::DetokenizeRequest& request) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  v1::DetokenizeResponse answer;
  SFT_RETURN_IF_ERROR(Lines(
      request.name(), question, [&] { answer.Clear(); },
      [&](const std::string& line) { return server::TakeLine(line, answer); }, nullptr));
  return answer;
}

absl::StatusOr<v1::ServedTokenizer> Serving::Tokenizer(const v1::GetTokenizerRequest& request) {
  v1::ServedTokenizer answer;
  SFT_RETURN_IF_ERROR(Lines(
      request.name(), QuestionAboutTokenizer(), [&] { answer.Clear(); },
      [&](const std::string& line) { return server::TakeLine(line, answer); }, nullptr));
  return answer;
}

}  // namespace sft::server
