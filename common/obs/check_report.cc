#include "common/obs/check_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"

namespace sft::obs {
namespace {

const char* Name(CheckLevel level) {
  switch (level) {
    case CheckLevel::kOk:
      return "ok";
    case CheckLevel::kWarn:
      return "warn";
    case CheckLevel::kFail:
      return "FAIL";
  }
  return "";
}

}  // namespace

void CheckReport::Ok(std::string_view name, std::string text) {
  lines_.push_back({CheckLevel::kOk, std::string(name), std::move(text), ""});
}

void CheckReport::Warn(std::string_view name, std::string text, std::string advice) {
  lines_.push_back({CheckLevel::kWarn, std::string(name), std::move(text), std::move(advice)});
}

void CheckReport::Fail(std::string_view name, std::string text, std::string advice) {
  lines_.push_back({CheckLevel::kFail, std::string(name), std::move(text), std::move(advice)});
}

void CheckReport::Take(std::string_view name, const absl::Status& status, std::string text,
                       std::string advice) {
  if (status.ok()) return Ok(name, std::move(text));
  Fail(name, std::string(Message(status)), std::move(advice));
}

std::string CheckReport::Text() const {
  std::string text;
  for (const Line& line : lines_) {
    text += fmt::format("{:<5} {:<13} {}\n", Name(line.level), line.name, line.text);
    if (!line.advice.empty()) text += fmt::format("{:<19} -> {}\n", "", line.advice);
  }
  return text;
}

std::string CheckReport::Json() const {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Line& line : lines_) {
    checks.push_back({{"name", line.name},
                      {"level", Name(line.level)},
                      {"text", line.text},
                      {"advice", line.advice}});
  }
  const nlohmann::ordered_json all{{"ok", ExitCode() == 0}, {"checks", checks}};
  return DumpJson(all, 2) + "\n";
}

int CheckReport::ExitCode() const {
  return std::any_of(lines_.begin(), lines_.end(),
                     [](const Line& line) { return line.level == CheckLevel::kFail; })
             ? 1
             : 0;
}

}  // namespace sft::obs
