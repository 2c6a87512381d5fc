#include "server/jobs/template_pin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common/spec/template_settings.h"
#include "server/jobs/job_checks.h"
#include "server/state/names.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

constexpr std::string_view kDayKey = "data.template_date",
                           kArgumentsKey = "data.template_arguments", kDerived = "derived: ";

}  // namespace

void SetDay(WallTime now, const JobRecord* resumed, spec::ResolveOptions& options) {
  if (resumed == nullptr) {
    options.day = spec::DayOf(now);
    return;
  }
  const auto former = std::ranges::find(resumed->resolved_values, kDayKey, &ResolvedRecord::key);
  // A job of an earlier version has none and keeps what that version had.
  if (former == resumed->resolved_values.end()) return;
  options.day = former->value;
  options.day_of = resumed->id;
}

absl::Status TakeTemplateArguments(Store& store, const std::string& project,
                                   spec::Resolution& resolution) {
  const spec::JobSpec::Job& job = resolution.spec.job;
  const std::string& named = job.adapter.empty() ? job.model : job.adapter;
  const auto value = std::ranges::find(resolution.values, kArgumentsKey, &spec::ResolvedValue::key);
  if (resolution.spec.trains() || project.empty() || named.empty() || named.starts_with('/') ||
      value == resolution.values.end() || value->origin != "default") {
    return absl::OkStatus();
  }
  const absl::StatusOr<JobRef> ref = ParseJobName(named.substr(0, named.rfind('@')));
  if (!ref.ok() || (!ref->project.empty() && ref->project != project)) return absl::OkStatus();
  return store.Read([&](Database& db) -> absl::Status {
    const absl::StatusOr<JobRecord> maker = store::FindJob(db, {project, ref->id});
    if (!maker.ok()) return absl::IsNotFound(maker.status()) ? absl::OkStatus() : maker.status();
    const absl::StatusOr<spec::JobSpec> made = store::ReadSpec(db, *maker);
    if (!made.ok()) return absl::IsDataLoss(made.status()) ? absl::OkStatus() : made.status();
    if (made->data.template_arguments.empty()) return absl::OkStatus();
    resolution.spec.data.template_arguments = made->data.template_arguments;
    value->text = fmt::format("{}", fmt::join(made->data.template_arguments, ","));
    value->origin = fmt::format("{}that of {}", kDerived, maker->id);
    return absl::OkStatus();
  });
}

bool GivesDay(const spec::Resolution& resolution) {
  const spec::ResolvedValue* const value = FindValue(resolution, kDayKey);
  return value != nullptr && !value->text.empty() && !value->origin.starts_with(kDerived);
}

}  // namespace sft::server
