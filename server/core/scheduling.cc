#include "server/core/scheduling.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "common/base/clock.h"
#include "common/io/sha256.h"
#include "common/spec/sweep.h"
#include "common/spec/value.h"
#include "common/spec/visit.h"
#include "server/core/convert.h"
#include "server/sched/order.h"
#include "server/state/names.h"
#include "server/store/jobs.h"
#include "server/store/schedules.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

constexpr double kMaxShare = 1e6;

// One spelling for all that mean the same: lora_r is lora.r, and 1e-4 is 0.0001.
std::string Canonical(const spec::Field* field, const std::string& value) {
  if (field == nullptr) return value;
  const absl::StatusOr<spec::Value> read = spec::ParseText(*field, value);
  return read.ok() ? spec::ToText(*field, *read) : value;
}

// The number of jobs, or why there cannot be so many.
absl::StatusOr<int64_t> CountJobs(const v1::SubmitSweepRequest& request) {
  if (request.axes().empty()) {
    return InvalidArgument("a sweep needs a key and its values: --set lora.r=8,16,32");
  }
  constexpr int kMostAxes = 100;
  if (request.axes_size() > kMostAxes) {
    return InvalidArgument(fmt::format("the sweep changes {} keys; at most {} are taken",
                                       request.axes_size(), kMostAxes));
  }
  int64_t jobs = 1;
  std::set<std::string> keys;
  for (const v1::SweepAxis& axis : request.axes()) {
    if (axis.values().empty()) return InvalidArgument(fmt::format("{} has no values", axis.key()));
    const spec::Field* field = spec::FindField(axis.key());
    if (!keys.insert(field == nullptr ? axis.key() : std::string(field->key)).second) {
      return InvalidArgument(
          fmt::format("{} is given twice: name all its values at once", axis.key()));
    }
    std::set<std::string> values;
    for (const std::string& value : axis.values()) {
      if (values.insert(Canonical(field, value)).second) continue;
      return InvalidArgument(
          fmt::format("{} has the value {} twice: two jobs would be the same", axis.key(), value));
    }
    jobs *= axis.values_size();
    if (jobs > Scheduling::kMaxSweep) {
      return InvalidArgument(
          fmt::format("the sweep has more than {} jobs: leave out values, or submit it in parts",
                      Scheduling::kMaxSweep));
    }
  }
  size_t largest = request.job().ByteSizeLong();  // of its jobs: each has one value of each axis
  for (const v1::SweepAxis& axis : request.axes()) {
    const auto longest = std::max_element(
        axis.values().begin(), axis.values().end(),
        [](const std::string& a, const std::string& b) { return a.size() < b.size(); });
    largest += axis.key().size() + longest->size();
  }
  const auto bytes = static_cast<int64_t>(largest);
  if (jobs * bytes > Scheduling::kMaxSweepBytes) {
    return InvalidArgument(fmt::format(
        "a sweep of {} jobs takes a job file of up to {} KiB, and this one has {}: submit it in "
        "parts",
        jobs, Scheduling::kMaxSweepBytes / jobs >> 10, bytes >> 10));
  }
  return jobs;
}

// One job of the sweep.
v1::SubmitJobRequest JobOf(const v1::SubmitSweepRequest& request, int64_t index,
                           const std::string& sweep) {
  v1::SubmitJobRequest job = request.job();
  job.set_request_id(fmt::format("{}/{}", sweep, index));
  std::vector<int> counts;
  for (const v1::SweepAxis& axis : request.axes()) counts.push_back(axis.values_size());
  const std::vector<int> values = spec::SweepValues(counts, index);
  for (int i = 0; i < request.axes_size(); ++i) {
    v1::Override* changed = job.add_overrides();
    changed->set_key(request.axes(i).key());
    changed->set_value(request.axes(i).values(values[i]));
    changed->set_kind(v1::Override::SET);
    changed->set_origin("sweep");
  }
  return job;
}

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

