#pragma once

#include "common/base/clock.h"
#include "server/store/store.h"
#include "sft/v1/operator_service.pb.h"

namespace sft::server {

// Usage of the fleet in the last `since_seconds` (OperatorService.GetStats), from the rows of
// allocations, attempts and jobs. Reads them in pages, so that nothing else waits for it.
absl::StatusOr<v1::Stats> ReadStats(Store& store, Clock& clock, const v1::GetStatsRequest& request);

}  // namespace sft::server
