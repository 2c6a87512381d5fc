#pragma once

#include <nlohmann/json.hpp>
#include <string>

// How the answers that a push gets are read: what has another form than it should have is as if it
// were not there.

namespace sft::hub {

// The type of what is asked about large files.
inline constexpr char kLfs[] = "application/vnd.git-lfs+json";

inline std::string TextOf(const nlohmann::json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// A member, or null; `object` has to outlive it.
inline const nlohmann::json& Child(const nlohmann::json& object, const char* key) {
  static const nlohmann::json none;
  if (!object.is_object()) return none;
  const auto found = object.find(key);
  return found == object.end() ? none : *found;
}

inline bool IsGood(int status) { return status >= 200 && status < 300; }

}  // namespace sft::hub
