#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/bytes.h"
#include "common/base/env.h"
#include "common/base/status.h"
#include "common/base/version.h"
#include "common/obs/check_report.h"
#include "common/rpc/version.h"
#include "common/spec/fields.h"
#include "common/spec/value.h"
#include "sft/v1/auth_service.grpc.pb.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/storage_service.grpc.pb.h"

// `sftctl doctor`: what stands between a person and a job that runs, in one page.

namespace sft::client {
namespace {

using obs::CheckReport;

constexpr double kClockWarnSeconds = 2, kClockFailSeconds = 300, kDay = 86'400;
// Lines of one kind; the rest is counted.
constexpr size_t kMostLines = 8;

class Doctor {
 public:
  Doctor(Connection& connection, std::string project)
      : connection_(connection), project_(std::move(project)) {}

  ExitCode Run(bool json) {
    report_.Ok("sftctl", fmt::format("{} (protocol {})", kVersion, kProtocol));
    CheckTransport();
    const bool reached = CheckServer();
    if (reached) {
      CheckIdentity();
      CheckNodes();
      CheckModels();
      CheckStorage();
    }
    CheckVariables();
    connection_.console().out << (json ? PrintedJson(report_.Json()) : Lines(report_.Text()));
    if (report_.ExitCode() == 0) return kSucceeded;
    return unreachable_ ? kUnreachable : kRefused;
  }

 private:
  void CheckTransport();
  bool CheckServer();
  void CheckClock(double apart);
  void CheckIdentity();
  void CheckProject(const v1::User& user);
  void CheckNodes();
  void CheckNode(const v1::Node& node, std::vector<std::string>* remarks) const;
  void CheckSlots(const std::vector<v1::Node>& nodes);
  void CheckHub(const std::vector<v1::Node>& nodes);
  void CheckModels();
  void CheckStorage();
  void CheckVariables();
  void CheckVariable(const std::string& name, const std::string& value);
  void WarnEach(std::string_view name, const std::vector<std::string>& remarks,
                const std::string& advice);

