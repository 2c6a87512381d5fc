#include "server/jobs/checkpoint_pin.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "common/hub/model_name.h"
#include "server/jobs/job_checks.h"
#include "server/state/names.h"
#include "server/store/checkpoints.h"
#include "server/store/jobs.h"
#include "sft/v1/job.pb.h"

namespace sft::server {
namespace {

constexpr std::string_view kAdapterKey = "job.adapter", kTemplateKey = "data.chat_template";
constexpr std::string_view kBest = "best", kLatest = "latest";

// 0: it is no step.
int64_t StepIn(std::string_view text) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), step);
  return error == std::errc() && end == text.data() + text.size() && step > 0 ? step : 0;
}

// Those that can be read, newest first.
absl::StatusOr<std::vector<CheckpointRecord>> UsableOf(Database& db, const std::string& job) {
  SFT_ASSIGN_OR_RETURN(std::vector<CheckpointRecord> all, store::CheckpointsOfJob(db, job));
  std::erase_if(all, [](const CheckpointRecord& each) {
    return each.committed_us == 0 || !each.problem.empty();
  });
  return all;
}

// The step that `which` means; 0: there is none.
int64_t Choose(const std::vector<CheckpointRecord>& checkpoints, std::string_view which) {
  const int64_t step = StepIn(which);
  for (const CheckpointRecord& each : checkpoints) {
    if (which == kLatest || (which == kBest && each.best) || each.step == step) return each.step;
  }
  return 0;
}

std::string NothingSuch(const JobRecord& maker, const std::vector<CheckpointRecord>& checkpoints,
                        std::string_view which) {
  if (checkpoints.empty()) {
    return fmt::format("{} has no checkpoint{}", maker.id,
                       IsTerminal(maker.state)
                           ? ""
                           : fmt::format(" yet: `sftctl checkpoint {}` asks for one", maker.id));
  }
  std::string steps;
  for (const CheckpointRecord& each : checkpoints) {
    steps +=
        fmt::format("{}{}{}", steps.empty() ? "" : ", ", each.step, each.best ? " (best)" : "");
  }
  if (which == kBest) {
    return fmt::format("none of {}'s checkpoints is the best of a validation; there is: {}",
                       maker.id, steps);
  }
  return fmt::format("{} has no checkpoint of step {}; there is: {}", maker.id, which, steps);
}

// What is wrong with a job whose checkpoint is named; empty: nothing.
std::string ProblemOf(const JobRecord& maker, const std::string& base) {
  if (maker.kind != v1::Job::SFT) {
    return fmt::format("{} trained nothing: it has no checkpoints", maker.id);
  }
  if (hub::MayBeSame(maker.model, base)) return "";
  return fmt::format("{} trains {}, not {}: set job.model = \"{}\"", maker.id, maker.model, base,
                     maker.model);
}

void SetValue(spec::Resolution& resolution, std::string_view key, const std::string& text,
              const std::string& why) {
  for (spec::ResolvedValue& value : resolution.values) {
    if (value.key != key) continue;
    value.text = text;
    value.origin = "derived: " + why;
  }
}

// Rows are written as those of the training.
void TakeTemplate(const spec::JobSpec& made, const std::string& job, spec::Resolution& resolution) {
  if (made.data.chat_template.empty() || !resolution.spec.data.chat_template.empty()) return;
  resolution.spec.data.chat_template = made.data.chat_template;
  SetValue(resolution, kTemplateKey, made.data.chat_template, "that of " + job);
}

}  // namespace

std::optional<CheckpointName> CheckpointOf(const std::string& adapter) {
  const size_t at = adapter.rfind('@');
  if (at == std::string::npos || adapter.starts_with('/')) return std::nullopt;
  const int64_t step = StepIn(std::string_view(adapter).substr(at + 1));
  if (step == 0) return std::nullopt;
  return CheckpointName{adapter.substr(0, at), step};
}

absl::Status PinCheckpoint(Store& store, const std::string& project, spec::Resolution& resolution) {
  const std::string named = resolution.spec.job.adapter;
  const size_t at = named.rfind('@');
  // Without a project nobody has said whose jobs may be read: a submit says it.
  if (at == std::string::npos || named.starts_with('/') || project.empty() ||
      IsFaulty(resolution, kAdapterKey)) {
    return absl::OkStatus();
  }
  const std::string which = named.substr(at + 1);
  if (!resolution.spec.generates()) {
    AddProblem(resolution, kAdapterKey,
               fmt::format("\"{}\": a checkpoint answers, with kind = \"generate\", \"serve\" or "
                           "\"evaluate\"; name a job that has succeeded{}",
                           named,
                           resolution.spec.trains()
                               ? ", or go on from a checkpoint with `sftctl resume JOB --from STEP`"
                               : ""));
    return absl::OkStatus();
  }
  if (which != kBest && which != kLatest && StepIn(which) == 0) {
    AddProblem(resolution, kAdapterKey,
               fmt::format("\"{}\": write JOB@STEP, JOB@best or JOB@latest (`sftctl checkpoints "
                           "JOB` lists steps)",
                           named));
    return absl::OkStatus();
  }
  std::string problem, pinned;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    const absl::StatusOr<JobRef> ref = ParseJobName(named.substr(0, at));
    const absl::StatusOr<JobRecord> maker =
        !ref.ok() ? ref.status()
        : !ref->project.empty() && ref->project != project
            ? NotFound(fmt::format("project {} has no job \"{}\"", project, named.substr(0, at)))
            : store::FindJob(db, {project, ref->id});
    if (!maker.ok()) {
      problem = std::string(Message(maker.status()));
      return absl::OkStatus();
    }
    problem = ProblemOf(*maker, resolution.spec.job.model);
    if (!problem.empty()) return absl::OkStatus();
    SFT_ASSIGN_OR_RETURN(const std::vector<CheckpointRecord> usable, UsableOf(db, maker->id));
    const int64_t step = Choose(usable, which);
    if (step == 0) {
      problem = NothingSuch(*maker, usable, which);
      return absl::OkStatus();
    }
    const absl::StatusOr<spec::JobSpec> made = store::ReadSpec(db, *maker);
    if (made.ok()) TakeTemplate(*made, maker->id, resolution);
    pinned = fmt::format("{}@{}", maker->id, step);
    return made.ok() || absl::IsDataLoss(made.status()) ? absl::OkStatus() : made.status();
  }));
  if (!problem.empty()) AddProblem(resolution, kAdapterKey, std::move(problem));
  if (pinned.empty() || pinned == named) return absl::OkStatus();
  resolution.spec.job.adapter = pinned;
  SetValue(resolution, kAdapterKey, pinned, named);
  return absl::OkStatus();
}

}  // namespace sft::server
