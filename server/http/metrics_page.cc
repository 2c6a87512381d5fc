#include "server/http/metrics_page.h"

#include <unistd.h>

#include <charconv>
#include <map>

#include "common/base/version.h"
#include "common/io/file.h"
#include "server/http/exposition.h"
#include "server/store/jobs.h"
#include "server/store/nodes.h"

namespace sft::server {
namespace {

struct Figures {
  std::vector<int64_t> jobs_by_state;
  std::vector<NodeRecord> nodes;
};

absl::StatusOr<Figures> Collect(Store& store) {
  Figures figures;
  SFT_RETURN_IF_ERROR(store.Read([&](Database& db) -> absl::Status {
    SFT_ASSIGN_OR_RETURN(figures.jobs_by_state, store::CountJobsByState(db));
    SFT_ASSIGN_OR_RETURN(figures.nodes, store::ListNodes(db, "", store::kMaxPage));
    return absl::OkStatus();
  }));
  return figures;
}

// The second number of /proc/self/statm: pages in memory.
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

std::string MetricsText(const Figures& figures, const Store& store,
                        const WorkerRegistry& registry) {
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
      const char* use = !slot.job_id.empty() ? "held" : slot.healthy ? "free" : "unhealthy";
      ++slots[{slot.gpu_type, use}];
    }
  }
  page.Sample({{"state", "UP"}}, up);
  page.Sample({{"state", "SUSPECT"}}, static_cast<double>(figures.nodes.size()) - up);
  page.Metric("sft_workers_connected", "gauge", "Workers with a live stream.");
  page.Sample({}, registry.connected());
  page.Metric("sft_slots", "gauge", "Slots by type and use.");
  for (const auto& [key, count] : slots) {
    page.Sample({{"gpu_type", key.first}, {"use", key.second}}, count);
  }
  page.Metric("sft_store_commits_total", "counter",
              "Transactions that changed something, since the start.");
  page.Sample({}, static_cast<double>(store.commits()));
  page.Metric("process_resident_memory_bytes", "gauge", "Resident memory.");
  page.Sample({}, ResidentBytes());
  return page.text();
}

}  // namespace

HttpResponse ServePage(const std::string& path, Store& store, const WorkerRegistry& registry) {
  HttpResponse response;
  if (path != "/healthz" && path != "/metrics") {
    return {404, response.content_type, "there are /healthz and /metrics\n"};
  }
  const absl::StatusOr<Figures> figures = Collect(store);
  if (!figures.ok()) {
    return {503, response.content_type, std::string(Message(figures.status())) + "\n"};
  }
  if (path == "/healthz") {
    response.body = "ok\n";
  } else {
    response.content_type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = MetricsText(*figures, store, registry);
  }
  return response;
}

}  // namespace sft::server
