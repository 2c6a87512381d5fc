#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/node_text.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/duration.h"
#include "common/base/json.h"
#include "sft/v1/cluster_service.grpc.pb.h"

namespace sft::client {
namespace {

// "8 x H100 (simulated), 6 free"
std::string SlotText(const v1::Node& node) {
  std::string text;
  for (int i = 0; i < node.slots_size();) {
    int count = 0, free = 0;
    const std::string& type = node.slots(i).gpu_type();
    for (; i < node.slots_size() && node.slots(i).gpu_type() == type; ++i) {
      ++count;
      free += node.slots(i).job().empty() && node.slots(i).healthy();
    }
    text += fmt::format("{}{} x {}{}, {} free", text.empty() ? "" : "; ", count, type,
                        node.simulated() && type != "CPU" ? " (simulated)" : "", free);
  }
  return text;
}

// Jobs that hold its slots, without repeats.
std::vector<std::string> JobsOf(const v1::Node& node) {
  std::vector<std::string> jobs;
  for (const v1::Slot& slot : node.slots()) {
    const std::string job = ShortName(slot.job());
    if (!job.empty() && std::find(jobs.begin(), jobs.end(), job) == jobs.end()) {
      jobs.push_back(job);
    }
  }
  return jobs;
}

// "by Slurm job 17 until 2026-11-28 09:30:00"; empty: it is not.
std::string LeaseText(const v1::Node& node) {
  if (!node.facts().has_lease()) return "";
  const v1::Lease& lease = node.facts().lease();
  constexpr int64_t kSecondUs = 1'000'000;
  google::protobuf::Timestamp end;
  end.set_seconds(lease.end_us() / kSecondUs);
  return (lease.allocation().empty() ? "for a time" : "by " + lease.allocation()) +
         (end.seconds() == 0 ? "" : " until " + Utc(end));
}

absl::StatusOr<std::vector<v1::Node>> AllNodes(Connection& connection) {
  std::vector<v1::Node> nodes;
  v1::ListNodesRequest request;
  std::string warning;
  do {
    SFT_ASSIGN_OR_RETURN(const v1::ListNodesResponse page,
                         connection.Call(&v1::ClusterService::Stub::ListNodes, request));
    nodes.insert(nodes.end(), page.nodes().begin(), page.nodes().end());
    warning = page.warning();
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  if (!warning.empty()) connection.console().err << "sftctl: " << OneLine(warning) << "\n";
  return nodes;
}

void PrintNode(Connection& connection, const v1::Node& node) {
  std::ostream& out = connection.console().out;
  const auto line = [&](std::string_view key, const std::string& value) {
    if (!value.empty()) out << fmt::format("{:<14}{}\n", key, OneLine(value));
  };
  line("node", ShortName(node.name()));
  line("state", NodeStateName(node));
  line("why", WhyText(node));
  if (node.has_hold()) {
    line("held since", fmt::format("{} by {}", Utc(node.hold().time()), node.hold().who()));
    if (node.hold().has_move_time()) line("jobs move", "from " + Utc(node.hold().move_time()));
  }
  line("lent", LeaseText(node));
  line("worker", fmt::format("{} on {}, incarnation {}", node.worker_version(), node.hostname(),
                             node.incarnation().substr(0, 8)));
  line("ranks", node.facts().rank_build().empty() ? "" : "sft-rank " + node.facts().rank_build());
  line("folder", node.facts().data_dir().path());
  line("last seen", Utc(node.last_seen()));
  line("known since", Utc(node.first_seen()));
  line("cpus", fmt::format("{}, {} of memory", node.cpus(), Bytes(node.memory_bytes())));
  if (node.has_disk()) {
    line("disk", fmt::format("{} of {} free ({})", Bytes(node.disk().free_bytes()),
                             Bytes(node.disk().total_bytes()),
                             v1::NodeDisk::Level_Name(node.disk().level())));
  }
  if (node.has_clock_offset_seconds()) {
    line("clock", fmt::format("{:+.3f} s from the server's", node.clock_offset_seconds()));
  }
  line("driver", node.facts().driver_version());
  line("interconnect", node.facts().interconnect());
  for (const std::string& network : node.facts().networks()) line("network", network);
  line("place", node.facts().place());
  for (const std::string& setting : node.facts().network_settings())
    line("ranks' setting", setting);
  out << "\n";
  Table table({"SLOT", "TYPE", "PRODUCT", "MEMORY", "USED", "BUSY", "JOB", "HEALTH"});
  for (const v1::Slot& slot : node.slots()) {
    table.Add({std::to_string(slot.index()), slot.gpu_type(), slot.product_name(),
               Bytes(slot.memory_bytes()), Bytes(slot.memory_used_bytes()),
               fmt::format("{}%", slot.utilization_percent()),
               slot.job().empty() ? "-" : ShortName(slot.job()),
               slot.healthy() ? "ok" : slot.health_reason()});
  }
  out << table.Render();
}

ExitCode OneNode(Connection& connection, const std::vector<v1::Node>& nodes,
                 const std::string& name, bool json) {
  std::vector<std::string> names;
  for (const v1::Node& node : nodes) {
    names.push_back(ShortName(node.name()));
    if (names.back() != name) continue;
    if (json) {
      connection.console().out << DumpJson(NodeJson(node), 2) << "\n";
    } else {
      PrintNode(connection, node);
    }
    return kSucceeded;
  }
  return Fail(connection,
              NotFound(fmt::format("no node \"{}\"; there are: {}", name,
                                   names.empty() ? std::string("none")
                                                 : fmt::format("{}", fmt::join(names, ", ")))));
}

ExitCode Nodes(Connection& connection, const std::string& name, bool json) {
  const auto nodes = AllNodes(connection);
  if (!nodes.ok()) return Fail(connection, nodes.status());
  if (!name.empty()) return OneNode(connection, *nodes, name, json);
  Table table({"NODE", "STATE", "SLOTS", "MEMORY", "DISK", "VERSION", "JOBS", "WHY"});
  Json list = Json::array();
  for (const v1::Node& node : *nodes) {
    list.push_back(NodeJson(node));
    const std::vector<std::string> jobs = JobsOf(node);
    table.Add({ShortName(node.name()), NodeStateName(node), SlotText(node),
               Bytes(node.memory_bytes()), DiskText(node), node.worker_version(),
               jobs.empty() ? "-" : fmt::format("{}", fmt::join(jobs, ",")), WhyText(node)});
  }
  connection.console().out << (json ? DumpJson(list, 2) + "\n" : table.Render());
  return kSucceeded;
}

ExitCode Variants(Connection& connection, bool json) {
  v1::ListVariantsRequest request;
  Table table({"VARIANT", "TYPE", "SLOTS", "NODES", "FREE NOW"});
  Json list = Json::array();
  do {
    const auto page = connection.Call(&v1::ClusterService::Stub::ListVariants, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::Variant& variant : page->variants()) {
      list.push_back(VariantJson(variant));
      table.Add({variant.name(), variant.gpu_type(), std::to_string(variant.gpus_per_node()),
                 std::to_string(variant.nodes()), std::to_string(variant.nodes_free())});
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  connection.console().out << (json ? DumpJson(list, 2) + "\n" : table.Render());
  return kSucceeded;
}

}  // namespace

namespace {

struct NodeOptions {
  std::string name;
  std::string history;  // a span of time
};

Json GpuUseJson(const v1::GpuUse& use, int slot) {
  return {{"slot", slot},
          {"time", Utc(use.time())},
          {"memory_used_bytes", use.memory_used_bytes()},
          {"utilization_percent", use.utilization_percent()},
          {"power_watts", use.power_watts()},
          {"temperature_celsius", use.temperature_celsius()}};
}

// "-" for 0: the node does not report it.
std::string Figure(double value, const char* unit) {
  return value > 0 ? fmt::format("{:.0f}{}", value, unit) : "-";
}

ExitCode History(Connection& connection, const NodeOptions& options, bool json) {
  const auto span = ParseDuration(options.history);
  if (options.name.empty() || !span.ok()) {
    return Fail(connection, InvalidArgument("--history: name a NODE and a duration, as in `sftctl "
                                            "nodes gpu-07 --history 2h`"));
  }
  v1::GetNodeHistoryRequest request;
  request.set_node(options.name);
  request.set_since_seconds(span->count());
  request.set_max_points(json ? 2000 : 30);
  const auto history = connection.Call(&v1::ClusterService::Stub::GetNodeHistory, request);
  if (!history.ok()) return Fail(connection, history.status());
  Table table({"GPU", "TIME", "MEMORY", "USE", "POWER", "TEMPERATURE"});
  for (const v1::GpuHistory& gpu : history->gpus()) {
    for (const v1::GpuUse& use : gpu.points()) {
      if (json) {
        connection.console().out << DumpJson(GpuUseJson(use, gpu.slot())) << "\n";
        continue;
      }
      table.Add({std::to_string(gpu.slot()), Utc(use.time()), Bytes(use.memory_used_bytes()),
                 fmt::format("{:.0f} %", use.utilization_percent()),
                 Figure(use.power_watts(), " W"), Figure(use.temperature_celsius(), " C")});
    }
  }
  if (history->gpus().empty()) {
    connection.console().err << fmt::format("{} has reported no use of GPUs in that time\n",
                                            options.name);
  } else if (!json) {
    connection.console().out << table.Render();
  }
  return kSucceeded;
}

}  // namespace

void AddNodes(Command& app, Session& session) {
  Command* nodes = app.AddCommand("nodes",
                                  "List nodes with their state, slots, disk, jobs and why they get "
                                  "no new ones; or show one node",
                                  "sftctl nodes gpu-07");
  auto options = std::make_shared<NodeOptions>();
  nodes->AddOption("NODE", options->name, "Only this node, with its slots");
  nodes->AddOption("--history", options->history,
                   "The use of NODE's GPUs in the last time, for example 2h; up to 7d");
  AddJsonFlag(nodes, session);
  nodes->Run([&session, options](Connection& connection) {
    if (!options->history.empty()) return History(connection, *options, session.json);
    return Nodes(connection, options->name, session.json);
  });
  AddNodeHolds(app, *nodes, session);
  Command* variants = app.AddCommand("variants", "List what a job can ask for in compute.variant",
                                     "sftctl variants");
  AddJsonFlag(variants, session);
  variants->Run([&session](Connection& connection) { return Variants(connection, session.json); });
}

}  // namespace sft::client
