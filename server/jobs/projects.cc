#include "server/jobs/projects.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/spec/value.h"
#include "common/spec/visit.h"
#include "server/core/convert.h"
#include "server/jobs/budgets.h"
#include "server/sched/order.h"
#include "server/state/names.h"
#include "server/store/budgets.h"
#include "server/store/jobs.h"
#include "server/store/prices.h"
#include "server/store/schedules.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr double kMaxShare = 1e6;

absl::Status TakeChanges(const v1::SetProjectRequest& request, ProjectLimits& limits) {
  if (request.has_share()) {
    if (!(request.share() > 0) || request.share() > kMaxShare) {
      return InvalidArgument(fmt::format("a share is a number above 0, at most {}", kMaxShare));
    }
    limits.share = request.share();
  }
  const auto count = [](bool given, int value, const char* name, int& limit) -> absl::Status {
    if (given && value < 0) {
      return InvalidArgument(fmt::format("{} is a whole number from 0 (any number)", name));
    }
    if (given) limit = value;
    return absl::OkStatus();
  };
  SFT_RETURN_IF_ERROR(
      count(request.has_max_gpus(), request.max_gpus(), "max_gpus", limits.max_gpus));
  SFT_RETURN_IF_ERROR(
      count(request.has_max_running(), request.max_running(), "max_running", limits.max_running));
  SFT_RETURN_IF_ERROR(
      count(request.has_max_pending(), request.max_pending(), "max_pending", limits.max_pending));
  if (!request.has_max_priority()) return absl::OkStatus();
  spec::Priority priority;
  if (!spec::ParseEnum(request.max_priority(), &priority)) {
    return InvalidArgument(fmt::format(
        "max_priority must be low, normal, high or urgent, but is {}", request.max_priority()));
  }
  limits.max_priority = static_cast<int>(priority);
  return absl::OkStatus();
}

v1::Project ToProto(const ProjectLimits& limits, int64_t now_us) {
  v1::Project project;
  project.set_name(limits.project);
  project.set_share(limits.share);
  project.set_max_gpus(limits.max_gpus);
  project.set_max_running(limits.max_running);
  project.set_max_pending(limits.max_pending);
  project.set_max_priority(PriorityName(limits.max_priority));
  project.set_decayed_gpu_hours(sched::Decayed(limits.usage_us, limits.usage_at_us, now_us) /
                                sched::kHourUs);
  return project;
}

}  // namespace

absl::StatusOr<v1::ListProjectsResponse> Projects::List() {
  std::map<std::string, v1::Project> projects;
  const int64_t now_us = UnixMicros(clock_.Wall());
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    projects.clear();
    const auto at = [&](const std::string& name) -> v1::Project& {
      if (!projects.contains(name)) {
        ProjectLimits limits;
        limits.project = name;
        projects[name] = ToProto(limits, now_us);
      }
      return projects[name];
    };
    SFT_ASSIGN_OR_RETURN(const auto limits, store::ListLimits(db));
    for (const auto& [name, limit] : limits) projects[name] = ToProto(limit, now_us);
    SFT_ASSIGN_OR_RETURN(const auto pending, store::PendingByProject(db));
    for (const auto& [name, count] : pending) at(name).set_pending(count);
    SFT_ASSIGN_OR_RETURN(const std::vector<JobRecord> live, store::LiveJobs(db));
    for (const JobRecord& job : live) {
      v1::Project& project = at(job.project);
      project.set_running(project.running() + 1);
      project.set_gpus(project.gpus() + job.gpus_per_node * job.nodes);
    }
    SFT_ASSIGN_OR_RETURN(const auto budgets, store::AllSpent(db, now_us));
    SFT_ASSIGN_OR_RETURN(const PriceList prices, store::ReadPrices(db));
    for (const store::SpentBudget& spent : budgets) {
      *at(spent.budget.project).mutable_budget() = ToProto(spent, prices.currency());
    }
    return absl::OkStatus();
  }));
  v1::ListProjectsResponse response;
  for (auto& [name, project] : projects) {
    project.set_has_hub_token(hub_ != nullptr && hub_->HasToken(name));
    if (secrets_ != nullptr) {
      SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, secrets_->Names(name));
      for (const std::string& each : names) project.add_secrets(each);
    }
    *response.add_projects() = std::move(project);
  }
  return response;
}

absl::Status Projects::CheckFiles(const v1::SetProjectRequest& request) const {
  if (request.has_hub_token()) {
    if (hub_ == nullptr) return FailedPrecondition("this server keeps no hub tokens");
    SFT_RETURN_IF_ERROR(hub_->CheckToken(request.hub_token()));
  }
  if (request.secrets().empty()) return absl::OkStatus();
  if (secrets_ == nullptr) return FailedPrecondition("this server keeps no secrets");
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> kept, secrets_->Names(request.name()));
  std::set<std::string> names(kept.begin(), kept.end());
  for (const v1::ProjectSecret& secret : request.secrets()) {
    SFT_RETURN_IF_ERROR(Secrets::Check(secret.name(), secret.value()));
    if (secret.value().empty()) {
      names.erase(secret.name());
    } else if (names.insert(secret.name()).second && names.size() > Secrets::kMostOfProject) {
      return ResourceExhausted(fmt::format("project {} would have more than {} secrets",
                                           request.name(), Secrets::kMostOfProject));
    }
  }
  return absl::OkStatus();
}

absl::Status Projects::WriteFiles(const v1::SetProjectRequest& request) {
  for (const v1::ProjectSecret& secret : request.secrets()) {
    SFT_RETURN_IF_ERROR(secrets_->Set(request.name(), secret.name(), secret.value()));
  }
  return request.has_hub_token() ? hub_->SetToken(request.name(), request.hub_token())
                                 : absl::OkStatus();
}

absl::StatusOr<v1::Project> Projects::Set(const v1::SetProjectRequest& request,
                                          const Actor& actor) {
  if (!IsValidLabel(request.name())) {
    return InvalidArgument(fmt::format("project \"{}\" is not a name", request.name()));
  }
  if (request.no_budget() && request.has_budget()) {
    return InvalidArgument("a budget is set or taken away, not both");
  }
  SFT_RETURN_IF_ERROR(CheckFiles(request));
  ProjectLimits limits;
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(limits, store::GetLimits(db, request.name()));
        SFT_RETURN_IF_ERROR(TakeChanges(request, limits));
        SFT_RETURN_IF_ERROR(store::PutLimits(db, limits));
        if (request.no_budget()) return store::DeleteBudget(db, request.name());
        if (!request.has_budget()) return absl::OkStatus();
        return ChangeBudget(db, request.name(), request.budget(), UnixMicros(clock_.Wall()));
      },
      actor.audit));
  SFT_RETURN_IF_ERROR(WriteFiles(request));
  SFT_ASSIGN_OR_RETURN(const v1::ListProjectsResponse all, List());
  for (const v1::Project& project : all.projects()) {
    if (project.name() == request.name()) return project;
  }
  return ToProto(limits, UnixMicros(clock_.Wall()));
}

}  // namespace sft::server
