#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "server/core/disk_watch.h"
#include "server/core/failed_calls.h"
#include "server/fleet/worker_registry.h"
#include "server/http/page_makers.h"
#include "server/store/store.h"

namespace sft::server {

// Data sources of the figures on /metrics; all outlive the pages. `disk` and `failed` may be null.
struct FigureSources {
  Store& store;
  const WorkerRegistry& registry;
  DiskWatch* disk = nullptr;
  const FailedCalls* failed = nullptr;
  std::function<int64_t()> damaged;  // number of quarantined files of the server; null: not shown
};

// The server's pages: /healthz (200 "ok" while the database answers, else 503 with the reason) and
// /metrics.
std::vector<HttpPage> Pages(const FigureSources& sources);

HttpResponse HealthPage(Store& store);
HttpResponse MetricsPage(const FigureSources& sources);

}  // namespace sft::server
