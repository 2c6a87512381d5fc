#include "worker/daemon/hub_options.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "common/base/env.h"
#include "common/hub/hub_access.h"
#include "common/hub/model_name.h"
#include "common/io/disk_space.h"
#include "common/io/file.h"
#include "worker/daemon/app.h"

namespace sft::worker {
namespace {

std::atomic<bool> pull_stopped = false;

std::string Env(const std::string& name) { return GetEnv(name).value_or(""); }

// By the mode of the folder, as the kernel reads it.
bool MayEnter(const std::string& dir, const RankUser& user) {
  struct stat info {};
  if (stat(dir.c_str(), &info) != 0) return false;
  const auto has = [&](gid_t gid) { return gid == info.st_gid; };
  const int shift =
      info.st_uid == user.uid                                                               ? 6
      : user.gid == info.st_gid || std::any_of(user.groups.begin(), user.groups.end(), has) ? 3
                                                                                            : 0;
  return ((info.st_mode >> shift) & 05) == 05;
}

// Opens the downloaded folder for the user that ranks run as, and for nobody else.
absl::Status LetRanksReadModel(const std::string& folder, const RankUser& user) {
  namespace fs = std::filesystem;
  const auto enter = [&](const std::string& dir) {
    const io::UniqueFd fd(open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd.valid() && fchown(fd.get(), static_cast<uid_t>(-1), user.gid) == 0 &&
        fchmod(fd.get(), 0750) == 0) {
      return absl::OkStatus();
    }
    return ErrnoStatus(fmt::format("cannot let ranks into {}", dir), errno);
  };
  const std::string cache = folder.substr(0, folder.rfind('/'));
  if (!MayEnter(cache, user)) SFT_RETURN_IF_ERROR(enter(cache));
  SFT_RETURN_IF_ERROR(enter(folder));
  std::error_code error;
  for (fs::recursive_directory_iterator each(folder, error), end; !error && each != end;
       each.increment(error)) {
    if (each->is_symlink(error)) continue;
    const std::string path = each->path().string();
    SFT_RETURN_IF_ERROR(each->is_directory(error) ? enter(path)
                                                  : LetRanksRead(path, std::optional(user)));
  }
  if (error) return ErrnoStatus(fmt::format("cannot read {}", folder), error.value());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int64_t> ParseCacheLimit(const std::string& text) {
  if (text.empty()) return 0;
  const absl::StatusOr<io::DiskMark> mark = io::ParseDiskMark(text);
  if (!mark.ok() || mark->share > 0 || mark->bytes <= 0) {
    return InvalidArgument(fmt::format("\"{}\" is no size such as 500GB or 2TB", text));
  }
  return mark->bytes;
}

namespace {

absl::StatusOr<HubSetup> MakeHubSetup(const Options& options) {
  HubSetup setup;
  // What the environment says for other programs matters only where something is downloaded.
  if (options.model_cache.empty() && options.hub.empty()) return setup;
  if (!options.model_cache.empty()) {
    std::error_code error;
    setup.cache_dir = std::filesystem::absolute(options.model_cache, error).lexically_normal();
    while (setup.cache_dir.size() > 1 && setup.cache_dir.ends_with('/')) setup.cache_dir.pop_back();
  }
  SFT_ASSIGN_OR_RETURN(setup.cache_limit, ParseCacheLimit(options.model_cache_limit));
  SFT_ASSIGN_OR_RETURN(const hub::HubAccess access,
                       hub::HubAccessOf(options.hub, options.hub_token_file, options.hub_ca, Env));
  setup.endpoint = access.endpoint;
  setup.token = access.token;
  setup.ca_file = access.ca_file;
  setup.offline = access.offline;
  // What the node's worker runs is not known here.
  setup.makes_room = options.pull.empty();
  return setup;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelStore>> OpenModelStore(const Options& options,
                                                           const NodeSetup& setup, Clock& clock) {
  SFT_ASSIGN_OR_RETURN(const HubSetup hub, MakeHubSetup(options));
  if (!hub.cache_dir.empty()) SFT_RETURN_IF_ERROR(io::MakeDirs(hub.cache_dir));
  ModelStore::Reserve reserve;
  reserve.environment = Env;
  reserve.keep_free = [marks = setup.disk_marks, dir = hub.cache_dir] {
    const absl::StatusOr<io::DiskSpace> space = io::SpaceOf(dir);
    return space.ok() ? marks.full.Of(*space) : int64_t{0};
  };
  SFT_ASSIGN_OR_RETURN(auto store, ModelStore::Open(hub, std::move(reserve), clock));
  if (setup.rank_user) {
    store->SetPublish([user = *setup.rank_user](const std::string& folder) {
      return LetRanksReadModel(folder, user);
    });
  }
  return store;
}

void CheckHub(const Options& options, obs::CheckReport& report) {
  if (options.model_cache.empty()) return;
  const auto look = [&]() -> absl::StatusOr<std::string> {
    SFT_ASSIGN_OR_RETURN(const HubSetup setup, MakeHubSetup(options));
    if (setup.offline) return std::string("HF_HUB_OFFLINE is set: nothing is downloaded");
    SFT_ASSIGN_OR_RETURN(const std::unique_ptr<hub::HttpClient> http,
                         hub::MakeHttpClient(hub::HttpOptionsOf(setup.ca_file, Env)));
    const hub::Hub hub({setup.endpoint, setup.token}, *http, Clock::Real());
    SFT_ASSIGN_OR_RETURN(const std::string owner, hub.Greet({}));
    return fmt::format(
        "{} answers{}", setup.endpoint,
        setup.token.empty() ? ", without a token" : ", and takes the token of " + owner);
  };
  const absl::StatusOr<std::string> found = look();
  report.Take("model hub", found.status(), found.ok() ? *found : "",
              "--hub or HF_ENDPOINT is its address, HTTPS_PROXY the way to it, --hub-ca the "
              "authorities that vouch for it, --hub-token-file the token");
}

int RunPull(const Options& options) {
  const auto fail = [](const absl::Status& status) {
    fprintf(stderr, "sft-worker: %s\n", std::string(Message(status)).c_str());
    return absl::IsInvalidArgument(status) ? 2 : 1;
  };
  const auto name = hub::ParseModelName(options.pull);
  if (!name) {
    return fail(InvalidArgument(
        fmt::format("\"{}\" is neither org/name nor org/name@revision", options.pull)));
  }
  if (options.model_cache.empty()) {
    return fail(InvalidArgument("give --model-cache FOLDER: where the model shall go"));
  }
  const absl::StatusOr<std::string> program = OwnProgram();
  if (!program.ok()) return fail(program.status());
  const absl::StatusOr<NodeSetup> setup = MakeSetup(options, *program);
  if (!setup.ok()) return fail(setup.status());
  const auto store = OpenModelStore(options, *setup, Clock::Real());
  if (!store.ok()) return fail(store.status());
  signal(SIGINT, [](int) { pull_stopped = true; });
  const absl::StatusOr<PulledModel> pulled = (*store)->Fetch(
      *name, "", [] { return pull_stopped.load(); },
      [](const std::string& text) { fprintf(stderr, "%s\n", text.c_str()); });
  if (!pulled.ok()) return fail(pulled.status());
  printf("%s@%s\n%s\n", name->id.c_str(), pulled->commit.c_str(), pulled->snapshot_dir.c_str());
  return 0;
}

}  // namespace sft::worker
