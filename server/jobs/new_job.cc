#include "server/jobs/new_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <utility>

#include "common/base/clock.h"
#include "common/base/duration.h"
#include "common/base/ids.h"
#include "common/io/sha256.h"
#include "common/spec/job_protocol.h"
#include "server/jobs/checkpoint_pin.h"
#include "server/jobs/template_pin.h"
#include "server/state/names.h"

namespace sft::server {
namespace {

int64_t Micros(const std::string& duration) {
  const auto parsed = ParseDuration(duration);
  return parsed ? parsed->count() * 1'000'000 : 0;
}

ScheduleRecord ScheduleOf(const spec::JobSpec& spec) {
  const spec::JobSpec::Scheduling& scheduling = spec.scheduling;
  ScheduleRecord schedule;
  schedule.after = scheduling.after;
  schedule.group = spec.job.group;
  schedule.held = scheduling.hold;
  schedule.time_limit_us = Micros(scheduling.time_limit);
  schedule.warn_before_us = Micros(scheduling.warn_before);
  schedule.exclusive = scheduling.exclusive;
  schedule.preemptible = scheduling.preemptible;
  const auto deadline = ParseUtc(scheduling.deadline);
  if (deadline) schedule.deadline_us = UnixMicros(*deadline);
  return schedule;
}

}  // namespace

std::string RequestHash(const v1::SubmitJobRequest& request) {
  v1::SubmitJobRequest said = request;
  said.clear_request_id();
  said.clear_again();
  // A map has no order of its own.
  const std::map<std::string, std::string> metadata(said.metadata().begin(), said.metadata().end());
  said.clear_metadata();
  std::string text = said.SerializeAsString();
  for (const auto& [key, value] : metadata) {
    text += fmt::format("\n{}:{}{}", key.size(), key, value);
  }
  return io::Sha256Hex(text);
}

std::string ProjectOf(const std::string& named) { return named.empty() ? kDefaultProject : named; }

JobRecord MakeJob(const v1::SubmitJobRequest& request, const spec::Resolution& resolution,
                  const std::string& principal) {
  const spec::JobSpec& spec = resolution.spec;
  JobRecord job;
  job.id = RandomId("job");
  job.kind = spec.serves()      ? v1::Job::SERVE
             : spec.evaluates() ? v1::Job::EVALUATE
             : spec.generates() ? v1::Job::GENERATE
             : spec.exports()   ? v1::Job::EXPORT
                                : v1::Job::SFT;
  job.project = ProjectOf(request.project());
  job.owner = principal;
  job.display_name = spec.job.name;
  job.variant = spec.compute.variant;
  job.gpu_type = spec.compute.gpu_type;
  job.gpus_per_node = spec.compute.gpus_per_node;
  job.nodes = spec.compute.nodes;
  job.model = spec.job.model;
  job.source_text = request.source_text();
  job.file_name = request.file_name();
  job.spec = spec;
  spec::ProtocolNeed need = spec::NeedOf(spec);
  if (GivesDay(resolution)) need.Add("data.template_date");
  job.protocol = need.protocol;
  job.newer_keys = fmt::format("{}", fmt::join(need.keys, ", "));
  job.priority = static_cast<int>(spec.scheduling.priority);
  job.schedule = ScheduleOf(spec);
  for (const spec::ResolvedValue& value : resolution.values) {
    job.resolved_values.push_back({value.key, value.text, value.origin});
  }
  for (const spec::Problem& warning : resolution.warnings) {
    job.warnings.push_back({warning.key, warning.line, warning.message});
  }
  job.request_id = request.request_id();
  job.request_hash = RequestHash(request);
  job.metadata.insert(request.metadata().begin(), request.metadata().end());
  if (auto checkpoint = CheckpointOf(spec.job.adapter)) {
    job.resumed_from = std::move(checkpoint->job);
    job.resumed_step = checkpoint->step;
  }
  return job;
}

}  // namespace sft::server
