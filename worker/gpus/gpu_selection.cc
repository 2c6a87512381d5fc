#include "worker/gpus/gpu_selection.h"

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

// Parses a text that is a number as a whole; nullopt for any other text.
std::optional<int> NumberOf(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number >= 0 && number < kMaxGpus ? std::optional(number) : std::nullopt;
}

// Expands "4-7" or "4" into single numbers.
bool TakeNumbers(std::string_view item, std::vector<std::string>& names) {
  const size_t dash = item.find('-');
  const std::optional<int> first = NumberOf(item.substr(0, dash));
  const std::optional<int> last =
      dash == std::string_view::npos ? first : NumberOf(item.substr(dash + 1));
  if (!first || !last || *first > *last) return false;
  for (int i = *first; i <= *last; ++i) names.push_back(std::to_string(i));
  return true;
}

std::string_view WithoutBlanks(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\n") - first + 1);
}

// True for what CUDA and Slurm write for "none".
bool MeansNone(std::string_view text) {
  return text.empty() || text == "-1" || text == "none" || text == "NoDevFiles";
}

// True when the reading in that place is the one that `name` selects.
bool Names(const std::string& name, size_t place, const GpuReading& reading) {
  return name.starts_with(kUuid) ? reading.uuid.starts_with(name) : name == std::to_string(place);
}

}  // namespace

absl::StatusOr<GpuSelection> GpuSelection::Open(const std::string& option,
                                                const std::optional<std::string>& visible) {
  GpuSelection selection;
  if (option.empty() && !visible) return selection;
  selection.all_ = false;
  selection.given_ = !option.empty();
  const std::string& text = selection.given_ ? option : *visible;
  if (MeansNone(WithoutBlanks(text))) return selection;
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = WithoutBlanks(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (TakeNumbers(item, names)) continue;
    if (!item.starts_with(kUuid) || item.size() == kUuid.size()) {
      return Unreadable(selection.Source(), item);
    }
    names.emplace_back(item);
  }
  for (std::string& name : names) {
    const bool twice = std::any_of(selection.selected_.begin(), selection.selected_.end(),
                                   [&](const Selected& each) { return each.name == name; });
    if (!twice) selection.selected_.push_back({.name = std::move(name)});
  }
  return selection;
}

absl::Status GpuSelection::Bind(const std::vector<GpuReading>& readings) {
  size_t found = 0;
  for (Selected& each : selected_) {
    each.place.reset();
    for (size_t i = 0; i < readings.size(); ++i) {
      if (!Names(each.name, i, readings[i])) continue;
      if (each.place.has_value()) {
        return InvalidArgument(fmt::format("{}: several GPUs begin with {}", Source(), each.name));
      }
      for (const Selected& other : selected_) {
        if (&other == &each) break;
        if (other.place != i) continue;
        return InvalidArgument(
            fmt::format("{}: {} and {} are one GPU", Source(), other.name, each.name));
      }
      each.place = i;
      each.uuid = readings[i].uuid;
    }
    found += each.place.has_value() ? 1 : 0;
  }
  if (found == 0 && given_ && !selected_.empty()) {
    return InvalidArgument(
        fmt::format("{}: this machine has {} GPUs, and none of these (nvidia-smi -L)", Text(),
                    readings.size()));
  }
  bound_ = true;
  return absl::OkStatus();
}

std::optional<size_t> GpuSelection::Find(const Selected& each,
                                         const std::vector<GpuReading>& readings) const {
  const bool by_uuid = !each.uuid.empty();
  const auto is_another = [&](const std::string& uuid) {
    return !uuid.empty() && std::any_of(selected_.begin(), selected_.end(),
                                        [&](const Selected& other) { return other.uuid == uuid; });
  };
  for (size_t i = 0; i < readings.size(); ++i) {
    if (by_uuid ? readings[i].uuid == each.uuid
                : Names(each.name, i, readings[i]) && !is_another(readings[i].uuid)) {
      return i;
    }
  }
  // It is listed but cannot be read well enough for its UUID to be known.
  if (by_uuid && each.place < readings.size() && readings[*each.place].uuid.empty()) {
    return each.place;
  }
  return std::nullopt;
}

absl::StatusOr<std::vector<GpuReading>> GpuSelection::Choose(std::vector<GpuReading> readings) {
  if (all_) return readings;
  if (!bound_) SFT_RETURN_IF_ERROR(Bind(readings));
  std::vector<GpuReading> chosen;
  for (Selected& each : selected_) {
    const std::optional<size_t> place = Find(each, readings);
    if (place.has_value()) {
      if (each.uuid.empty()) each.uuid = readings[*place].uuid;
      chosen.push_back(readings[*place]);
    } else if (given_ || each.place.has_value()) {
      GpuReading gone;
      gone.uuid = each.uuid;
      gone.error = each.place.has_value()
                       ? "no longer listed: it fell off the bus or was reset"
                       : fmt::format("GPU {} is not listed (nvidia-smi -L)", each.name);
      chosen.push_back(std::move(gone));
    }
  }
  return chosen;
}

std::string_view GpuSelection::Source() const { return given_ ? "--gpus" : "CUDA_VISIBLE_DEVICES"; }

std::string GpuSelection::Text() const {
  if (all_) return "";
  std::vector<std::string_view> names;
  for (const Selected& each : selected_) names.push_back(each.name);
  return fmt::format("{} {}", Source(),
                     names.empty() ? "none" : fmt::format("{}", fmt::join(names, ",")));
}

}  // namespace sft::worker
