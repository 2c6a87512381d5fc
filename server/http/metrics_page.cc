#include "server/http/metrics_page.h"

#include <algorithm>
#include <map>

#include "common/base/version.h"
#include "server/http/exposition.h"
#include "server/http/process_figures.h"
#include "server/http/tally_figures.h"
#include "server/state/estimates.h"
#include "server/store/attempts.h"
#include "server/store/jobs.h"
#include "server/store/node_holds.h"
#include "server/store/nodes.h"
#include "server/store/schedules.h"
#include "server/store/tallies.h"
#include "server/store/webhooks.h"

namespace sft::server {
namespace {

struct Figures {
  std::vector<int64_t> jobs_by_state;
  int64_t jobs_held = 0;
  std::vector<NodeRecord> nodes;
  std::vector<EstimateRecord> begun, ended;
  std::map<std::string, store::NodeHold> holds;
  std::vector<store::TallyRecord> tallies;
  std::vector<store::HeldBy> held;
  std::vector<store::WebhookRecord> hooks;
};

// The number of newest estimates used.
constexpr int kEstimates = 1000;

absl::StatusOr<Figures> Collect(Store& store) {
  Figures figures;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(figures.jobs_by_state, store::CountJobsByState(db));
    SFT_ASSIGN_OR_RETURN(figures.jobs_held, store::CountHeldJobs(db));
    SFT_ASSIGN_OR_RETURN(figures.nodes, store::AllNodes(db));
    SFT_ASSIGN_OR_RETURN(figures.holds, store::Holds(db));
    SFT_ASSIGN_OR_RETURN(figures.begun, store::LastBegun(db, kEstimates));
    SFT_ASSIGN_OR_RETURN(figures.ended, store::LastEnded(db, kEstimates));
    SFT_ASSIGN_OR_RETURN(figures.tallies, store::AllTallies(db));
    SFT_ASSIGN_OR_RETURN(figures.held, store::SlotsHeld(db));
    SFT_ASSIGN_OR_RETURN(figures.hooks, store::ListWebhooks(db, std::nullopt));
    return absl::OkStatus();
  }));
  return figures;
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
  page.Metric("sft_estimate_error_ratio", "histogram",
              "Errors of these estimates, as a part of what it took.");
  for (const auto& [kind, errors] : kinds) {
    const std::vector<int64_t> counts(errors->by_bound.begin(), errors->by_bound.end());
    page.Sample({{"estimate", kind}},
                obs::Cumulated(EstimateErrors::kBounds, counts, errors->mean * errors->all));
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

using LiveNodes = std::vector<std::pair<std::string, WorkerRegistry::Live>>;

void AddNodeDisks(const LiveNodes& live, Exposition& page) {
  page.Metric("sft_node_disk_free_bytes", "gauge", "Free on the disk of a worker's data folder.");
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

// A silent node's last report is no news of its GPUs.
void AddSlotUse(const LiveNodes& live, Exposition& page) {
  const auto each = [&](auto value) {
    for (const auto& [name, now] : live) {
      if (now.silent) continue;
      for (const auto& [slot, use] : now.use) {
        page.Sample({{"node", name}, {"slot", std::to_string(slot)}}, value(use));
      }
    }
  };
  page.Metric("sft_slot_memory_bytes", "gauge", "Memory in use on a GPU, by anybody.");
  each([](const auto& use) { return static_cast<double>(use.first); });
  page.Metric("sft_slot_utilization_ratio", "gauge",
              "Part of the time in which a GPU computed, 0 to 1, as its driver says.");
  each([](const auto& use) { return use.second / 100.0; });
}

void AddCertificates(const FigureSources& sources, Exposition& page) {
  page.Metric(
      "sft_certificate_expiry_timestamp_seconds", "gauge",
      "Until when the server's certificate and the fleet's authority are valid, Unix time.");
  for (const auto& [name, until] : sources.certificates) {
    page.Sample({{"certificate", name}}, static_cast<double>(UnixMicros(until)) / 1e6);
  }
}

void AddFailedCalls(const FailedCalls& failed, Exposition& page) {
  page.Metric("sft_calls_failed_total", "counter",
              "Calls that were refused or failed, by gRPC status, since the start.");
  const auto totals = failed.totals();
  for (size_t code = 1; code < totals.size(); ++code) {
    page.Sample({{"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}},
                static_cast<double>(totals[code]));
  }
}

// What the server has done and how long it took, since its start.
void AddTimes(const FigureSources& sources, Exposition& page) {
  page.Metric("sft_store_commits_total", "counter",
              "Transactions that changed something, since the start.");
  page.Sample({}, static_cast<double>(sources.store.commits()));
  page.Metric("sft_store_commit_duration_seconds", "histogram",
              "From the first write of a commit until it is on the disk.");
  page.Sample({}, sources.store.commit_seconds().Read());
  if (sources.ticks != nullptr) {
    page.Metric("sft_reconcile_duration_seconds", "histogram", "Of one pass of the scheduler.");
    page.Sample({}, sources.ticks->Read());
  }
  if (sources.http != nullptr) {
    page.Metric("sft_http_request_duration_seconds", "histogram",
                "From an HTTP request to the head of its answer, by what was asked and the class "
                "of the answer's status.");
    sources.http->Each([&page](std::string_view route, std::string_view status,
                               const obs::Histogram::Counts& times) {
      page.Sample({{"route", std::string(route)}, {"status", std::string(status)}}, times);
    });
  }
  if (sources.gate == nullptr) return;
  page.Metric("sft_rpc_duration_seconds", "histogram",
              "Calls by method and gRPC status, without those that follow something.");
  for (const auto& [kind, times] : sources.gate->times().Read()) {
    page.Sample({{"method", kind.first}, {"code", absl::StatusCodeToString(kind.second)}}, times);
  }
  page.Metric("sft_streams", "gauge", "Calls that last, by method; workers are counted apart.");
  for (const auto& [kind, count] : sources.gate->streams()) page.Sample({{"kind", kind}}, count);
  AddFailedCalls(sources.gate->failed(), page);
}

void AddWebhooks(const std::vector<store::WebhookRecord>& hooks, Exposition& page) {
  int on = 0, failing = 0, off = 0;
  for (const store::WebhookRecord& hook : hooks) {
    ++(hook.off_us > 0 ? off : hook.failures > 0 ? failing : on);
  }
  page.Metric("sft_webhooks", "gauge",
              "Webhooks that are on, whose last try failed, and that were put off.");
  page.Sample({{"state", "on"}}, on);
  page.Sample({{"state", "failing"}}, failing);
  page.Sample({{"state", "off"}}, off);
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
  page.Metric("sft_jobs_held", "gauge", "Waiting jobs that somebody holds back.");
  page.Sample({}, static_cast<double>(figures.jobs_held));
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
  AddTallies(figures.tallies, figures.held, sources.registry.now_us(), page);
  AddWebhooks(figures.hooks, page);
  AddTimes(sources, page);
  page.Metric("sft_node_refusals_total", "counter",
              "What nodes said and the server refused, since the start.");
  const auto refused = sources.registry.refusals().counts();
  for (const NodeRecord& node : figures.nodes) {
    const auto found = refused.find(node.name);
    page.Sample({{"node", node.name}},
                found == refused.end() ? 0 : static_cast<double>(found->second));
  }
  LiveNodes live;
  for (const NodeRecord& node : figures.nodes) {
    live.emplace_back(node.name, sources.registry.Get(node.name));
  }
  AddNodeDisks(live, page);
  AddSlotUse(live, page);
  page.Metric("sft_nodes_held", "gauge", "Nodes that an operator keeps work off, by how.");
  for (const auto& [mode, name] : {std::pair(store::HoldMode::kCordon, "cordon"),
                                   std::pair(store::HoldMode::kDrain, "drain")}) {
    // A node that has left keeps its hold.
    const auto held =
        std::count_if(figures.nodes.begin(), figures.nodes.end(), [&](const NodeRecord& node) {
          const auto hold = figures.holds.find(node.name);
          return hold != figures.holds.end() && hold->second.mode == mode;
        });
    page.Sample({{"mode", name}}, static_cast<double>(held));
  }
  if (sources.disk != nullptr) AddServerDisk(sources.disk->Look(), page);
  if (!sources.certificates.empty()) AddCertificates(sources, page);
  if (sources.damaged) {
    page.Metric("sft_damaged_files", "gauge",
                "Files of the server whose bytes did not match their hash, put aside.");
    page.Sample({}, static_cast<double>(sources.damaged()));
  }
  AddProcess(page);
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
