#include "server/jobs/judges.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/base/env.h"
#include "common/rpc/endpoint.h"
#include "server/jobs/job_checks.h"
#include "server/jobs/judge_call.h"
#include "server/state/names.h"
#include "server/store/jobs.h"
#include "server/store/judge_calls.h"

namespace sft::server {
namespace {

using Response = v1::AskJudgeResponse;

constexpr std::string_view kGrader = "evaluate.grader";
constexpr std::chrono::seconds kConnectTime{10};

std::string PathOf(std::string_view url) {
  const size_t host = url.find("://") + 3, path = url.find('/', host);
  std::string found(path == url.npos ? "" : url.substr(path));
  while (found.ends_with('/')) found.pop_back();
  return found;
}

// Whether everybody between here and there could read what is sent.
bool InTheClear(const std::string& url) {
  if (url.starts_with("https://")) return false;
  std::string host = hub::OriginOf(url).substr(std::string_view("http://").size());
  host =
      host.starts_with('[') ? host.substr(1, host.find(']') - 1) : host.substr(0, host.find(':'));
  return !rpc::IsLoopback(host);
}

}  // namespace

bool Judges::Allowed(const std::string& url) const {
  const std::string origin = hub::OriginOf(url), path = PathOf(url);
  return !origin.empty() && std::ranges::any_of(options_.urls, [&](const std::string& allowed) {
    const std::string top = PathOf(allowed);
    return hub::OriginOf(allowed) == origin && (path == top || path.starts_with(top + "/"));
  });
}

absl::Status Judges::CheckOne(const std::string& project, const spec::Grader& grader) {
  if (!grader.url.empty()) {
    if (!Allowed(grader.url)) {
      return FailedPrecondition(fmt::format(
          "this server calls no judge at {}: {}; ask its operator to start it with --judge-url {}",
          grader.url,
          options_.urls.empty() ? "it may call none"
                                : fmt::format("it may call {}", fmt::join(options_.urls, ", ")),
          grader.url));
    }
    if (grader.secret.empty() || project.empty()) return absl::OkStatus();
    if (InTheClear(grader.url)) {
      return FailedPrecondition(
          fmt::format("the secret {} would go to {} unencrypted: give an address of https://",
                      grader.secret, grader.url));
    }
    return secrets_.Get(project, grader.secret).status();
  }
  if (project.empty()) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const JobRef ref, ParseJobName(grader.job));
  return store_.Read([&](Database& db) -> absl::Status {
    absl::StatusOr<JobRecord> job = store::FindJob(db, ref);
    if (job.ok() && job->project != project) job = store::NoJob(ref.id);
    SFT_RETURN_IF_ERROR(job.status());
    if (job->kind != v1::Job::SERVE) {
      return FailedPrecondition(
          fmt::format("job {} is no job that can be asked: those of kind = \"serve\" can", ref.id));
    }
    if (!IsTerminal(job->state)) return absl::OkStatus();
    return FailedPrecondition(fmt::format("job {} is {}", ref.id, ToString(job->state)));
  });
}

absl::Status Judges::Check(const std::string& project, spec::Resolution& resolution) {
  if (IsFaulty(resolution, kGrader)) return absl::OkStatus();
  for (const std::string& item : resolution.spec.evaluate.grader) {
    const absl::StatusOr<spec::Grader> grader = spec::ParseGrader(item);
    if (!grader.ok() || grader->type != spec::Grader::Type::kJudge) continue;
    const absl::Status status = CheckOne(project, *grader);
    if (absl::IsInternal(status) || absl::IsUnavailable(status)) return status;
    if (!status.ok()) {
      AddProblem(resolution, kGrader, fmt::format("{}: {}", grader->name, Message(status)));
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<spec::Grader> Judges::Find(const std::string& job_id, const std::string& name) {
  spec::JobSpec job;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const JobRecord record, store::FindJob(db, {"", job_id}));
    SFT_ASSIGN_OR_RETURN(job, store::ReadSpec(db, record));
    return absl::OkStatus();
  }));
  for (const std::string& item : job.evaluate.grader) {
    absl::StatusOr<spec::Grader> grader = spec::ParseGrader(item);
    if (grader.ok() && grader->name == name && grader->type == spec::Grader::Type::kJudge) {
      return grader;
    }
  }
  return InvalidArgument(fmt::format("grader: job {} has no judge of this name", job_id));
}

