#include "server/http/metrics_page.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "common/base/version.h"
#include "common/io/file.h"
#include "server/http/exposition.h"
#include "server/state/estimates.h"
#include "server/store/jobs.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "server/store/schedules.h"

namespace sft::server {
namespace {

struct Figures {
  std::vector<int64_t> jobs_by_state;
  std::vector<NodeRecord> nodes;
  std::vector<EstimateRecord> begun, ended;
  std::map<std::string, store::NodeHold> holds;
};

// The number of newest estimates used.
constexpr int kEstimates = 1000;

absl::StatusOr<Figures> Collect(Store& store) {
  Figures figures;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(figures.jobs_by_state, store::CountJobsByState(db));
    SFT_ASSIGN_OR_RETURN(figures.nodes, store::AllNodes(db));
    SFT_ASSIGN_OR_RETURN(figures.holds, store::Holds(db));
    SFT_ASSIGN_OR_RETURN(figures.begun, store::LastBegun(db, kEstimates));
    SFT_ASSIGN_OR_RETURN(figures.ended, store::LastEnded(db, kEstimates));
    return absl::OkStatus();
  }));
  return figures;
}

// From the second number of /proc/self/statm: resident pages.
double ResidentBytes() {
  const absl::StatusOr<std::string> statm = io::ReadFile("/proc/self/statm");
  if (!statm.ok()) return 0;
  const size_t space = statm->find(' ');
  int64_t pages = 0;
  if (space != statm->npos) {
    std::from_chars(statm->data() + space + 1, statm->data() + statm->size(), pages);
  }
  return static_cast<double>(pages * ::sysconf(_SC_PAGESIZE));
}

void AddEstimates(const Figures& figures, Exposition& page) {
  const EstimateReport report = ReportOf(figures.begun, figures.ended);
  const std::pair<const char*, const EstimateErrors*> kinds[] = {
      {"start", &report.start}, {"end", &report.end}, {"end_after_50_steps", &report.end_after_50}};
  page.Metric(
      "sft_estimates", "gauge",
      "Estimates of the last 1,000 jobs that started (ended with success): all of them, and "
      "those within a part of what happened.");
  for (const auto& [kind, errors] : kinds) {
    page.Sample({{"estimate", kind}, {"within", "any"}}, errors->all);
    page.Sample({{"estimate", kind}, {"within", "10%"}}, errors->within_10);
    page.Sample({{"estimate", kind}, {"within", "20%"}}, errors->within_20);
    page.Sample({{"estimate", kind}, {"within", "50%"}}, errors->within_50);
  }
  page.Metric("sft_estimate_error_ratio", "gauge", "Their mean error, as a part of what it took.");
  for (const auto& [kind, errors] : kinds) {
    if (errors->all > 0) page.Sample({{"estimate", kind}}, errors->mean);
  }
}

void AddServerDisk(const v1::NodeDisk& disk, Exposition& page) {
  page.Metric("sft_disk_free_bytes", "gauge", "Free on the disk of the server's data folder.");
  page.Sample({}, static_cast<double>(disk.free_bytes()));
  page.Metric("sft_disk_total_bytes", "gauge", "Size of that disk.");
  page.Sample({}, static_cast<double>(disk.total_bytes()));
  page.Metric("sft_disk_level", "gauge",
              "0 enough is free, 1 below the first mark, 2 below the second: intake is refused.");
  page.Sample({}, std::max(0, static_cast<int>(disk.level()) - 1));
}

void AddNodeDisks(const std::vector<NodeRecord>& nodes, const WorkerRegistry& registry,
                  Exposition& page) {
  page.Metric("sft_node_disk_free_bytes", "gauge", "Free on the disk of a worker's data folder.");
  std::vector<std::pair<std::string, WorkerRegistry::Live>> live;
  for (const NodeRecord& node : nodes) live.emplace_back(node.name, registry.Get(node.name));
  for (const auto& [name, now] : live) {
    if (now.disk.level() == v1::NodeDisk::LEVEL_UNSPECIFIED) continue;
    page.Sample({{"node", name}}, static_cast<double>(now.disk.free_bytes()));
  }
  page.Metric("sft_node_disk_level", "gauge", "As sft_disk_level; at 2 no job is placed on it.");
  for (const auto& [name, now] : live) {
    if (now.disk.level() == v1::NodeDisk::LEVEL_UNSPECIFIED) continue;
    page.Sample({{"node", name}}, static_cast<int>(now.disk.level()) - 1);
  }
  page.Metric("sft_node_clock_offset_seconds", "gauge", "A worker's clock minus the server's.");
  for (const auto& [name, now] : live) {
    if (now.clock_offset.has_value()) page.Sample({{"node", name}}, *now.clock_offset);
  }
}

