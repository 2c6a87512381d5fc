#include "worker/shipping/event_file.h"

#include <algorithm>

#include "common/io/file.h"

namespace sft::worker {
namespace {

constexpr int64_t kMaxEventsBytes = int64_t{1} << 30;

}  // namespace

void ForEachEvent(std::string_view text, const std::function<void(const channel::Event&)>& take) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const auto event = channel::ParseLine(text.substr(at, end - at));
    if (event.ok()) take(*event);
    at = end + 1;
  }
}

absl::Status ReadEventFile(const std::string& path,
                           const std::function<void(const channel::Event&)>& take) {
  SFT_ASSIGN_OR_RETURN(const std::string text,
                       io::ReadFile(path, kMaxEventsBytes, io::Links::kRefuse));
  ForEachEvent(text, take);
  return absl::OkStatus();
}

}  // namespace sft::worker
