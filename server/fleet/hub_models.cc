#include "server/fleet/hub_models.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/env.h"
#include "common/io/file.h"

namespace sft::server {
namespace {

// A submit waits for it.
constexpr std::chrono::seconds kPatience{4};
constexpr std::chrono::seconds kAnswerTime{5};
constexpr size_t kMaxConfig = 1 << 20;
constexpr size_t kMaxConfigs = 256;
constexpr int64_t kMaxHubToken = 4096;

}  // namespace

absl::StatusOr<hub::HttpClient*> HubModels::Client() {
  const MutexLock lock(mutex_);
  if (http_ == nullptr) {
    hub::HttpOptions options = hub::HttpOptionsOf(
        options_.ca_file, [](const std::string& name) { return GetEnv(name).value_or(""); });
    options.connect_timeout = options.stall_timeout = kAnswerTime;
    SFT_ASSIGN_OR_RETURN(http_, hub::MakeHttpClient(options));
  }
  return http_.get();
}

absl::StatusOr<HubModels::Found> HubModels::Ask(const hub::ModelName& name,
                                                const std::string& project) {
  if (options_.offline) return Unavailable("this server asks no hub (HF_HUB_OFFLINE)");
  SFT_ASSIGN_OR_RETURN(hub::HttpClient* const http, Client());
  SFT_ASSIGN_OR_RETURN(const std::string token, TokenOf(project));
  const hub::Hub hub({options_.endpoint, token, kPatience}, *http, clock_);
  Found found;
  SFT_ASSIGN_OR_RETURN(found.commit, hub.Resolve(name.id, name.revision, {}));
  const hub::ModelName pinned{name.id, found.commit};
  // Whether this project may read it is asked each time.
  SFT_RETURN_IF_ERROR(hub.Check(name.id, found.commit, "config.json", {}));
  if (auto known = ConfigOf(pinned)) {
    found.config_json = *std::move(known);
    return found;
  }
  SFT_ASSIGN_OR_RETURN(found.config_json,
                       hub.Read(name.id, found.commit, "config.json", kMaxConfig, {}));
  const MutexLock lock(mutex_);
  if (configs_.size() >= kMaxConfigs) configs_.clear();
  configs_[pinned.Text()] = found.config_json;
  return found;
}

std::optional<std::string> HubModels::ConfigOf(const hub::ModelName& name) const {
  const MutexLock lock(mutex_);
  const auto found = configs_.find(name.Text());
  return found == configs_.end() ? std::nullopt : std::make_optional(found->second);
}

absl::StatusOr<std::string> HubModels::TokenOf(const std::string& project) const {
  if (options_.token_dir.empty() || project.empty()) return options_.token;
  const auto token = io::ReadFile(options_.token_dir + "/" + project, kMaxHubToken);
  if (absl::IsNotFound(token.status())) return options_.token;
  if (!token.ok()) {
    return Internal(fmt::format("the hub token of project {} cannot be read: {}", project,
                                Message(token.status())));
  }
  return token;
}

bool HubModels::HasToken(const std::string& project) const {
  return !options_.token_dir.empty() && io::Exists(options_.token_dir + "/" + project);
}

absl::Status HubModels::CheckToken(const std::string& token) const {
  if (options_.token_dir.empty()) return FailedPrecondition("this server keeps no hub tokens");
  const bool plain =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; });
  if (plain && token.size() <= kMaxHubToken) return absl::OkStatus();
  return InvalidArgument(
      "what was given is no token of a model hub: it has no spaces and is short");
}

absl::Status HubModels::SetToken(const std::string& project, const std::string& token) {
  SFT_RETURN_IF_ERROR(CheckToken(token));
  const std::string path = options_.token_dir + "/" + project;
  if (token.empty()) return io::RemoveAll(path);
  SFT_RETURN_IF_ERROR(io::MakeDirs(options_.token_dir));
  return io::WriteFileAtomic(path, token, io::kPrivateMode);
}

}  // namespace sft::server
