#include "worker/daemon/gpu_selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace sft::worker {
namespace {

constexpr int kMaxGpus = 1024;
constexpr std::string_view kUuid = "GPU-";

absl::Status Unreadable(std::string_view source, std::string_view item) {
  return InvalidArgument(fmt::format(
      "{}: \"{}\" is no GPU: give numbers as nvidia-smi counts, ranges of them or "
      "UUIDs, for example 0,2,4-7{}",
      source, item, item.starts_with("MIG-") ? "; parts of a GPU (MIG) are not offered" : ""));
}

// The number that the whole text is; nothing for any other text.
std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number >= 0 && number < kMaxGpus ? std::optional(number) : std::nullopt;
}

// "4-7" or "4" as numbers, one each.
bool TakeNumbers(std::string_view item, std::vector<std::string>& wanted) {
  const size_t dash = item.find('-');
  const std::optional<int> first = NumberOf(item.substr(0, dash));
  const std::optional<int> last =
      dash == std::string_view::npos ? first : NumberOf(item.substr(dash + 1));
  if (!first || !last || *first > *last) return false;
  for (int i = *first; i <= *last; ++i) wanted.push_back(std::to_string(i));
  return true;
}

std::string_view WithoutBlanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// What CUDA and Slurm write for "none".
bool MeansNone(std::string_view text) {
  return text.empty() || text == "-1" || text == "none" || text == "NoDevFiles";
}

}  // namespace

absl::StatusOr<GpuSelection> GpuSelection::Open(const std::string& option,
                                                const std::optional<std::string>& visible) {
  GpuSelection selection;
  if (option.empty() && !visible) return selection;
  selection.all_ = false;
  selection.source_ = option.empty() ? "CUDA_VISIBLE_DEVICES" : "--gpus";
  const std::string& text = option.empty() ? *visible : option;
  if (MeansNone(WithoutBlanks(text))) return selection;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = WithoutBlanks(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (TakeNumbers(item, selection.wanted_)) continue;
    if (!item.starts_with(kUuid) || item.size() == kUuid.size()) {
      return Unreadable(selection.source_, item);
    }
    selection.wanted_.emplace_back(item);
  }
  return selection;
}

absl::Status GpuSelection::Bind(const std::vector<GpuReading>& readings) {
  for (const std::string& wanted : wanted_) {
    const bool number = !wanted.starts_with(kUuid);
    size_t found = 0, count = 0;
    for (size_t i = 0; i < readings.size(); ++i) {
      const bool fits = number ? wanted == std::to_string(i) : readings[i].uuid.starts_with(wanted);
      if (!fits) continue;
      found = i;
      ++count;
    }
    if (count > 1) {
      return InvalidArgument(fmt::format("{}: {} GPUs begin with {}", source_, count, wanted));
    }
    if (count == 0) {
      return InvalidArgument(
          fmt::format("{}: there is no GPU {}: this machine has {} (nvidia-smi -L)", source_,
                      wanted, readings.size()));
    }
    selected_.push_back({found, readings[found].uuid});
  }
  bound_ = true;
  return absl::OkStatus();
}

bool GpuSelection::Has(size_t place, const GpuReading& reading) {
  for (Bound& each : selected_) {
    if (!reading.uuid.empty() && reading.uuid == each.uuid) return true;
  }
  for (Bound& each : selected_) {
    if (each.place != place || (!each.uuid.empty() && !reading.uuid.empty())) continue;
    if (each.uuid.empty()) each.uuid = reading.uuid;
    return true;
  }
  return false;
}

absl::StatusOr<std::vector<GpuReading>> GpuSelection::Choose(std::vector<GpuReading> readings) {
  if (all_) return readings;
  if (!bound_) SFT_RETURN_IF_ERROR(Bind(readings));
  std::vector<GpuReading> chosen;
  for (size_t i = 0; i < readings.size(); ++i) {
    if (Has(i, readings[i])) chosen.push_back(std::move(readings[i]));
  }
  return chosen;
}

std::string GpuSelection::Text() const {
  if (all_) return "";
  return fmt::format("{} {}", source_,
                     wanted_.empty() ? "none" : fmt::format("{}", fmt::join(wanted_, ",")));
}

}  // namespace sft::worker
