#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/operator_service.grpc.pb.h"

namespace sft::client {
namespace {

struct NodeHoldOptions {
  std::string node;
  std::string reason;
  bool now = false;
  std::string deadline;  // duration
  bool wait = false;
  std::string timeout;  // duration
};

// Polling interval of --wait.
constexpr std::chrono::seconds kLook{1};

void PrintHeld(Connection& connection, const v1::Node& node, bool json) {
  if (json) {
    connection.console().out << DumpJson(NodeJson(node), 2) << "\n";
    return;
  }
  std::string text = fmt::format("{} {}", ShortName(node.name()), NodeStateName(node));
  if (!node.hold().jobs().empty()) {
    text += fmt::format(": {} here", fmt::join(node.hold().jobs(), ", "));
    text += node.hold().mode() == v1::NodeHold::CORDON ? " and going on"
            : node.hold().has_move_time()
                ? fmt::format(", moved from {} on", Utc(node.hold().move_time()))
                : "; it is empty when they have ended (or --now, --deadline 10m)";
  }
  connection.console().out << OneLine(text) << "\n";
}

absl::StatusOr<v1::Node> FindNode(Connection& connection, const std::string& name) {
  v1::ListNodesRequest request;
  while (true) {
    SFT_ASSIGN_OR_RETURN(const v1::ListNodesResponse page,
                         connection.Call(&v1::ClusterService::Stub::ListNodes, request));
    for (const v1::Node& node : page.nodes()) {
      if (ShortName(node.name()) == name) return node;
    }
    request.set_page_token(page.next_page_token());
    if (request.page_token().empty()) return NotFound(fmt::format("no node \"{}\"", name));
  }
}

// Waits until no job is on the node.
ExitCode WaitUntilEmpty(Connection& connection, const NodeHoldOptions& options, bool json) {
  std::optional<std::chrono::seconds> timeout;
  if (!options.timeout.empty()) {
    const auto parsed = ParseDuration(options.timeout);
    if (!parsed.ok()) return Fail(connection, parsed.status());
    timeout = *parsed;
  }
  const MonoTime begin = connection.clock().Mono();
  std::string told;
  while (true) {
    const auto node = FindNode(connection, options.node);
    if (!node.ok()) return Fail(connection, node.status());
    if (node->hold().mode() != v1::NodeHold::DRAIN) {
      return Fail(connection,
                  FailedPrecondition(fmt::format(
                      "{} is not drained any more: somebody has taken it back", options.node)));
    }
    if (node->hold().jobs().empty()) {
      PrintHeld(connection, *node, json);
      return kSucceeded;
    }
    const std::string jobs = fmt::format("{}", fmt::join(node->hold().jobs(), ", "));
    if (jobs != told) connection.console().err << "waiting for " << OneLine(jobs) << "\n";
    told = jobs;
    if (timeout.has_value() && connection.clock().Mono() - begin >= *timeout) {
      connection.console().err << fmt::format("sftctl: {} is not empty after {}\n", options.node,
                                              options.timeout);
      return kUnreachable;
    }
    connection.clock().Sleep(kLook);
  }
}

ExitCode Hold(Connection& connection, const NodeHoldOptions& options, v1::NodeHold::Mode mode,
              bool json) {
  v1::HoldNodeRequest request;
  request.set_node(options.node);
  request.set_mode(mode);
  request.set_reason(options.reason);
  if (options.now) request.set_move_after_seconds(0);
  if (!options.deadline.empty()) {
    const auto deadline = ParseDuration(options.deadline);
    if (!deadline.ok()) return Fail(connection, deadline.status());
    request.set_move_after_seconds(deadline->count());
  }
  const auto node = connection.Call(&v1::OperatorService::Stub::HoldNode, request);
  if (!node.ok()) return Fail(connection, node.status());
  if (options.wait) return WaitUntilEmpty(connection, options, json);
  PrintHeld(connection, *node, json);
  return kSucceeded;
}

ExitCode Release(Connection& connection, const std::string& name, bool json) {
  v1::ReleaseNodeRequest request;
  request.set_node(name);
  const auto node = connection.Call(&v1::OperatorService::Stub::ReleaseNode, request);
  if (!node.ok()) return Fail(connection, node.status());
  PrintHeld(connection, *node, json);
  return kSucceeded;
}

ExitCode Remove(Connection& connection, const std::string& name, bool force, bool json) {
  v1::RemoveNodeRequest request;
  request.set_node(name);
  request.set_force(force);
  const auto removed = connection.Call(&v1::OperatorService::Stub::RemoveNode, request);
  if (!removed.ok()) return Fail(connection, removed.status());
  if (json) {
    connection.console().out << DumpJson(Json{{"node", name}, {"removed", true}}, 2) << "\n";
  } else {
    connection.console().out << OneLine(fmt::format("{} is removed", name)) << "\n";
  }
  return kSucceeded;
}

void AddDrain(Command& app, Session& session, const std::string& prefix) {
  Command* command = app.AddCommand(
      "drain", "Empty a node: it gets no new jobs, and its jobs end or move elsewhere",
      fmt::format("{} gpu-07 --reason \"new driver\" --deadline 30m --wait", prefix));
  auto options = std::make_shared<NodeHoldOptions>();
  command->AddOption("NODE", options->node, "Node")->Required();
  command->AddOption("--reason", options->reason, "Shown in `sftctl nodes` and to waiting jobs");
  auto* now =
      command->AddFlag("--now", options->now,
                       "Move its jobs at once: they write a checkpoint and continue elsewhere");
  command
      ->AddOption("--deadline", options->deadline,
                  "Move the jobs that have not ended after this time (10m, 2h)")
      ->Excludes(now);
  auto* wait = command->AddFlag("--wait", options->wait, "Wait until no job is left on the node");
  command
      ->AddOption("--timeout", options->timeout,
                  "With --wait: stop waiting after this time, with exit code 4")
      ->Needs(wait);
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Hold(connection, *options, v1::NodeHold::DRAIN, session.json);
  });
}

}  // namespace

