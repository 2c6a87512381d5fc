#include "worker/daemon/fencing.h"

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

namespace sft::worker {
namespace {

using Seconds = std::chrono::duration<double>;

// "15m", "90s", "2h", "900".
std::optional<Seconds> ParseDuration(const std::string& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || value < 0) return std::nullopt;
  const std::string unit(at, end);
  if (unit.empty() || unit == "s") return Seconds(value);
  if (unit == "m") return Seconds(60 * value);
  if (unit == "h") return Seconds(3600 * value);
  if (unit == "d") return Seconds(86400 * value);
  return std::nullopt;
}

}  // namespace

Nanos FencingLimit(const std::string& resolved_json, Nanos fallback) {
  const auto json = nlohmann::json::parse(resolved_json, nullptr, /*allow_exceptions=*/false);
  const auto compute = json.is_object() && json.contains("compute") && json["compute"].is_object()
                           ? json["compute"]
                           : nlohmann::json::object();
  if (compute.contains("on_unreachable") && compute["on_unreachable"] == "wait") return Nanos(0);
  std::optional<Seconds> limit;
  if (const auto after = compute.find("unreachable_after"); after != compute.end()) {
    if (after->is_number()) limit = Seconds(after->get<double>());
    if (after->is_string()) limit = ParseDuration(after->get<std::string>());
  }
  return limit ? std::chrono::duration_cast<Nanos>(*limit) : fallback;
}

}  // namespace sft::worker
