#pragma once

#include <functional>
#include <string>

#include "common/base/status.h"
#include "worker/channel/event.h"

namespace sft::worker {

// Passes each event of a rank's event file to `take`, in order; lines that are none are skipped.
// NOT_FOUND when there is no file.
absl::Status ReadEventFile(const std::string& path,
                           const std::function<void(const channel::Event&)>& take);

}  // namespace sft::worker
