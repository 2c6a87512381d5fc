#include "server/jobs/model_pin.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/hub/model_name.h"
#include "server/jobs/job_checks.h"
#include "server/scheduling/scheduler_jobs.h"

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

}  // namespace

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
