#include "worker/shipping/artifact.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/utf8.h"
#include "common/io/file.h"
#include "worker/shipping/event_file.h"
#include "worker/transfer/blob_file.h"

namespace sft::worker {
namespace {

constexpr int kMaxDepth = 8;

// Relative paths of the regular files below `root`/`prefix`.
absl::Status Collect(const std::string& root, const std::string& prefix, int depth,
                     std::vector<std::string>& files) {
  if (depth > kMaxDepth) return InvalidArgument("the artifact's folders are nested too deep");
  SFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, io::ListDir(root + "/" + prefix));
  for (const std::string& name : names) {
    const std::string relative = prefix + name;
    struct stat info {};
    if (lstat((root + "/" + relative).c_str(), &info) != 0)
      return ErrnoStatus("cannot read " + relative, errno);
    if (S_ISDIR(info.st_mode)) {
      SFT_RETURN_IF_ERROR(Collect(root, relative + "/", depth + 1, files));
    } else if (S_ISREG(info.st_mode)) {
      files.push_back(relative);
    } else {
      return InvalidArgument(
          fmt::format("{} in the artifact is neither a file nor a folder", relative));
    }
    if (files.size() > kMaxArtifactFiles) return InvalidArgument("the artifact has too many files");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<channel::ArtifactEvent> FindArtifact(const std::string& attempt_dir,
                                                    const std::optional<RankUser>& rank_user) {
  const RankRights rights(rank_user);
  absl::StatusOr<channel::ArtifactEvent> found =
      NotFound("rank 0 ended without delivering anything");
  SFT_RETURN_IF_ERROR(
      ReadEventFile(attempt_dir + "/rank-0.events", [&](const channel::Event& event) {
        if (const auto* artifact = std::get_if<channel::ArtifactEvent>(&event.body)) {
          found = *artifact;
        }
      }));
  if (!found.ok()) return found;
  // The folder is compared with the launch file, because a rank could report any folder.
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(attempt_dir + "/launch.json"));
  const auto launch = ParseJson(text);
  const auto output = launch.is_object() ? launch.find("output_dir") : launch.end();
  if (output == launch.end() || *output != found->path) {
    return InvalidArgument(
        fmt::format("rank 0 names {} as what it delivers, which is not the folder it was given",
                    ToUtf8(found->path)));
  }
  return found;
}

absl::Status DeliverArtifact(const channel::ArtifactEvent& artifact, const std::string& attempt_uid,
                             int64_t epoch, const std::string& node, ServerApi& server,
                             const StopCheck& stop, const std::optional<RankUser>& rank_user) {
  std::vector<std::string> files;
  {
    const RankRights rights(rank_user);
    SFT_RETURN_IF_ERROR(Collect(artifact.path, "", 0, files));
  }
  if (files.empty()) return NotFound(fmt::format("nothing was delivered in {}", artifact.path));
  v1::CommitArtifactRequest request;
  request.set_attempt_uid(attempt_uid);
  request.set_epoch(epoch);
  request.set_kind(artifact.kind);
  request.set_node(node);
  if (artifact.kind == "model") request.set_node_path(artifact.path);
  for (const std::string& relative : files) {
    if (stop()) return Aborted("the delivery was stopped");
    SFT_ASSIGN_OR_RETURN(BlobFile file,
                         MakeBlobFile(artifact.path + "/" + relative, relative, rank_user, stop));
    file.attempt_uid = attempt_uid;
    file.node = node;
    if (artifact.kind != "model") SFT_RETURN_IF_ERROR(server.UploadArtifact(file, stop));
    *request.add_files() = ToArtifactFile(file, relative);
  }
  return server.CommitArtifact(request);
}

}  // namespace sft::worker
