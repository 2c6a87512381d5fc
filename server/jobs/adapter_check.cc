#include "server/jobs/adapter_check.h"

#include <fmt/format.h>

#include "common/data/prompt_row.h"
#include "common/data/row_reader.h"
#include "common/hub/model_name.h"
#include "common/io/file.h"
#include "server/core/convert.h"
#include "server/jobs/checkpoint_pin.h"
#include "server/jobs/job_checks.h"
#include "server/state/names.h"
#include "server/store/files.h"
#include "server/store/jobs.h"

namespace sft::server {
namespace {

constexpr char kAdapterKey[] = "job.adapter", kDataKey[] = "job.data";
// Looked at within a call: parsing takes a second for a tenth of it at most.
constexpr int64_t kMostLookedAt = int64_t{64} << 20;

// What is wrong with the job as one that made an adapter; empty: nothing.
std::string ProblemOf(const JobRecord& maker, const std::vector<ArtifactRecord>& artifacts,
                      const std::string& base) {
  if (maker.state != JobState::kSucceeded) {
    return fmt::format("{} is {}: an adapter is there once its job has succeeded", maker.id,
                       ToString(maker.state));
  }
  if (maker.kind != v1::Job::SFT) {
    return maker.kind == v1::Job::EXPORT
               ? fmt::format("{} exports what another job has trained: name that job", maker.id)
               : fmt::format("{} trained nothing: it delivered no adapter", maker.id);
  }
  if (artifacts.empty()) {
    return fmt::format("what {} delivered was removed", maker.id);
  }
  const ArtifactRecord& newest = artifacts.front();
  if (newest.kind == "model") {
    return fmt::format(
        "{} delivered a full model: set job.model = \"{}\", and leave job.adapter out", maker.id,
        newest.node_path);
  }
  if (!hub::MayBeSame(maker.model, base)) {
    return fmt::format("{} trained an adapter for {}, not for {}: set job.model = \"{}\"", maker.id,
                       maker.model, base, maker.model);
  }
  return "";
}

constexpr char kNameRows[] = "give rows to compare on (job.data, or sftctl export --dataset FILE)";

// Adds the rows on which the job trained, for an export that names none.
absl::Status AddRowsOf(Database& db, const JobRecord& maker, std::vector<JobFileRecord>& files,
                       std::string& problem) {
  SFT_ASSIGN_OR_RETURN(const std::vector<JobFileRecord> had, store::FilesOfJob(db, maker.id));
  for (const JobFileRecord& file : had) {
    if (file.key != kDataKey) continue;
    if (!file.sha256.empty()) {
      SFT_ASSIGN_OR_RETURN(const auto dataset, store::FindDataset(db, file.sha256));
      if (!dataset.has_value()) break;
    }
    files.push_back(file);
    return absl::OkStatus();
  }
  problem = fmt::format("the rows that {} was trained on were removed: {}", maker.id, kNameRows);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckAdapter(Store& store, const std::string& project, spec::Resolution& resolution,
                          std::vector<JobFileRecord>& files) {
  const spec::JobSpec::Job& job = resolution.spec.job;
  if (job.adapter.empty() || IsFaulty(resolution, kAdapterKey)) return absl::OkStatus();
  if (CheckpointOf(job.adapter)) return absl::OkStatus();  // no files of the job: Dispatch.resume
  const bool compares =
      resolution.spec.exports() && resolution.spec.exporting.form != spec::ExportForm::kVllm;
  const bool needs_rows = compares && job.data.empty();
  if (job.adapter.starts_with('/')) {
    if (needs_rows) {
      AddProblem(
          resolution, kDataKey,
          fmt::format("is missing: who trained the adapter is not known here; {}", kNameRows));
    }
    files.push_back({kAdapterKey, "", 0, "", job.adapter});
    return absl::OkStatus();
  }
  std::string problem, rows_problem;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    const absl::StatusOr<JobRef> ref = ParseJobName(job.adapter);
    const absl::StatusOr<JobRecord> maker =
        !ref.ok() || (!ref->project.empty() && ref->project != project)
            ? NotFound(fmt::format("project {} has no job \"{}\"", project, job.adapter))
            : store::FindJob(db, {project, ref->id});
    if (!maker.ok()) {
      problem = fmt::format(
          "{}; must be a job that has delivered an adapter, or the absolute path of a folder on "
          "the nodes",
          Message(maker.status()));
      return absl::OkStatus();
    }
    SFT_ASSIGN_OR_RETURN(const std::vector<ArtifactRecord> artifacts,
                         store::ArtifactsOfJob(db, maker->id));
    problem = ProblemOf(*maker, artifacts, job.model);
    if (!problem.empty()) return absl::OkStatus();
    for (const ArtifactFileRecord& file : artifacts.front().files) {
      files.push_back(
          {fmt::format("{}/{}", kAdapterKey, file.path), file.sha256, file.size, file.path, ""});
    }
    return needs_rows ? AddRowsOf(db, *maker, files, rows_problem) : absl::OkStatus();
  }));
  if (!problem.empty()) AddProblem(resolution, kAdapterKey, std::move(problem));
  if (!rows_problem.empty()) AddProblem(resolution, kDataKey, std::move(rows_problem));
  return absl::OkStatus();
}

bool ReadsAdapterOnResume(const spec::JobSpec& spec) { return !spec.trains() || spec.prefers(); }

std::string PromptsProblem(const std::string& path, const std::string& name, int64_t most) {
  const absl::StatusOr<int64_t> size = io::FileSize(path);
  if (!size.ok() || *size > kMostLookedAt) return "";
  // A table is opened by who submits and who prepares (data::CheckUpload).
  if (const absl::StatusOr<bool> is_table = data::IsTableFile(path); is_table.ok() && *is_table) {
    return "";
  }
  return std::string(Message(data::CountPromptRows(path, name, most).status()));
}

}  // namespace sft::server
