#include "common/plan/config_reader.h"

#include <fmt/format.h>

namespace sft::plan {

int64_t ConfigReader::Size(const char* key, int64_t fallback) const {
  constexpr int64_t kMaxSize = int64_t{1} << 32;
  if (!Has(key) && fallback > 0) return fallback;
  if (!Has(key)) {
    Fail(key, "is missing");
    return 1;
  }
  const nlohmann::json& value = json_[key];
  const bool whole = value.is_number_integer();
  if (whole && value.get<int64_t>() >= 1 && value.get<int64_t>() <= kMaxSize) {
    return value.get<int64_t>();
  }
  Fail(key, "must be a whole number above 0, is " + DumpJson(value));
  return 1;
}

double ConfigReader::Factor(const char* key, double fallback) const {
  const double value = Get(key, fallback);
  if (value > 0 && value < 1e6) return value;
  Fail(key, "must be a number above 0");
  return fallback;
}

bool ConfigReader::Flag(const char* key, bool fallback) const {
  if (!Has(key) || json_[key].is_boolean()) return Get(key, fallback);
  Fail(key, "must be true or false, is " + DumpJson(json_[key]));
  return fallback;
}

std::vector<std::string> ConfigReader::Keys() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : json_.items()) keys.push_back(key);
  return keys;
}

std::optional<ConfigReader> ConfigReader::Object(const char* key) const {
  if (!Has(key)) return std::nullopt;
  if (json_[key].is_object()) return ConfigReader(json_[key], where_ + ": " + key, error_);
  Fail(key, "must be an object");
  return std::nullopt;
}

void ConfigReader::Fail(const char* key, const std::string& problem) const {
  if (error_.ok()) error_ = InvalidArgument(fmt::format("{}: \"{}\" {}", where_, key, problem));
}

}  // namespace sft::plan
