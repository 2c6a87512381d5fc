#include "server/jobs/model_pin.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/hub/model_name.h"
#include "server/jobs/job_checks.h"
#include "server/scheduling/scheduler_jobs.h"
#include "server/state/names.h"
#include "server/store/files.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

constexpr char kModelKey[] = "job.model";

void SetModel(const std::string& model, const std::string& why, spec::Resolution& resolution) {
  resolution.spec.job.model = model;
  for (spec::ResolvedValue& value : resolution.values) {
    if (value.key != kModelKey) continue;
    value.text = model;
    value.origin = "derived: " + why;
  }
}

void Pin(const hub::ModelName& name, const std::string& commit, const std::string& why,
         spec::Resolution& resolution) {
  SetModel(name.id + "@" + commit, why, resolution);
}

// The hub could not say what the name means: nodes ask it themselves when they download.
void Unpinned(const hub::ModelName& name, std::string_view why, spec::Resolution& resolution) {
  if (hub::IsCommit(name.revision)) return;
  if (resolution.spec.compute.nodes > 1) {
    AddProblem(
        resolution, kModelKey,
        fmt::format("all nodes of a job need the same files, and which commit {} is now cannot "
                    "be asked ({}): give it as {}@COMMIT",
                    name.Text(), why, name.id));
    return;
  }
  const spec::ResolvedValue* value = FindValue(resolution, kModelKey);
  resolution.warnings.push_back(
      {kModelKey, value == nullptr ? 0 : value->line,
       fmt::format(
           "whether the hub has {} could not be asked ({}): the node that downloads it will "
           "see",
           name.Text(), why)});
}

constexpr std::string_view kJobPrefix = "job-";

// What is wrong with the job as one that made a full model; empty: nothing.
std::string ProblemOfMaker(const JobRecord& maker, const std::vector<ArtifactRecord>& artifacts,
                           spec::ExportForm form) {
  if (maker.state != JobState::kSucceeded) {
    return fmt::format("{} is {}: a model is there once its job has succeeded", maker.id,
                       ToString(maker.state));
  }
  if (artifacts.empty())
    return fmt::format("{} has delivered nothing that is still there", maker.id);
  const ArtifactRecord& newest = artifacts.front();
  if (newest.kind == "adapter") {
    return fmt::format(
        "{0} delivered an adapter: set job.model = \"{1}\" and job.adapter = \"{0}\"", maker.id,
        maker.model);
  }
  if (newest.kind != "model") return fmt::format("{} delivered no model", maker.id);
  if (form != spec::ExportForm::kMerged) {
    return fmt::format("{} delivered {}, which no job reads: export with --merged", maker.id,
                       form == spec::ExportForm::kGguf ? "a GGUF file" : "an adapter for vLLM");
  }
  if (newest.node_path.empty()) {
    return fmt::format(
        "the server keeps the model of {}, and nodes do not: download it to where "
        "they find models",
        maker.id);
  }
  return "";
}

}  // namespace

absl::Status TakeModelOfJob(Store& store, const std::string& project,
                            spec::Resolution& resolution) {
  const std::string named = resolution.spec.job.model;
  if (!named.starts_with(kJobPrefix) || IsFaulty(resolution, kModelKey)) return absl::OkStatus();
  const absl::StatusOr<JobRef> ref = ParseJobName(named);
  if (!ref.ok()) return absl::OkStatus();
  std::string problem, path;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    const absl::StatusOr<JobRecord> maker = store::FindJob(db, {project, ref->id});
    if (!maker.ok()) return absl::IsNotFound(maker.status()) ? absl::OkStatus() : maker.status();
    SFT_ASSIGN_OR_RETURN(const std::vector<ArtifactRecord> artifacts,
                         store::ArtifactsOfJob(db, maker->id));
    auto form = spec::ExportForm::kMerged;
    if (maker->kind == v1::Job::EXPORT) {
      SFT_ASSIGN_OR_RETURN(const spec::JobSpec exported, store::ReadSpec(db, *maker));
      form = exported.exporting.form;
    }
    problem = ProblemOfMaker(*maker, artifacts, form);
    if (problem.empty()) path = artifacts.front().node_path;
    return absl::OkStatus();
  }));
  if (!problem.empty()) AddProblem(resolution, kModelKey, std::move(problem));
  if (!path.empty()) SetModel(path, "the full model that " + named + " delivered", resolution);
  return absl::OkStatus();
}

absl::Status PinModel(FleetCatalog& fleet, HubModels* hub, const std::string& project,
                      const JobRecord* resumed, spec::Resolution& resolution) {
  const std::string model = resolution.spec.job.model;
  if (model.empty() || IsModelPath(model) || IsFaulty(resolution, kModelKey)) {
    return absl::OkStatus();
  }
  const auto name = hub::ParseModelName(model);
  // What its checkpoints were trained on, whatever a branch means by now.
  if (name && resumed != nullptr && !hub::IsCommit(name->revision) &&
      hub::MayBeSame(model, resumed->model)) {
    SetModel(resumed->model, "of the job that it goes on with", resolution);
    return absl::OkStatus();
  }
  SFT_ASSIGN_OR_RETURN(const auto known, fleet.Get());
  if (!name || !known->downloads) return absl::OkStatus();
  SFT_ASSIGN_OR_RETURN(const auto found, fleet.FindModel(model));
  if (found != nullptr && found->problem.empty()) {
    // A folder that somebody copied there is what its nodes have, and no other node gets it.
    const std::string commit = hub::CommitOfSnapshot(found->path);
    if (name->revision.empty() && !commit.empty()) {
      Pin(*name, commit, fmt::format("the commit that node {} has", found->node), resolution);
    }
    return absl::OkStatus();
  }
  if (hub == nullptr || hub->offline()) {
    Unpinned(*name, "HF_HUB_OFFLINE is set for the server", resolution);
    return absl::OkStatus();
  }
  const absl::StatusOr<HubModels::Found> asked = hub->Ask(*name, project);
  if (asked.ok()) {
    Pin(*name, asked->commit,
        fmt::format("the commit of {} at {}",
                    name->revision.empty() ? std::string("main") : name->revision, hub->endpoint()),
        resolution);
  } else if (absl::IsUnavailable(asked.status())) {
    Unpinned(*name, Message(asked.status()), resolution);
  } else {
    AddProblem(resolution, kModelKey, std::string(Message(asked.status())));
  }
  return absl::OkStatus();
}

}  // namespace sft::server
