#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/base/status.h"

namespace sft::plan {

// Reads the keys of one object of a config.json. The first error is kept, with the place and the
// key in its text; values read after it are meaningless. Borrows all it is made of.
class ConfigReader {
 public:
  // `where`: "config.json", or "config.json: text_config".
  ConfigReader(const nlohmann::json& json, std::string where, absl::Status& error)
      : json_(json), where_(std::move(where)), error_(error) {}

  bool HasKey(const char* key) const { return json_.contains(key); }
  // True when the key is present and not null.
  bool Has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  template <typename T>
  T Get(const char* key, T fallback) const {
    if (!Has(key)) return fallback;
    try {
      return json_[key].get<T>();
    } catch (const nlohmann::json::exception&) {
      Fail(key, "has the wrong type: " + DumpJson(json_[key]));
      return fallback;
    }
  }

  template <typename T>
  T Required(const char* key) const {
    if (!Has(key)) Fail(key, "is missing");
    return Get<T>(key, T());
  }

  // A whole number above 0; 1 on error. The key is required without `fallback`.
  int64_t Size(const char* key, int64_t fallback = 0) const;
  // A number above 0 and below a million; `fallback` on error.
  double Factor(const char* key, double fallback) const;
  bool Flag(const char* key, bool fallback = false) const;
  // All keys of the object.
  std::vector<std::string> Keys() const;
  // Nullopt for a missing or null object.
  std::optional<ConfigReader> Object(const char* key) const;
  // Keeps the error "<where>: \"<key>\" <problem>", unless there is one.
  void Fail(const char* key, const std::string& problem) const;
  bool ok() const { return error_.ok(); }

 private:
  const nlohmann::json& json_;
  std::string where_;
  absl::Status& error_;
};

}  // namespace sft::plan
