#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/obs/histogram.h"
#include "server/core/disk_watch.h"
#include "server/door/gate.h"
#include "server/fleet/worker_registry.h"
#include "server/http/http_times.h"
#include "server/http/page_makers.h"
#include "server/store/store.h"

namespace sft::server {

// Data sources of the figures on /metrics; all outlive the pages. What is null or empty is not
// shown.
struct FigureSources {
  Store& store;
  const WorkerRegistry& registry;
  DiskWatch* disk = nullptr;
  Gate* gate = nullptr;
  std::function<int64_t()> damaged;       // number of quarantined files of the server
  const obs::Histogram* ticks = nullptr;  // of the scheduler, in seconds
  const HttpTimes* http = nullptr;
  std::map<std::string, WallTime> certificates;  // until when each is valid
};

// The server's pages: /healthz (200 "ok" while the database answers, else 503 with the reason) and
// /metrics.
std::vector<HttpPage> Pages(const FigureSources& sources);

HttpResponse HealthPage(Store& store);
HttpResponse MetricsPage(const FigureSources& sources);

}  // namespace sft::server
