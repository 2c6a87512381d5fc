#include "server/store/webhook_events.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/json.h"
#include "server/state/names.h"
#include "server/store/jobs.h"
#include "server/store/webhooks.h"

namespace sft::server::store {
namespace {

using Json = nlohmann::json;

constexpr WebhookEvent kEvents[] = {
    {"job.queued", true, "a job was submitted"},
    {"job.started", true, "its training began, for the first time or again"},
    {"job.succeeded", true, "it ended with what it was to deliver"},
    {"job.failed", true, "it ended without; the verdict says why"},
    {"job.cancelled", true, "somebody cancelled it"},
    {"job.restarted", true, "an attempt failed, and the job goes on with another"},
    {"job.preempted", true, "it made room for another job, or for work on its node, and goes on"},
    {"checkpoint.committed", true, "a checkpoint can be gone on from"},
    {"budget.warned", true, "a project has spent the share of its budget that it is warned at"},
    {"budget.reached", true, "a project has used up its budget: no more of its jobs start"},
    {"fine_tuning.job.succeeded", true, "as job.succeeded of a training job, in OpenAI's words"},
    {"fine_tuning.job.failed", true, "as job.failed"},
    {"fine_tuning.job.cancelled", true, "as job.cancelled"},
    {"node.suspect", false, "a node is silent"},
    {"node.held", false, "an operator keeps work off a node"},
    {"disk.low", false, "the server's disk is below its first mark"},
};

std::string BodyOf(std::string_view type, int64_t now_us, Json data) {
  return DumpJson(Json{
      {"type", type}, {"timestamp", FormatUtc(FromUnixMicros(now_us))}, {"data", std::move(data)}});
}

// `make_body` is asked only where somebody wants to hear of it.
template <typename MakeBody>
absl::Status TellBody(Database& db, std::string_view type, const std::string& project,
                      int64_t now_us, const MakeBody& make_body, const std::string& job_id) {
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> hooks,
                       HooksFor(db, project, std::string(type), job_id));
  if (hooks.empty()) return absl::OkStatus();
  const std::string body = make_body();
  for (const std::string& hook : hooks) {
    SFT_RETURN_IF_ERROR(Enqueue(db, hook, std::string(type), body, now_us).status());
  }
  return absl::OkStatus();
}

template <typename MakeData>
absl::Status Tell(Database& db, std::string_view type, const std::string& project, int64_t now_us,
                  const MakeData& make_data, const std::string& job_id = "") {
  return TellBody(
      db, type, project, now_us, [&] { return BodyOf(type, now_us, make_data()); }, job_id);
}

// The end of a job as OpenAI's API tells it, which knows jobs that train alone.
absl::Status TellOpenAi(Database& db, std::string_view end, const JobRecord& job, int64_t now_us) {
  constexpr int kTrains = 1;  // sft.v1.Job.SFT
  if (job.kind != kTrains) return absl::OkStatus();
  const std::string type = fmt::format("{}{}", kOpenAiTypes, end);
  return TellBody(
      db, type, job.project, now_us,
      [&] {
        return DumpJson(Json{{"id", "evt_" + RandomUuid()},
                             {"object", "event"},
                             {"created_at", now_us / 1'000'000},
                             {"type", type},
                             {"data", {{"id", job.id}}}});
      },
      job.id);
}

absl::Status TellEnd(Database& db, std::string_view end, const JobRecord& job, int64_t now_us) {
  SFT_RETURN_IF_ERROR(TellJob(db, end, job, job.verdict, now_us));
  return TellOpenAi(db, end, job, now_us);
}

Json DataOf(const JobRecord& job) {
  return {{"job", JobName(job.project, job.id)},
          {"id", job.id},
          {"project", job.project},
          {"owner", job.owner},
          {"display_name", job.display_name},
          {"attempt", job.attempt}};
}

}  // namespace

std::span<const WebhookEvent> WebhookEvents() { return kEvents; }

absl::Status TellJob(Database& db, std::string_view type, const JobRecord& job,
                     const Verdict& verdict, int64_t now_us) {
  return Tell(
      db, type, job.project, now_us,
      [&] {
        Json data = DataOf(job);
        data["state"] = ToString(job.state);
        if (!verdict.empty()) {
          data["verdict"] = {{"code", verdict.code}, {"domain", ToString(verdict.domain)}};
          if (!verdict.node.empty()) data["verdict"]["node"] = verdict.node;
        }
        return data;
      },
      job.id);
}

absl::Status TellEdge(Database& db, const JobRecord& job, int64_t now_us) {
  switch (job.state) {
    case JobState::kRunning:
      return TellJob(db, "job.started", job, Verdict(), now_us);
    case JobState::kSucceeded:
      return TellEnd(db, "job.succeeded", job, now_us);
    case JobState::kFailed:
      return TellEnd(db, "job.failed", job, now_us);
    case JobState::kCancelled:
      return TellEnd(db, "job.cancelled", job, now_us);
    case JobState::kPending:  // told by who knows why
    case JobState::kPreparing:
    case JobState::kCancelling:
      return absl::OkStatus();
  }
  return Internal("unknown job state");
}

absl::Status TellCheckpoint(Database& db, const CheckpointRecord& checkpoint, int64_t now_us) {
  SFT_ASSIGN_OR_RETURN(const JobRecord job, GetJob(db, checkpoint.job_id));
  return Tell(
      db, "checkpoint.committed", job.project, now_us,
      [&] {
        Json data = DataOf(job);
        data["attempt"] = checkpoint.attempt;
        data["step"] = checkpoint.step;
        data["bytes"] = checkpoint.bytes;
        data["best"] = checkpoint.best;
        return data;
      },
      job.id);
}

absl::Status TellNode(Database& db, std::string_view type, const std::string& node,
                      const std::string& reason, int64_t now_us) {
  return Tell(db, type, "", now_us, [&] { return Json{{"node", node}, {"reason", reason}}; });
}

absl::Status TellBudget(Database& db, std::string_view type, const BudgetRecord& budget,
                        int64_t spent_micros, const std::string& currency, int64_t now_us) {
  return Tell(db, type, budget.project, now_us, [&] {
    return Json{{"project", budget.project},
                {"spent_micros", spent_micros},
                {"budget_micros", budget.amount_micros},
                {"currency", currency},
                {"period", budget.period == BudgetRecord::Period::kMonth ? "month" : "total"},
                {"period_start", FormatUtc(FromUnixMicros(budget.begin_us))}};
  });
}

absl::Status TellDisk(Database& db, int64_t free_bytes, int64_t total_bytes, int64_t now_us) {
  return Tell(db, "disk.low", "", now_us, [&] {
    return Json{{"free_bytes", free_bytes}, {"total_bytes", total_bytes}};
  });
}

absl::StatusOr<std::string> TellTest(Database& db, const std::string& hook,
                                     const std::string& project, int64_t now_us) {
  return Enqueue(db, hook, kTestEvent,
                 BodyOf(kTestEvent, now_us, Json{{"webhook", hook}, {"project", project}}), now_us);
}

}  // namespace sft::server::store
