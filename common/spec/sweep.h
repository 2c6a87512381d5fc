#pragma once

#include <cstdint>
#include <vector>

namespace sft::spec {

// Which value each key of a sweep has in job `index`, counted from 0: `counts` says how many values
// each key takes, and the last key changes from one job to the next. The server, which makes the
// jobs, and a dry run, which lists them, count alike by it.
std::vector<int> SweepValues(const std::vector<int>& counts, int64_t index);

}  // namespace sft::spec
