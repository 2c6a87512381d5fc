#include "server/state/names.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace sft::server {

bool IsValidLabel(std::string_view text) {
  if (text.empty() || text.size() > 63) return false;
  if (std::isalnum(static_cast<unsigned char>(text.front())) == 0) return false;
  return std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
  });
}

std::string JobName(std::string_view project, std::string_view job_id) {
  return fmt::format("projects/{}/jobs/{}", project, job_id);
}

absl::StatusOr<JobRef> ParseJobName(std::string_view name) {
  std::string_view id = name, project;
  constexpr std::string_view kProjects = "projects/", kJobs = "/jobs/";
  if (name.substr(0, kProjects.size()) == kProjects) {
    const size_t jobs = name.find(kJobs);
    id = jobs == name.npos ? "" : name.substr(jobs + kJobs.size());
    project = name.substr(kProjects.size(), jobs == name.npos ? 0 : jobs - kProjects.size());
    if (!IsValidLabel(project)) id = "";
  }
  if (!IsValidLabel(id)) {
    return InvalidArgument(fmt::format(
        "\"{}\" names no job: write its id (\"job-...\") or \"projects/PROJECT/jobs/ID\"", name));
  }
  return JobRef{std::string(project), std::string(id)};
}

std::string NodeName(std::string_view node) { return fmt::format("nodes/{}", node); }

std::string ArtifactName(std::string_view artifact_id) {
  return fmt::format("artifacts/{}", artifact_id);
}

std::string FileName(std::string_view file_id) { return fmt::format("files/{}", file_id); }

}  // namespace sft::server
