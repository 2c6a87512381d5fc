#include "server/jobs/sweeps.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <vector>

#include "common/io/sha256.h"
#include "common/spec/sweep.h"
#include "common/spec/value.h"
#include "common/spec/visit.h"
#include "server/store/jobs.h"
#include "server/store/schedules.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

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
    if (jobs > Sweeps::kMaxSweep) {
      return InvalidArgument(
          fmt::format("the sweep has more than {} jobs: leave out values, or submit it in parts",
                      Sweeps::kMaxSweep));
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
  if (jobs * bytes > Sweeps::kMaxSweepBytes) {
    return InvalidArgument(fmt::format(
        "a sweep of {} jobs takes a job file of up to {} KiB, and this one has {}: submit it in "
        "parts",
        jobs, Sweeps::kMaxSweepBytes / jobs >> 10, bytes >> 10));
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

}  // namespace

absl::StatusOr<Sweeps::Sweep> Sweeps::Submit(const v1::SubmitSweepRequest& request,
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
    SFT_ASSIGN_OR_RETURN(
        JobIntake::Prepared prepared,
        intake_.Prepare(job, actor.name, {.together = static_cast<int>(count - i)}));
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
    job.clear_resolved();
    *result.response.add_jobs() = std::move(job);
  }
  return result;
}

absl::StatusOr<v1::CancelSweepResponse> Sweeps::Cancel(
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

}  // namespace sft::server