absl::StatusOr<Response> Judges::Ask(const std::string& job_id, const std::string& project,
                                     const v1::AskJudgeRequest& request, const Gone& gone) {
  SFT_ASSIGN_OR_RETURN(const spec::Grader grader, Find(job_id, request.grader()));
  SFT_ASSIGN_OR_RETURN(std::shared_ptr<const void> place, TakePlace(job_id));
  int64_t calls = 0;
  SFT_RETURN_IF_ERROR(store_.Write([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(calls, store::JudgeCalls(db, job_id, grader.name));
    if (calls >= grader.max_calls) return absl::OkStatus();
    return store::AddJudgeCalls(db, job_id, grader.name, 1);
  }));
  if (calls >= grader.max_calls) {
    Response over;
    over.set_error(fmt::format("its {} calls (max_calls) are used up", grader.max_calls));
    return over;
  }
  absl::StatusOr<Response> response =
      grader.url.empty() ? AskJob(project, grader, request.prompt(), gone)
                         : AskUrl(project, grader, request.prompt(), gone, std::move(place));
  if (!response.ok()) {  // nobody was asked, or nobody waits for the answer
    SFT_RETURN_IF_ERROR(store_.Write(
        [&](Database& db) { return store::AddJudgeCalls(db, job_id, grader.name, -1); }));
  }
  return response;
}

absl::StatusOr<std::shared_ptr<const void>> Judges::TakePlace(const std::string& job_id) {
  const MutexLock lock(places_->mutex);
  if (stopped_) return Unavailable("the server is stopping");
  const auto found = places_->by_job.find(job_id);
  if (places_->all >= kMostAtOnce ||
      (found != places_->by_job.end() && found->second >= kMostOfJob)) {
    return ResourceExhausted("as many questions to judges are under way as there may be");
  }
  const auto place = std::make_shared<Place>();
  place->job_id = job_id;
  ++places_->by_job[job_id];
  ++places_->all;
  place->places = places_;
  return std::shared_ptr<const void>(place);
}

Judges::Place::~Place() {
  if (places == nullptr) return;  // it was not taken
  const MutexLock lock(places->mutex);
  --places->all;
  const auto of_job = places->by_job.find(job_id);
  if (--of_job->second == 0) places->by_job.erase(of_job);
}

absl::StatusOr<Response> Judges::AskJob(const std::string& project, const spec::Grader& grader,
                                        const std::string& prompt, const Gone& gone) {
  SFT_RETURN_IF_ERROR(CheckOne(project, grader));
  v1::GenerateRequest question;
  question.set_name(grader.job);
  v1::ChatMessage& message = *question.add_messages();
  message.set_role("user");
  message.set_content(prompt);
  question.set_max_new_tokens(grader.max_tokens);
  question.set_temperature(0);
  const MonoTime end = clock_.Mono() + std::chrono::seconds(grader.timeout_seconds);
  const auto left = [&] { return gone != nullptr && gone(); };
  const auto over = [&] { return stopped_ || clock_.Mono() >= end || left(); };
  Response response;
  const absl::Status status = serving_.Ask(
      question,
      [&](const v1::GenerateResponse& piece) {
        response.mutable_text()->append(piece.text());
        if (!piece.error().empty()) response.set_error(piece.error());
        return true;
      },
      over);
  if (status.ok()) {
    if (!response.error().empty() || response.text().empty()) {
      if (response.error().empty()) response.set_error("its answer is empty");
      response.clear_text();
    }
    return response;
  }
  if (stopped_) return Unavailable("the server is stopping");
  if (!absl::IsCancelled(status) || left()) return status;
  response.Clear();
  response.set_error(fmt::format("no answer within {} s", grader.timeout_seconds));
  response.set_again(true);
  return response;
}

absl::StatusOr<std::shared_ptr<hub::HttpClient>> Judges::ClientFor(int timeout_seconds) {
  const MutexLock lock(mutex_);
  std::shared_ptr<hub::HttpClient>& client = clients_[timeout_seconds];
  if (client != nullptr) return client;
  hub::HttpOptions options = hub::HttpOptionsOf(
      options_.ca_file, [](const std::string& name) { return GetEnv(name).value_or(""); });
  options.stall_timeout = std::chrono::seconds(timeout_seconds);
  options.connect_timeout = std::min<Nanos>(kConnectTime, options.stall_timeout);
  SFT_ASSIGN_OR_RETURN(client, hub::MakeHttpClient(options));
  return client;
}

absl::StatusOr<Response> Judges::AskUrl(const std::string& project, const spec::Grader& grader,
                                        const std::string& prompt, const Gone& gone,
                                        std::shared_ptr<const void> place) {
  // The operator may have taken it back since the job was submitted.
  SFT_RETURN_IF_ERROR(CheckOne(project, grader));
  JudgeCall call{.url = grader.url,
                 .model = grader.model,
                 .key = "",
                 .prompt = prompt,
                 .max_tokens = grader.max_tokens,
                 .timeout = std::chrono::seconds(grader.timeout_seconds),
                 .place = std::move(place)};
  if (!grader.secret.empty()) {
    SFT_ASSIGN_OR_RETURN(call.key, secrets_.Get(project, grader.secret));
  }
  SFT_ASSIGN_OR_RETURN(std::shared_ptr<hub::HttpClient> http, ClientFor(grader.timeout_seconds));
  return MakeJudgeCall(std::move(http), call, clock_, stopped_, gone);
}

}  // namespace sft::server
