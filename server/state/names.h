#pragma once

#include <string>
#include <string_view>

#include "common/base/status.h"

// Resource names: "projects/{project}/jobs/{job}", "nodes/{node}", "artifacts/{artifact}",
// "files/{file}".

namespace sft::server {

inline constexpr char kDefaultProject[] = "default";

// Letters, digits, '-', '_' and '.', starting with a letter or digit, at most 63 bytes: node and
// project names appear in paths and metrics.
bool IsValidLabel(std::string_view text);

std::string JobName(std::string_view project, std::string_view job_id);
// A job as somebody names it.
struct JobRef {
  std::string project;  // empty: whichever it is in
  std::string id;
};
// Of a full name or of the id alone; INVALID_ARGUMENT for anything else.
absl::StatusOr<JobRef> ParseJobName(std::string_view name);

std::string NodeName(std::string_view node);
std::string ArtifactName(std::string_view artifact_id);
std::string FileName(std::string_view file_id);

}  // namespace sft::server