  Connection& connection_;
  const std::string project_;
  bool unreachable_ = false;
  CheckReport report_;
};

void Doctor::WarnEach(std::string_view name, const std::vector<std::string>& remarks,
                      const std::string& advice) {
  for (size_t i = 0; i < std::min(remarks.size(), kMostLines); ++i) {
    const bool last = i + 1 == std::min(remarks.size(), kMostLines);
    report_.Warn(name, remarks[i], last ? advice : "");
  }
  if (remarks.size() > kMostLines) {
    report_.Warn(name, fmt::format("and {} more", remarks.size() - kMostLines), "");
  }
}

void Doctor::CheckTransport() {
  const std::string& server = connection_.server();
  report_.Ok("address", fmt::format("{} (from {})", server, connection_.origin()));
  if (!connection_.usable().ok()) {
    report_.Fail("login", std::string(Message(connection_.usable())),
                 fmt::format("sftctl login {}", server));
  } else if (connection_.secured()) {
    report_.Ok("login", "TLS with the authority of the login (or SFT_CA), and its token");
  } else {
    report_.Ok("login", "none: without TLS, as on the server's own machine");
  }
  for (const char* name : {"grpc_proxy", "https_proxy", "http_proxy"}) {
    const std::string proxy = GetEnv(name).value_or("");
    if (proxy.empty()) continue;
    report_.Warn("proxy", fmt::format("{} is set: calls go through that proxy", name),
                 "add the server's host to no_proxy if it is to be reached directly");
    break;
  }
}

bool Doctor::CheckServer() {
  if (!connection_.usable().ok()) return false;
  v1::GetServerInfoRequest request;
  request.set_client_version(kVersion);
  request.set_client_protocol(kProtocol);
  const int64_t before = UnixMicros(connection_.clock().Wall());
  const auto info = connection_.Call(&v1::ClusterService::Stub::GetServerInfo, request);
  const int64_t after = UnixMicros(connection_.clock().Wall());
  if (!info.ok()) {
    unreachable_ = ExitCodeOf(info.status()) == kUnreachable;
    report_.Fail("server", std::string(Message(info.status())), "");
    return false;
  }
  const absl::Status speaks =
      rpc::CheckServerProtocol(info->protocol(), info->min_protocol(), info->version());
  const std::string text = fmt::format(
      "sft-server {} (protocol {}){}, answered in {:.1f} ms", info->version(), info->protocol(),
      info->dev() ? ", for development" : "", static_cast<double>(after - before) / 1e3);
  if (speaks.ok() && info->version() != kVersion) {
    report_.Warn("server", text, "versions differ and work together; upgrade the server first");
  } else {
    report_.Take("server", speaks, text, "upgrade the older side: the server first");
  }
  if (info->time_us() != 0) {
    CheckClock((static_cast<double>(before) / 2 + static_cast<double>(after) / 2 -
                static_cast<double>(info->time_us())) /
               1e6);
  }
  return speaks.ok();
}

void Doctor::CheckClock(double apart) {
  const std::string text = fmt::format("{:+.3f} s from the server's", apart);
  const char* advice = "let chrony or systemd-timesyncd keep both clocks";
  if (std::abs(apart) >= kClockFailSeconds) {
    report_.Fail("clock", text, advice);
  } else if (std::abs(apart) >= kClockWarnSeconds) {
    report_.Warn("clock", text, advice);
  } else {
    report_.Ok("clock", text);
  }
}

void Doctor::CheckIdentity() {
  const auto identity = connection_.Call(&v1::AuthService::Stub::WhoAmI, v1::WhoAmIRequest());
  if (!identity.ok()) {
    report_.Fail("user", std::string(Message(identity.status())),
                 fmt::format("sftctl login {}", connection_.server()));
    return;
  }
  std::string text = identity->user().name();
  if (identity->user().admin()) text += ", admin";
  if (identity->token_id().empty()) {
    report_.Ok("user", text + ", without a token");
  } else if (!identity->has_expire_time()) {
    report_.Ok("user", fmt::format("{}, token {} without an end", text, identity->token_id()));
  } else {
    const double left = Seconds(identity->expire_time()) - Seconds(identity->server_time());
    text +=
        fmt::format(", token {} for {} more", identity->token_id(), sft::client::Duration(left));
    if (left < 7 * kDay) {
      report_.Warn("user", text, "an admin makes a new one: `sftctl admin token create`");
    } else {
      report_.Ok("user", text);
    }
  }
  CheckProject(identity->user());
}

void Doctor::CheckProject(const v1::User& user) {
  const std::string from = GetEnv("SFT_PROJECT").value_or("").empty() ? "" : " (SFT_PROJECT)";
  const std::string named =
      project_.empty() ? std::string("the server's default project") : project_ + from;
  if (user.admin()) return report_.Ok("project", named);
  std::vector<std::string> roles;
  bool submits = false, fits = project_.empty() && user.roles_size() == 1;
  for (const v1::ProjectRole& role : user.roles()) {
    const bool submitter = role.role() == v1::SUBMITTER;
    roles.push_back(fmt::format("{} in {}", submitter ? "submitter" : "viewer", role.project()));
    if (!fits && role.project() != project_) continue;
    fits = true;
    submits = submits || submitter;
  }
  const char* advice = "choose one with --project or SFT_PROJECT, or ask an admin for a role";
  const std::string text = fmt::format("{}; you are {}", named, fmt::join(roles, ", "));
  if (roles.empty()) {
    report_.Fail("project", "you have no role in any project", "ask an admin for a role");
  } else if (!fits) {
    report_.Fail("project", text, advice);
  } else if (!submits) {
    report_.Warn("project", text + ": you may look, and not submit", advice);
  } else {
    report_.Ok("project", text);
  }
}

void Doctor::CheckNode(const v1::Node& node, std::vector<std::string>* remarks) const {
  const auto remark = [&](const std::string& text) {
    if (!text.empty()) remarks->push_back(ShortName(node.name()) + ": " + text);
  };
  if (node.state() == v1::Node::SUSPECT) remark("silent: " + node.reason());
  if (node.has_hold()) {
    remark(fmt::format("{} by {}: {}",
                       node.hold().mode() == v1::NodeHold::DRAIN ? "drained" : "cordoned",
                       node.hold().who(), node.hold().reason()));
  }
  remark(node.unusable());
  remark(node.left_out());
  remark(node.rival());
  if (node.disk().level() >= v1::NodeDisk::LOW) {
    remark(fmt::format("disk: {} of {} free", BytesText(node.disk().free_bytes()),
                       BytesText(node.disk().total_bytes())));
  }
  if (std::abs(node.clock_offset_seconds()) >= kClockWarnSeconds) {
    remark(fmt::format("clock: {:+.1f} s from the server's", node.clock_offset_seconds()));
  }
  for (const v1::Slot& slot : node.slots()) {
    if (slot.healthy()) continue;
    remark(fmt::format("{} {}: {}", slot.gpu_type(), slot.index(), slot.health_reason()));
  }
}

void Doctor::CheckNodes() {
  std::vector<v1::Node> nodes;
  v1::ListNodesRequest request;
  std::string warning;
  do {
    const auto page = connection_.Call(&v1::ClusterService::Stub::ListNodes, request);
    if (!page.ok()) return report_.Fail("nodes", std::string(Message(page.status())), "");
    nodes.insert(nodes.end(), page->nodes().begin(), page->nodes().end());
    warning = page->warning();
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  if (!warning.empty()) {
    report_.Warn("server disk", warning, "`sftctl storage` shows what takes the room");
  }
  const auto up = std::count_if(nodes.begin(), nodes.end(),
                                [](const v1::Node& node) { return node.state() == v1::Node::UP; });
  const std::string text = fmt::format("{} of {} connected", up, nodes.size());
  if (up == 0) {
    report_.Fail("nodes", nodes.empty() ? "none has ever connected" : text,
                 "start sft-worker on a node (docs/operations.md); `sft-worker check` says what "
                 "keeps it back");
  } else {
    report_.Ok("nodes", text);
  }
  std::vector<std::string> remarks;
  for (const v1::Node& node : nodes) CheckNode(node, &remarks);
  WarnEach("node", remarks, "`sftctl nodes` and `sft-worker check` on the node say more");
  CheckSlots(nodes);
  CheckHub(nodes);
}

void Doctor::CheckSlots(const std::vector<v1::Node>& nodes) {
  struct Count {
    int all = 0, free = 0, unhealthy = 0;
  };
  std::map<std::string, Count> types;
  for (const v1::Node& node : nodes) {
    if (node.state() != v1::Node::UP) continue;
    for (const v1::Slot& slot : node.slots()) {
      Count& count = types[slot.gpu_type() + (node.simulated() ? " (simulated)" : "")];
      ++count.all;
      count.unhealthy += slot.healthy() ? 0 : 1;
      count.free += slot.healthy() && slot.job().empty() ? 1 : 0;
    }
  }
  for (const auto& [type, count] : types) {
    const std::string text =
        fmt::format("{} {}, {} free{}", count.all, type, count.free,
                    count.unhealthy == 0 ? "" : fmt::format(", {} unhealthy", count.unhealthy));
    if (count.unhealthy == count.all) {
      report_.Fail("slots", text, "`sftctl nodes` says what is wrong with each");
    } else {
      report_.Ok("slots", text);
    }
  }
}

void Doctor::CheckHub(const std::vector<v1::Node>& nodes) {
  std::map<std::string, int> hubs;
  for (const v1::Node& node : nodes) {
    const std::string& endpoint = node.facts().hub().endpoint();
    if (node.state() == v1::Node::UP && !endpoint.empty()) ++hubs[endpoint];
  }
  if (hubs.empty() && !nodes.empty()) {
    report_.Ok("hub",
               "no node downloads models (sft-worker --model-cache): jobs use those that "
               "lie on nodes");
  }
  for (const auto& [endpoint, count] : hubs) {
    report_.Ok("hub", fmt::format("{} of {} nodes download models from {}", count, nodes.size(),
                                  endpoint));
  }
}

void Doctor::CheckModels() {
  std::set<std::string> usable;
  std::vector<std::string> remarks;
  v1::ListModelsRequest request;
  do {
    const auto page = connection_.Call(&v1::ClusterService::Stub::ListModels, request);
    if (!page.ok()) return report_.Fail("models", std::string(Message(page.status())), "");
    for (const v1::NodeModel& each : page->models()) {
      const std::string& problem =
          each.has_download() ? each.download().problem() : each.model().problem();
      const std::string& id = each.has_download() ? each.download().id() : each.model().id();
      if (!problem.empty()) {
        remarks.push_back(fmt::format("{} on {}: {}", id, ShortName(each.node()), problem));
      } else if (!each.has_download()) {
        usable.insert(id);
      }
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  if (usable.empty()) {
    report_.Warn(
        "models", "no node has one that can be trained",
        "put one below a folder that sft-worker names with --models, or let nodes download "
        "(--model-cache)");
  } else {
    std::vector<std::string> some(usable.begin(), usable.end());
    const size_t all = some.size();
    some.resize(std::min<size_t>(all, 5));
    report_.Ok(
        "models",
        fmt::format("{}{}", fmt::join(some, ", "),
                    all > some.size() ? fmt::format(" and {} more", all - some.size()) : ""));
  }
  WarnEach("model", remarks, "jobs that name it there are refused: repair or remove it");
}

void Doctor::CheckStorage() {
  const auto storage =
      connection_.Call(&v1::StorageService::Stub::GetStorage, v1::GetStorageRequest());
  if (!storage.ok()) {
    return report_.Warn("storage", std::string(Message(storage.status())), "");
  }
  const v1::NodeDisk& disk = storage->disk();
  if (disk.total_bytes() == 0) return;
  const std::string text = fmt::format("the server's disk has {} of {} free",
                                       BytesText(disk.free_bytes()), BytesText(disk.total_bytes()));
  const char* advice = "`sftctl storage` shows what takes the room, `sftctl rm` removes it";
  if (disk.level() == v1::NodeDisk::FULL) {
    report_.Fail("storage", text + ": it takes in no new data", advice);
  } else if (disk.level() == v1::NodeDisk::LOW) {
    report_.Warn("storage", text, advice);
  } else {
    report_.Ok("storage", text);
  }
}

// A variable that overrides a key of each job submitted from here.
void Doctor::CheckVariable(const std::string& name, const std::string& value) {
  if (const spec::SwitchVariable* on = spec::FindSwitchVariable(name)) {
    return report_.Ok("variable", fmt::format("{}={} sets {} of what is submitted from here, if it "
                                              "is 1 or true",
                                              name, value, on->keys));
  }
  const spec::Field* field = spec::FindEnvField(name, value);
  if (field == nullptr) return;
  const absl::StatusOr<spec::Value> read = spec::ParseText(*field, value);
  if (!read.ok()) {
    return report_.Fail(
        "variable", fmt::format("{}={}: {} {}", name, value, field->key, Message(read.status())),
        fmt::format("unset {}", name));
  }
  report_.Ok("variable",
             fmt::format("{}={} sets {} of what is submitted from here", name, value, field->key));
}

void Doctor::CheckVariables() {
  const std::vector<std::string> known = spec::AllEnvNames();
  for (const std::string& name : known) {
    const std::string value = GetEnv(name).value_or("");
    if (!value.empty()) CheckVariable(name, value);
  }
  std::set<std::string> foreign;
  for (const spec::ForeignVariable& each : spec::ForeignVariables()) {
    foreign.emplace(each.name);
    if (GetEnv(std::string(each.name)).value_or("").empty()) continue;
    report_.Warn("variable", fmt::format("{} has no effect", each.name), std::string(each.instead));
  }
  for (const std::string_view prefix : spec::kVariablePrefixes) {
    for (const std::string& name : EnvNamesWith(prefix)) {
      const bool named = std::find(known.begin(), known.end(), name) != known.end();
      if (named || foreign.contains(name) || GetEnv(name).value_or("").empty()) continue;
      const std::string nearest = spec::NearestVariable(name);
      report_.Warn("variable", fmt::format("{} names no key of a job, so it has no effect", name),
                   nearest.empty() ? "" : fmt::format("did you mean {}?", nearest));
    }
  }
}

}  // namespace

void AddDoctor(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "doctor", "Check in one page what a job needs: server, login, nodes, models, room, variables",
      "sftctl doctor");
  auto project = std::make_shared<std::string>();
  AddProjectOption(command, *project);
  AddJsonFlag(command, session);
  command->RunHere([&session, project](Connection& connection) {
    return Doctor(connection, *project).Run(session.json);
  });
}

}  // namespace sft::client
