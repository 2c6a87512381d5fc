#include "worker/base/job_folders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "common/base/ids.h"
#include "common/io/paths.h"

namespace sft::worker {
namespace {

namespace fs = std::filesystem;

std::string Real(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::canonical(path, error);
  return error ? "" : real.string();
}

bool IsBelow(const std::string& path, const std::string& folder) {
  return !folder.empty() && (path == folder || path.starts_with(folder + "/"));
}

// True for attempts, checkpoints and data sets of any job, but not for a folder that the operator
// put below the data folder for jobs to read.
bool IsWorkersOwn(const std::string& real, const NodeSetup& setup) {
  const std::string own = Real(setup.data_dir);
  if (!IsBelow(real, own)) return false;
  const auto holds = [&](const std::string& each) {
    const std::string root = Real(each);
    return root != own && IsBelow(root, own) && IsBelow(real, root);
  };
  return !holds(setup.shared_dir) && std::ranges::none_of(setup.roots, holds) &&
         std::ranges::none_of(setup.model_dirs, holds) &&
         std::ranges::none_of(setup.hub_dirs, holds);
}

absl::Status Check(const std::string& real, const std::string& name, const v1::JobFolders& folders,
                   const std::string& own_id, const NodeSetup& setup) {
  const auto& named = folders.jobs();
  bool allowed = !IsWorkersOwn(real, setup);
  for (const std::string& id : IdsInPath("job", real)) {
    allowed = allowed && (id == own_id || std::find(named.begin(), named.end(), id) != named.end());
  }
  if (allowed) return absl::OkStatus();
  return ErrnoStatus(fmt::format("cannot open {}", name), ENOENT);
}

}  // namespace

absl::Status CheckJobFolders(const std::string& real, const std::string& name,
                             const v1::Dispatch& dispatch, const NodeSetup& setup) {
  if (!dispatch.has_folders()) return absl::OkStatus();  // a server of the previous version
  return Check(real, name, dispatch.folders(), dispatch.job_id(), setup);
}

absl::Status CheckFetchFolders(const std::string& real, const v1::FetchFile& request,
                               const NodeSetup& setup) {
  if (!request.has_folders()) return absl::OkStatus();  // a server of the previous version
  return Check(real, request.path(), request.folders(), "", setup);
}

absl::StatusOr<std::string> ResolveForJob(const std::string& path, const v1::Dispatch& dispatch,
                                          const NodeSetup& setup) {
  SFT_ASSIGN_OR_RETURN(std::string real, io::ResolveBelow(path, setup.roots));
  SFT_RETURN_IF_ERROR(CheckJobFolders(real, path, dispatch, setup));
  return real;
}

}  // namespace sft::worker