void AddNodeHolds(Command& app, Command& nodes, Session& session) {
  AddDrain(app, session, "sftctl drain");
  AddDrain(nodes, session, "sftctl nodes drain");
  Command* cordon =
      nodes.AddCommand("cordon", "Give a node no new jobs; those that run there go on",
                       "sftctl nodes cordon gpu-07 --reason \"fan is loud\"");
  auto options = std::make_shared<NodeHoldOptions>();
  cordon->AddOption("NODE", options->node, "Node")->Required();
  cordon->AddOption("--reason", options->reason, "Shown in `sftctl nodes` and to waiting jobs");
  AddJsonFlag(cordon, session);
  cordon->Run([&session, options](Connection& connection) {
    return Hold(connection, *options, v1::NodeHold::CORDON, session.json);
  });
  Command* remove =
      nodes.AddCommand("rm",
                       "Remove a node that is gone for good: its worker has ended, and files that "
                       "only it has count as lost. The node comes back if its worker does; `sftctl "
                       "admin token revoke nodes/NODE` prevents that",
                       "sftctl nodes rm gpu-07");
  auto removed = std::make_shared<std::string>();
  auto force = std::make_shared<bool>(false);
  remove->AddOption("NODE", *removed, "Node")->Required();
  remove->AddFlag("--force", *force,
                  "The machine is off: place jobs that may still run there elsewhere at once");
  AddJsonFlag(remove, session);
  remove->Run([&session, removed, force](Connection& connection) {
    return Remove(connection, *removed, *force, session.json);
  });
  Command* resume = nodes.AddCommand("resume", "Let a drained or cordoned node take jobs again",
                                     "sftctl nodes resume gpu-07");
  auto name = std::make_shared<std::string>();
  resume->AddOption("NODE", *name, "Node")->Required();
  AddJsonFlag(resume, session);
  resume->Run([&session, name](Connection& connection) {
    return Release(connection, *name, session.json);
  });
}

}  // namespace sft::client
