#include "worker/attempt/fencing.h"

#include <nlohmann/json.hpp>

#include "common/base/duration.h"
#include "common/base/json.h"

namespace sft::worker {

Nanos FencingLimit(const std::string& resolved_json, Nanos fallback) {
  const auto json = ParseJson(resolved_json);
  const auto compute = json.is_object() && json.contains("compute") && json["compute"].is_object()
                           ? json["compute"]
                           : nlohmann::json::object();
  if (compute.contains("on_unreachable") && compute["on_unreachable"] == "wait") return Nanos(0);
  const auto after = compute.find("unreachable_after");
  if (after == compute.end() || !after->is_string()) return fallback;
  const auto limit = ParseDuration(after->get<std::string>());
  return limit ? Nanos(*limit) : fallback;
}

}  // namespace sft::worker
