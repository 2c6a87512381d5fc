#include "client/base/login.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "common/base/env.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/rpc/endpoint.h"

namespace sft::client {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxFile = 1 << 20;

// Returns an empty object when there is no file.
absl::StatusOr<Json> ReadAll() {
  const absl::StatusOr<std::string> path = LoginPath();
  if (!path.ok() || !io::Exists(*path)) return Json::object();
  struct stat info {};
  if (::stat(path->c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    return FailedPrecondition(
        fmt::format("{} may be read by others, and it holds tokens: `chmod 600 {}`", *path, *path));
  }
  SFT_ASSIGN_OR_RETURN(const std::string text, io::ReadFile(*path, kMaxFile));
  Json all = ParseOrderedJson(text);
  if (all.is_object()) return all;
  return InvalidArgument(
      fmt::format("{} cannot be read: remove it and log in again (`sftctl login`)", *path));
}

std::string Text(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

absl::StatusOr<std::string> LoginPath() {
  const std::optional<std::string> config_home = GetEnv("XDG_CONFIG_HOME");
  const std::optional<std::string> home = GetEnv("HOME");
  if (!config_home && !home) return NotFound("neither HOME nor XDG_CONFIG_HOME is set");
  return (config_home ? *config_home : *home + "/.config") + "/sft/credentials.json";
}

absl::StatusOr<std::string> LastServer() {
  SFT_ASSIGN_OR_RETURN(const Json all, ReadAll());
  return Text(all, "server");
}

absl::StatusOr<rpc::Security> SecurityOf(const std::string& server) {
  SFT_ASSIGN_OR_RETURN(const Json all, ReadAll());
  rpc::Security security;
  if (const auto servers = all.find("servers"); servers != all.end() && servers->is_object()) {
    if (const auto kept = servers->find(server); kept != servers->end()) {
      security.authority_pem = Text(*kept, "authority");
      security.token = Text(*kept, "token");
    }
  }
  if (const auto file = GetEnv("SFT_CA"); file.has_value() && !file->empty()) {
    absl::StatusOr<std::string> pem = io::ReadFile(*file, kMaxFile);
    if (!pem.ok()) return Annotate(InvalidArgument(Message(pem.status())), "SFT_CA");
    security.authority_pem = *std::move(pem);
  }
  if (const auto token = GetEnv("SFT_TOKEN"); token.has_value() && !token->empty()) {
    security.token = *token;
  }
  SFT_ASSIGN_OR_RETURN(const rpc::Endpoint endpoint, rpc::ParseEndpoint(server));
  if (!security.authority_pem.empty() || rpc::IsLoopback(endpoint.host)) return security;
  return FailedPrecondition(fmt::format(
      "the server {} is not on this machine and not known here: log in to it first (`sftctl login "
      "{}`), or give its authority's certificate and a token (SFT_CA=FILE, SFT_TOKEN)",
      server, server));
}

absl::Status KeepLogin(const Login& login) {
  SFT_ASSIGN_OR_RETURN(const std::string path, LoginPath());
  SFT_ASSIGN_OR_RETURN(Json all, ReadAll());
  all["server"] = login.server;
  all["servers"][login.server] = {{"authority", login.security.authority_pem},
                                  {"token", login.security.token}};
  SFT_RETURN_IF_ERROR(io::MakeDirs(path.substr(0, path.rfind('/'))));
  return io::WriteFileAtomic(path, DumpJson(all, 2) + "\n", io::kPrivateMode);
}

}  // namespace sft::client
