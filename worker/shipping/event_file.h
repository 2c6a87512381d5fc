#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/base/status.h"
#include "worker/channel/event.h"

namespace sft::worker {

// Passes each event of `text`, lines of an event file, to `take`, in order; invalid lines are
// skipped.
void ForEachEvent(std::string_view text, const std::function<void(const channel::Event&)>& take);
// The same for a whole file. NOT_FOUND when it does not exist, INVALID_ARGUMENT when it is a link.
absl::Status ReadEventFile(const std::string& path,
                           const std::function<void(const channel::Event&)>& take);

}  // namespace sft::worker
