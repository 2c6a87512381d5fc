#pragma once

#include <string>

#include "common/base/clock.h"
#include "common/io/file.h"

namespace sft::worker {

// Makes this process the one worker of a data folder, for as long as the file is open. A worker
// that was just told to end still holds it for a moment: waits for up to ten seconds, and says at
// once for whom. ALREADY_EXISTS names the process that holds it.
absl::StatusOr<io::UniqueFd> LockDataDir(const std::string& data_dir, Clock& clock);

}  // namespace sft::worker