void AddFailedCalls(const FailedCalls& failed, Exposition& page) {
  page.Metric("sft_calls_failed_total", "counter",
              "Calls that were refused or failed, by gRPC status, since the start.");
  const auto totals = failed.totals();
  for (size_t code = 1; code < totals.size(); ++code) {
    if (totals[code] == 0) continue;
    page.Sample({{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}},
                static_cast<double>(totals[code]));
  }
}

std::string MetricsText(const Figures& figures, const FigureSources& sources) {
  Exposition page;
  page.Metric("sft_build_info", "gauge", "Version of the server.");
  page.Sample({{"version", kVersion}}, 1);
  page.Metric("sft_jobs", "gauge", "Jobs by state.");
  for (size_t state = 1; state < figures.jobs_by_state.size(); ++state) {
    page.Sample({{"state", std::string(ToString(static_cast<JobState>(state)))}},
                static_cast<double>(figures.jobs_by_state[state]));
  }
  page.Metric("sft_nodes", "gauge", "Nodes by state.");
  int up = 0;
  std::map<std::pair<std::string, std::string>, int> slots;
  for (const NodeRecord& node : figures.nodes) {
    up += node.state == NodeState::kUp ? 1 : 0;
    for (const SlotRecord& slot : node.slots) {
      const char* use = !slot.job_id.empty()           ? "held"
                        : node.state != NodeState::kUp ? "silent"
                        : slot.healthy                 ? "free"
                                                       : "unhealthy";
      ++slots[{slot.gpu_type, use}];
    }
  }
  page.Sample({{"state", "UP"}}, up);
  page.Sample({{"state", "SUSPECT"}}, static_cast<double>(figures.nodes.size()) - up);
  page.Metric("sft_workers_connected", "gauge", "Workers with a live stream.");
  page.Sample({}, sources.registry.connected());
  page.Metric("sft_slots", "gauge", "Slots by type and use.");
  for (const auto& [key, count] : slots) {
    page.Sample({{"gpu_type", key.first}, {"use", key.second}}, count);
  }
  AddEstimates(figures, page);
  page.Metric("sft_store_commits_total", "counter",
              "Transactions that changed something, since the start.");
  page.Sample({}, static_cast<double>(sources.store.commits()));
  page.Metric("sft_node_refusals_total", "counter",
              "What nodes said and the server refused, since the start.");
  for (const auto& [node, count] : sources.registry.refusals().counts()) {
    page.Sample({{"node", node}}, static_cast<double>(count));
  }
  AddNodeDisks(figures.nodes, sources.registry, page);
  page.Metric("sft_nodes_held", "gauge", "Nodes that an operator keeps work off, by how.");
  for (const auto& [mode, name] : {std::pair(store::HoldMode::kCordon, "cordon"),
                                   std::pair(store::HoldMode::kDrain, "drain")}) {
    const auto held = std::count_if(figures.holds.begin(), figures.holds.end(),
                                    [&](const auto& hold) { return hold.second.mode == mode; });
    page.Sample({{"mode", name}}, static_cast<double>(held));
  }
  if (sources.disk != nullptr) AddServerDisk(sources.disk->Look(), page);
  if (sources.failed != nullptr) AddFailedCalls(*sources.failed, page);
  if (sources.damaged) {
    page.Metric("sft_damaged_files", "gauge",
                "Files of the server whose bytes did not match their hash, put aside.");
    page.Sample({}, static_cast<double>(sources.damaged()));
  }
  page.Metric("process_resident_memory_bytes", "gauge", "Resident memory.");
  page.Sample({}, ResidentBytes());
  return page.text();
}

HttpResponse Unready(const absl::Status& why) {
  return {503, HttpResponse().content_type, std::string(Message(why)) + "\n"};
}

}  // namespace

HttpResponse HealthPage(Store& store) {
  const absl::Status answers = store.Read([](Database& db) { return db.UserVersion().status(); });
  if (!answers.ok()) return Unready(answers);
  HttpResponse response;
  response.body = "ok\n";
  return response;
}

HttpResponse MetricsPage(const FigureSources& sources) {
  const absl::StatusOr<Figures> figures = Collect(sources.store);
  if (!figures.ok()) return Unready(figures.status());
  return {200, "text/plain; version=0.0.4; charset=utf-8", MetricsText(*figures, sources)};
}

std::vector<HttpPage> Pages(const FigureSources& sources) {
  return {{"/healthz", [&store = sources.store] { return HealthPage(store); }},
          {"/metrics", [sources] { return MetricsPage(sources); }}};
}

}  // namespace sft::server
