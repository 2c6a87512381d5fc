#include "common/spec/grader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/plain_text.h"
#include "common/grade/metric.h"

namespace sft::spec {
namespace {

using GraderJson = nlohmann::json;

constexpr size_t kLongestName = 40, kMostArguments = 64, kMostShown = 80;
constexpr int kLongestSeconds = 600;
constexpr int64_t kLeastMegabytes = 16, kMostMegabytes = 1 << 20;

absl::Status ReadName(const GraderJson& value, std::string& name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (!value.is_string()) {
    return InvalidArgument(
        fmt::format("name: give a text: {} needs quotes", Shortened(value.dump(), kMostShown)));
  }
  name = value.get<std::string>();
  if (name.empty() || name.size() > kLongestName || !std::all_of(name.begin(), name.end(), plain)) {
    return InvalidArgument(
        fmt::format("name: give a name of a-z, 0-9 and _, of at most {} characters", kLongestName));
  }
  if (grade::FindMetric(name) != nullptr) {
    return InvalidArgument(fmt::format("name: \"{}\" is a metric; give another name", name));
  }
  return absl::OkStatus();
}

absl::Status ReadCommand(const GraderJson& value, std::vector<std::string>& command) {
  for (const GraderJson& item : value.is_array() ? value : GraderJson::array()) {
    if (item.is_string()) continue;
    return InvalidArgument(fmt::format("command: its items are texts: {} needs quotes",
                                       Shortened(item.dump(), kMostShown)));
  }
  const bool list = value.is_array() && !value.empty() && value.size() <= kMostArguments &&
                    std::all_of(value.begin(), value.end(), [](const GraderJson& item) {
                      return item.is_string() &&
                             item.get_ref<const std::string&>().find('\0') == std::string::npos;
                    });
  if (list) command = value.get<std::vector<std::string>>();
  if (!list || !command[0].starts_with('/')) {
    return InvalidArgument(
        "command: give a list, the program by its absolute path on the nodes and then its "
        "arguments; no shell reads it");
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadNumber(const char* key, const GraderJson& value, T least, T most, T& number) {
  const bool whole = value.is_number_integer();
  if (!(std::is_integral_v<T> ? whole : value.is_number()) || value.get<double>() < least ||
      value.get<double>() > most) {
    return InvalidArgument(fmt::format("{}: give a {} from {} to {}", key,
                                       std::is_integral_v<T> ? "whole number" : "number", least,
                                       most));
  }
  number = value.get<T>();
  return absl::OkStatus();
}

absl::Status ReadMember(const std::string& key, const GraderJson& value, CommandGrader& grader) {
  constexpr double kMost = 1e9;
  if (key == "type") return absl::OkStatus();
  if (key == "name") return ReadName(value, grader.name);
  if (key == "command") return ReadCommand(value, grader.command);
  if (key == "low") return ReadNumber("low", value, -kMost, kMost, grader.low);
  if (key == "high") return ReadNumber("high", value, -kMost, kMost, grader.high);
  if (key == "timeout_seconds") {
    return ReadNumber("timeout_seconds", value, 1, kLongestSeconds, grader.timeout_seconds);
  }
  if (key == "memory_mb") {
    return ReadNumber("memory_mb", value, kLeastMegabytes, kMostMegabytes, grader.memory_mb);
  }
  return InvalidArgument(
      fmt::format("\"{}\" is unknown; there are type, name, command, low, high, timeout_seconds "
                  "and memory_mb",
                  key));
}

}  // namespace

absl::StatusOr<CommandGrader> ParseGrader(std::string_view json) {
  const GraderJson table = ParseJson(json);
  if (!table.is_object()) {
    return InvalidArgument("is no table: write [[evaluate.grader]] and its keys below");
  }
  const auto type = table.find("type");
  if (type == table.end() || *type != "command") {
    return InvalidArgument(type != table.end() && *type == "judge"
                               ? "type = \"judge\": not supported yet; there is \"command\""
                               : "type: there is \"command\"");
  }
  CommandGrader grader;
  for (const auto& [key, value] : table.items()) {
    SFT_RETURN_IF_ERROR(ReadMember(key, value, grader));
  }
  if (grader.name.empty()) return InvalidArgument("name is missing: what its score is called");
  if (grader.command.empty()) return InvalidArgument("command is missing: the program to run");
  if (!(grader.low < grader.high)) {
    return InvalidArgument(
        fmt::format("low = {} and high = {}: the best score has to be above the "
                    "worst",
                    grader.low, grader.high));
  }
  return grader;
}

}  // namespace sft::spec
