#pragma once

#include "server/http/exposition.h"

namespace sft::server {

// What every process of Prometheus' world says of itself: process_start_time_seconds,
// process_cpu_seconds_total, memory and open files.
void AddProcess(Exposition& page);

}  // namespace sft::server
