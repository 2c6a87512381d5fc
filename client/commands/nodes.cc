#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"

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

ExitCode Nodes(Connection& connection, bool json) {
  v1::ListNodesRequest request;
  Table table({"NODE", "STATE", "SLOTS", "MEMORY", "VERSION", "JOBS", "REASON"});
  Json list = Json::array();
  do {
    const auto page =
        connection.Call(connection.cluster(), &v1::ClusterService::Stub::ListNodes, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::Node& node : page->nodes()) {
      list.push_back(NodeJson(node));
      std::string jobs;
      for (const v1::Slot& slot : node.slots()) {
        const std::string job = ShortName(slot.job());
        if (!job.empty() && jobs.find(job) == std::string::npos)
          jobs += (jobs.empty() ? "" : ",") + job;
      }
      table.Add({ShortName(node.name()), v1::Node::State_Name(node.state()), SlotText(node),
                 Bytes(node.memory_bytes()), node.worker_version(), jobs.empty() ? "-" : jobs,
                 node.reason().empty() ? node.left_out() : node.reason()});
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  connection.console().out << (json ? list.dump(2) + "\n" : table.Render());
  return kSucceeded;
}

ExitCode Variants(Connection& connection, bool json) {
  v1::ListVariantsRequest request;
  Table table({"VARIANT", "TYPE", "SLOTS", "NODES", "FREE NOW"});
  Json list = Json::array();
  do {
    const auto page =
        connection.Call(connection.cluster(), &v1::ClusterService::Stub::ListVariants, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::Variant& variant : page->variants()) {
      list.push_back(VariantJson(variant));
      table.Add({variant.name(), variant.gpu_type(), std::to_string(variant.gpus_per_node()),
                 std::to_string(variant.nodes()), std::to_string(variant.nodes_free())});
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  connection.console().out << (json ? list.dump(2) + "\n" : table.Render());
  return kSucceeded;
}

ExitCode Models(Connection& connection, bool json) {
  v1::ListModelsRequest request;
  Table table({"MODEL", "NODE", "SIZE", "PATH", "PROBLEM"});
  Json list = Json::array();
  do {
    const auto page =
        connection.Call(connection.cluster(), &v1::ClusterService::Stub::ListModels, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::NodeModel& entry : page->models()) {
      list.push_back(ModelJson(entry.node(), entry.model()));
      table.Add({entry.model().id(), ShortName(entry.node()), Bytes(entry.model().bytes()),
                 entry.model().path(), entry.model().problem()});
    }
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  connection.console().out << (json ? list.dump(2) + "\n" : table.Render());
  return kSucceeded;
}

}  // namespace

void AddNodes(CLI::App& app, Session& session) {
  const auto add = [&](const char* name, const char* description, const char* example,
                       ExitCode (*run)(Connection&, bool)) {
    CLI::App* command = AddCommand(app, name, description, example);
    AddJsonFlag(command, session);
    command->callback([&session, run] {
      session.command = [&session, run](Connection& connection) {
        return run(connection, session.json);
      };
    });
  };
  add("nodes", "List nodes: state, slots, what runs there", "sftctl nodes --json", Nodes);
  add("variants", "List what a job can ask for in compute.variant", "sftctl variants", Variants);
  add("models", "List the base models that nodes can see", "sftctl models", Models);
}

}  // namespace sft::client
