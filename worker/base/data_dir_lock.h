#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/io/file.h"

namespace sft::worker {

// Locks a data folder, so that only one worker uses it, for as long as the file is open. A worker
// that was just told to end still holds the lock for a moment: waits for up to ten seconds, and
// prints at once which process it waits for. ALREADY_EXISTS names the process that holds the lock.
absl::StatusOr<io::UniqueFd> LockDataDir(const std::string& data_dir, Clock& clock);

}  // namespace sft::worker