absl::StatusOr<Scheduling::Sweep> Scheduling::Submit(const v1::SubmitSweepRequest& request,
                                                     const Actor& actor) {
  SFT_ASSIGN_OR_RETURN(const int64_t count, CountJobs(request));
  if (request.max_parallel() < 0) return InvalidArgument("max_parallel is a whole number from 0");
  if (request.job().request_id().empty() || request.job().request_id().size() > 100) {
    return InvalidArgument("a sweep needs a request id of 1 to 100 bytes");
  }
  Sweep result;
  // A repeat has the same name, so its jobs have the same request ids.
  const std::string told =
      fmt::format("{}/{}/{}", actor.name, request.job().project(), request.job().request_id());
  const std::string sweep = "sweep-" + io::Sha256Hex(told).substr(0, 12);
  std::vector<JobRecord> jobs;
  std::vector<JobFileRecord> files;
  for (int64_t i = 0; i < count; ++i) {
    const v1::SubmitJobRequest job = JobOf(request, i, sweep);
    SFT_ASSIGN_OR_RETURN(JobIntake::Prepared prepared,
                         intake_.Prepare(job, actor.name, static_cast<int>(count - i)));
    if (!prepared.outcome.problems.empty() || !prepared.outcome.missing_files.empty()) {
      result.refused = std::move(prepared.outcome);
      return result;
    }
    prepared.job.schedule.sweep = sweep;
    prepared.job.schedule.sweep_limit = request.max_parallel();
    prepared.job.source_text = std::string();
    jobs.push_back(std::move(prepared.job));
    files = std::move(prepared.files);
  }
  if (request.job().validate_only()) return result;
  SFT_ASSIGN_OR_RETURN(
      std::vector<v1::Job> submitted,
      jobs_.SubmitSweep(std::move(jobs), files, request.job().source_text(), actor));
  result.response.set_sweep(sweep);
  for (v1::Job& job : submitted) {
    job.clear_resolved_json();
    job.clear_resolved();
    *result.response.add_jobs() = std::move(job);
  }
  return result;
}

absl::StatusOr<v1::CancelSweepResponse> Scheduling::Cancel(
    const v1::CancelSweepRequest& request,
    const std::function<bool(const std::string& project)>& may, const Actor& actor) {
  std::vector<std::string> ids;
  v1::CancelSweepResponse response;
  std::vector<std::string> open;
  SFT_RETURN_IF_ERROR(store_.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                         store::JobsOfSweep(db, request.sweep()));
    ids.clear();
    open.clear();
    for (const std::string& id : all) {
      SFT_ASSIGN_OR_RETURN(const std::string project, store::ProjectOfJob(db, id));
      if (!may(project)) continue;
      ids.push_back(id);
      SFT_ASSIGN_OR_RETURN(const JobState state, store::StateOf(db, id));
      if (!IsTerminal(state)) open.push_back(id);
    }
    return absl::OkStatus();
  }));
  if (ids.empty()) {
    return NotFound(
        fmt::format("no sweep \"{}\": `sftctl status JOB` names that of a job", request.sweep()));
  }
  for (const std::string& id : open) {
    SFT_RETURN_IF_ERROR(jobs_.Cancel(id, request.reason(), request.checkpoint(), actor).status());
  }
  response.set_cancelled(static_cast<int>(open.size()));
  response.set_ended(static_cast<int>(ids.size() - open.size()));
  return response;
}

absl::StatusOr<v1::ListProjectsResponse> Scheduling::ListProjects() {
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
    return absl::OkStatus();
  }));
  v1::ListProjectsResponse response;
  for (auto& [name, project] : projects) *response.add_projects() = std::move(project);
  return response;
}

absl::StatusOr<v1::Project> Scheduling::SetProject(const v1::SetProjectRequest& request,
                                                   const Actor& actor) {
  if (!IsValidLabel(request.name())) {
    return InvalidArgument(fmt::format("project \"{}\" is not a name", request.name()));
  }
  ProjectLimits limits;
  SFT_RETURN_IF_ERROR(store_.Write(
      [&](Database& db) -> absl::Status {
        SFT_ASSIGN_OR_RETURN(limits, store::GetLimits(db, request.name()));
        SFT_RETURN_IF_ERROR(TakeChanges(request, limits));
        return store::PutLimits(db, limits);
      },
      actor.audit));
  SFT_ASSIGN_OR_RETURN(const v1::ListProjectsResponse all, ListProjects());
  for (const v1::Project& project : all.projects()) {
    if (project.name() == request.name()) return project;
  }
  return ToProto(limits, UnixMicros(clock_.Wall()));
}

}  // namespace sft::server
