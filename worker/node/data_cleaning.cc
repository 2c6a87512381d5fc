#include "worker/node/data_cleaning.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "common/io/file.h"
#include "worker/base/rank_user.h"
#include "worker/transfer/checked_file.h"

namespace sft::worker {
namespace {

constexpr std::chrono::hours kUnusedLimit{30 * 24}, kAnswersLimit{7 * 24};
constexpr std::chrono::minutes kMoment{10};

// A file that no attempt uses.
struct Unused {
  std::string path;
  WallTime used;
};

std::vector<std::string> NamesIn(const std::string& dir) {
  return io::ListDir(dir).value_or(std::vector<std::string>());
}

std::vector<Unused> FindUnused(const DataInUse& in_use, const NodeSetup& setup, WallTime now) {
  std::vector<Unused> unused;
  const auto add = [&](const std::string& path) {
    const std::optional<WallTime> used = LastUse(path);
    if (used && *used < now - kMoment) unused.push_back({path, *used});
  };
  for (const std::string& name : NamesIn(setup.data_dir + "/datasets")) {
    const std::string path = setup.data_dir + "/datasets/" + name;
    if (name.ends_with(kCheckedSuffix)) {  // removed together with its file
      if (!io::Exists(path.substr(0, path.size() - std::strlen(kCheckedSuffix)))) add(path);
      continue;
    }
    // Partial downloads too: "HASH.part".
    if (in_use.blobs.contains(name.substr(0, name.find('.')))) {
      MarkUsed(path);
    } else {
      add(path);
    }
  }
  for (const std::string& name : NamesIn(setup.data_dir + "/cache")) {
    const std::string path = setup.data_dir + "/cache/" + name;
    const std::optional<WallTime> used = LastUse(path);
    if (used && in_use.cache_since && *used >= *in_use.cache_since) continue;
    add(path);
  }
  std::sort(unused.begin(), unused.end(),
            [](const Unused& a, const Unused& b) { return a.used < b.used; });
  return unused;
}

// Answers of jobs that ended without delivering them, or are not started again.
absl::Status CleanAnswers(const NodeSetup& setup, WallTime now) {
  const RankRights rights(setup.rank_user);
  std::vector<std::string> dirs;
  const std::string own = setup.data_dir + "/checkpoints/";
  for (const std::string& job : NamesIn(own)) dirs.push_back(own + job + "/answers");
  if (setup.has_shared) {
    for (const std::string& job : NamesIn(setup.shared_dir)) {
      dirs.push_back(fmt::format("{}/{}/checkpoints/answers", setup.shared_dir, job));
    }
  }
  for (const std::string& dir : dirs) {
    std::optional<WallTime> newest;
    for (const std::string& folder : {dir, dir + "/answers.jsonl.parts"}) {
      for (const std::string& name : NamesIn(folder)) {
        newest = std::max(newest, LastUse(folder + "/" + name));
      }
    }
    if (!newest || *newest >= now - kAnswersLimit) continue;
    SFT_RETURN_IF_ERROR(io::RemoveAll(dir));
    spdlog::info("{} was removed: nothing was written to it for 7 days", dir);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<WallTime> LastUse(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  return WallTime(std::chrono::seconds(info.st_mtim.tv_sec) + Nanos(info.st_mtim.tv_nsec));
}

absl::Status CleanData(const DataInUse& in_use, const NodeSetup& setup, WallTime now,
                       const std::function<absl::StatusOr<io::DiskSpace>()>& space) {
  SFT_RETURN_IF_ERROR(CleanAnswers(setup, now));
  for (const Unused& file : FindUnused(in_use, setup, now)) {
    const bool old = file.used < now - kUnusedLimit;
    if (!old) {
      SFT_ASSIGN_OR_RETURN(const io::DiskSpace left, space());
      // The remaining files were used later.
      if (io::LevelOf(left, setup.disk_marks) == io::DiskLevel::kOk) break;
    }
    SFT_RETURN_IF_ERROR(io::RemoveAll(file.path));
    SFT_RETURN_IF_ERROR(io::RemoveAll(file.path + kCheckedSuffix));
    spdlog::info("{} was removed: {}", file.path,
                 old ? "not used for 30 days" : "the disk has little room, and no attempt uses it");
  }
  return absl::OkStatus();
}

}  // namespace sft::worker
