#pragma once

#include <vector>

#include "server/core/disk_watch.h"
#include "server/core/failed_calls.h"
#include "server/core/worker_registry.h"
#include "server/http/http_server.h"
#include "server/store/store.h"

namespace sft::server {

// The pages of the server: /healthz (200 "ok" while the database answers, else 503 with the reason)
// and /metrics. `disk` and `failed` may be null; all must outlive the pages.
std::vector<HttpServer::Page> Pages(Store& store, const WorkerRegistry& registry, DiskWatch* disk,
                                    const FailedCalls* failed);

HttpResponse HealthPage(Store& store);
HttpResponse MetricsPage(Store& store, const WorkerRegistry& registry, DiskWatch* disk = nullptr,
                         const FailedCalls* failed = nullptr);

}  // namespace sft::server
