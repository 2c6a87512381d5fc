#include "worker/node/removed_models.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/io/file.h"
#include "common/io/paths.h"
#include "worker/channel/work_folder.h"

namespace sft::worker {

absl::Status RemoveModels(const v1::Desired& desired, const std::set<std::string>& live_jobs,
                          const NodeSetup& setup) {
  constexpr std::string_view kModel = "/model";
  const RankRights rights(setup.rank_user);
  const std::string root = setup.shared_dir + "/";
  for (const std::string& path : desired.removed_models()) {
    const bool below = path.starts_with(root) && path.ends_with(kModel) &&
                       path.size() > root.size() + kModel.size();
    const std::string job =
        below ? path.substr(root.size(), path.size() - root.size() - kModel.size()) : "";
    if (!io::IsSafeRelative(job) || job.find('/') != job.npos) {
      spdlog::error("the server names \"{}\" as a removed model: ignored", path);
      continue;
    }
    if (live_jobs.contains(job)) continue;
    // An export that was killed leaves what it worked on.
    SFT_RETURN_IF_ERROR(io::RemoveAll(channel::WorkFolder(path)));
    if (!io::Exists(path)) continue;
    SFT_RETURN_IF_ERROR(io::RemoveAll(path));
    spdlog::info("the model of job {} was removed", job);
  }
  return absl::OkStatus();
}

}  // namespace sft::worker
