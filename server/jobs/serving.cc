#include "server/jobs/serving.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "server/core/convert.h"
#include "server/state/names.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostQuestionBytes = 4 << 20;

absl::StatusOr<std::string> QuestionOf(const v1::GenerateRequest& request) {
  if (request.messages().empty() == request.prompt().empty()) {
    return InvalidArgument("a question is either messages or a prompt");
  }
  Json question = Json::object();
  if (request.messages().empty()) {
    question["prompt"] = request.prompt();
  } else {
    question["messages"] = Json::array();
    for (const v1::ChatMessage& message : request.messages()) {
      question["messages"].push_back({{"role", message.role()}, {"content", message.content()}});
    }
  }
  question["base"] = request.base();
  if (request.has_max_new_tokens()) question["max_new_tokens"] = request.max_new_tokens();
  if (request.has_temperature()) question["temperature"] = request.temperature();
  if (request.has_top_p()) question["top_p"] = request.top_p();
  if (request.has_seed()) question["seed"] = request.seed();
  std::string text = DumpJson(question);
  if (text.size() <= kMostQuestionBytes) return text;
  return InvalidArgument(
      fmt::format("a question of {} bytes; at most {} are taken", text.size(), kMostQuestionBytes));
}

// What a process wrote is material, as all that nodes send.
absl::StatusOr<v1::GenerateResponse> PieceOf(const std::string& line) {
  const nlohmann::json json = ParseJson(line);
  v1::GenerateResponse piece;
  const auto text = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_string() ? ToUtf8(found->get<std::string>()) : "";
  };
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  if (!json.is_object()) return Unavailable("the job's process answers with what is no answer");
  piece.set_text(text("text"));
  piece.set_finish_reason(text("finish_reason"));
  piece.set_error(text("error"));
  piece.set_prompt_tokens(number("prompt_tokens"));
  piece.set_answer_tokens(number("answer_tokens"));
  return piece;
}

}  // namespace

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

absl::Status Serving::Ask(const v1::GenerateRequest& request, const Take& take,
                          const FileRelay::Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const std::string question, QuestionOf(request));
  SFT_ASSIGN_OR_RETURN(const Place place, Find(request.name()));
  SFT_ASSIGN_OR_RETURN(const auto transfer, relay_.Ask(place.node, place.attempt_uid, question));
  for (;;) {
    const absl::StatusOr<v1::SendFileRequest> line = transfer->Next(FileRelay::kPatience, gone);
    if (absl::IsCancelled(line.status())) return line.status();
    // Whatever it is: the job may be there in a moment.
    if (!line.ok()) return Unavailable(Message(line.status()));
    if (line->data().empty()) return Unavailable("the job's process ended before its answer");
    SFT_ASSIGN_OR_RETURN(const v1::GenerateResponse piece, PieceOf(line->data()));
    if (!take(piece)) return Aborted("the reader is gone");
    if (!piece.finish_reason().empty()) return absl::OkStatus();
  }
}

}  // namespace sft::server
