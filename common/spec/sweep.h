#pragma once

#include <cstdint>
#include <vector>

namespace sft::spec {

// The value index of each key of a sweep in job `index`, counted from 0. `counts` says how many
// values each key takes; the last key changes fastest. Shared by the server, which makes the jobs,
// and a dry run, which lists them.
std::vector<int> SweepValues(const std::vector<int>& counts, int64_t index);

}  // namespace sft::spec
