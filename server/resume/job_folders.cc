#include "server/resume/job_folders.h"

#include <algorithm>

#include "common/base/ids.h"
#include "server/store/access.h"
#include "server/store/tenancy.h"

namespace sft::server {
namespace {

// The caller of a server without tokens, who may do everything.
constexpr char kLocalUser[] = "local";

}  // namespace

std::vector<std::string> JobsInPaths(const std::vector<std::string>& paths) {
  std::vector<std::string> jobs;
  for (const std::string& path : paths) {
    for (std::string& id : IdsInPath("job", path)) {
      if (std::find(jobs.begin(), jobs.end(), id) == jobs.end()) jobs.push_back(std::move(id));
    }
  }
  return jobs;
}

absl::StatusOr<std::vector<std::string>> ReadableJobs(Database& db, const FolderReader& reader,
                                                      const std::vector<std::string>& jobs) {
  if (jobs.empty()) return jobs;
  SFT_ASSIGN_OR_RETURN(const std::vector<UserRecord> users, store::ListUsers(db));
  const auto user = std::find_if(users.begin(), users.end(),
                                 [&](const UserRecord& each) { return each.name == reader.owner; });
  const bool known = user != users.end();
  if (known ? user->admin : reader.owner == kLocalUser) return jobs;
  std::vector<std::string> readable;
  for (const std::string& id : jobs) {
    const absl::StatusOr<std::string> project = store::ProjectOfJob(db, id);
    if (absl::IsNotFound(project.status())) continue;
    SFT_RETURN_IF_ERROR(project.status());
    const bool member = known && user->roles.contains(*project);
    if (reader.project.empty() ? member : *project == reader.project) readable.push_back(id);
  }
  return readable;
}

absl::StatusOr<bool> MayRead(Database& db, const FolderReader& reader,
                             const std::vector<std::string>& paths) {
  const std::vector<std::string> jobs = JobsInPaths(paths);
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> readable, ReadableJobs(db, reader, jobs));
  return readable.size() == jobs.size();
}

}  // namespace sft::server
