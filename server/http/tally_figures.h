#pragma once

#include <cstdint>
#include <vector>

#include "server/http/exposition.h"
#include "server/store/attempts.h"
#include "server/store/tallies.h"

namespace sft::server {

// What is counted over the life of the database, and who holds which slot now: jobs that ended,
// restarts, waits, GPU time by project, the last backup. `now_us`: Unix time.
void AddTallies(const std::vector<store::TallyRecord>& tallies,
                const std::vector<store::HeldBy>& held, int64_t now_us, Exposition& page);

}  // namespace sft::server
