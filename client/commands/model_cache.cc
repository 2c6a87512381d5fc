#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "client/commands/commands.h"
#include "client/commands/model_list.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr std::chrono::seconds kLookAtDownloads{1};
// A node tells of its last failure until the new try has begun.
constexpr std::chrono::seconds kOldNews{8};

struct ModelCacheOptions {
  std::string model;
  std::vector<std::string> nodes;
  std::string project;
  bool no_wait = false;
};

// What the nodes say of the model: those that have it, and the downloads.
struct ModelOnNodes {
  std::set<std::string> has;
  std::map<std::string, v1::ModelDownload> downloads;
};

absl::StatusOr<ModelOnNodes> LookAtModel(Connection& connection, const std::string& id,
                                         const std::string& commit) {
  SFT_ASSIGN_OR_RETURN(const std::vector<v1::NodeModel> models, AllModels(connection));
  ModelOnNodes found;
  for (const v1::NodeModel& each : models) {
    if (each.has_download() && each.download().id() == id) {
      found.downloads[ShortName(each.node())] = each.download();
    }
    const bool same = each.model().id() == id || each.model().id().starts_with(id + "@");
    if (each.has_download() || !same || !each.model().problem().empty()) continue;
    // Without a commit, as of a server that asks no hub: any.
    const std::string& path = each.model().path();
    const bool it = commit.empty() ? path.find("/snapshots/") != std::string::npos
                                   : path.ends_with("/snapshots/" + commit);
    if (it) found.has.insert(ShortName(each.node()));
  }
  return found;
}

// Waits for all nodes, and prints what changes.
ExitCode WaitForDownloads(Connection& connection, const v1::PullModelResponse& pulled,
                          const std::map<std::string, v1::ModelDownload>& before) {
  const size_t at = pulled.model().find('@');
  const std::string id = pulled.model().substr(0, at);
  const std::string commit = at == std::string::npos ? "" : pulled.model().substr(at + 1);
  const MonoTime begin = connection.clock().Mono();
  std::map<std::string, std::string> told;
  std::set<std::string> left;
  for (const std::string& node : pulled.nodes()) left.insert(ShortName(node));
  bool failed = false;
  while (true) {
    const auto now = LookAtModel(connection, id, commit);
    if (!now.ok()) return Fail(connection, now.status());
    for (const std::string& node : std::set<std::string>(left)) {
      const auto found = now->downloads.find(node);
      std::string text = found == now->downloads.end() ? "" : found->second.text();
      if (now->has.contains(node)) {
        text = fmt::format("has {}", pulled.model());
        left.erase(node);
      } else if (found != now->downloads.end() && !found->second.problem().empty()) {
        const auto old = before.find(node);
        const bool is_old = old != before.end() &&
                            old->second.problem() == found->second.problem() &&
                            connection.clock().Mono() - begin < kOldNews;
        if (is_old) continue;
        text = "failed: " + found->second.problem();
        left.erase(node);
        failed = true;
      }
      if (text.empty() || text == told[node]) continue;
      told[node] = text;
      connection.console().err << fmt::format("{}: {}\n", node, OneLine(text));
    }
    if (left.empty()) break;
    connection.clock().Sleep(kLookAtDownloads);
  }
  return failed ? kInternal : kSucceeded;
}

ExitCode PullModels(Connection& connection, const ModelCacheOptions& options, bool json) {
  std::map<std::string, v1::ModelDownload> before;
  const auto now = LookAtModel(connection, options.model.substr(0, options.model.find('@')), "");
  if (now.ok()) before = now->downloads;
  v1::PullModelRequest request;
  request.set_model(options.model);
  for (const std::string& node : options.nodes) request.add_nodes(node);
  request.set_project(options.project);
  const auto pulled = connection.Call(&v1::ClusterService::Stub::PullModel, request);
  if (!pulled.ok()) return Fail(connection, pulled.status());
  const ExitCode code =
      options.no_wait ? kSucceeded : WaitForDownloads(connection, *pulled, before);
  Json nodes = Json::array();
  for (const std::string& node : pulled->nodes()) nodes.push_back(ShortName(node));
  if (json) {
    connection.console().out << DumpJson(Json{{"model", pulled->model()}, {"nodes", nodes}}, 2)
                             << "\n";
  } else {
    connection.console().out << OneLine(pulled->model()) << "\n";
  }
  return code;
}

ExitCode RemoveModels(Connection& connection, const ModelCacheOptions& options, bool json) {
  v1::RemoveModelRequest request;
  request.set_model(options.model);
  for (const std::string& node : options.nodes) request.add_nodes(node);
  const auto told = connection.Call(&v1::ClusterService::Stub::RemoveModel, request);
  if (!told.ok()) return Fail(connection, told.status());
  Json nodes = Json::array();
  for (const std::string& node : told->nodes()) {
    nodes.push_back(ShortName(node));
    if (!json) {
      connection.console().out << fmt::format("{} is told to remove {}\n", ShortName(node),
                                              options.model);
    }
  }
  if (json) {
    connection.console().out << DumpJson(Json{{"model", options.model}, {"nodes", nodes}}, 2)
                             << "\n";
  }
  return kSucceeded;
}

}  // namespace

void AddModelCache(Command& models, Session& session) {
  Command* pull = models.AddCommand(
      "pull",
      "Download a model of the hub into the model caches of nodes, and wait until it is there",
      "sftctl models pull Qwen/Qwen3-8B --node gpu-07");
  auto options = std::make_shared<ModelCacheOptions>();
  pull->AddOption("MODEL", options->model, "org/name or org/name@revision")->Required();
  pull->AddOption("--node", options->nodes,
                  "Only on this node; may be given several times (default: all that download "
                  "models)");
  pull->AddOption("--project", options->project,
                  "Project whose token is used (default: the server's token)");
  pull->AddFlag("--no-wait", options->no_wait,
                "Return at once; `sftctl models` shows how far it is");
  AddJsonFlag(pull, session);
  pull->Run([&session, options](Connection& connection) {
    return PullModels(connection, *options, session.json);
  });
  Command* remove = models.AddCommand(
      "rm",
      "Remove a model, in all its revisions, from the model caches of nodes; where a job uses it, "
      "it stays",
      "sftctl models rm Qwen/Qwen3-8B --node gpu-07");
  auto removed = std::make_shared<ModelCacheOptions>();
  remove->AddOption("MODEL", removed->model, "org/name")->Required();
  remove->AddOption("--node", removed->nodes,
                    "Only on this node; may be given several times (default: all that download "
                    "models)");
  AddJsonFlag(remove, session);
  remove->Run([&session, removed](Connection& connection) {
    return RemoveModels(connection, *removed, session.json);
  });
}

}  // namespace sft::client
