#include "common/spec/template_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "common/base/status.h"
#include "common/spec/draft.h"
#include "common/spec/template_check.h"

namespace sft::spec {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kTemplateKey = "data.chat_template",
                           kTemplateDateKey = "data.template_date",
                           kArgumentsKey = "data.template_arguments";
constexpr size_t kShownOfItem = 80, kDayBytes = 10;  // of "2026-11-26"
// Given by the rows, the tokenizer or who asks.
constexpr std::string_view kNotFree[] = {
    "messages",  "tools",     "documents", "add_generation_prompt",
    "bos_token", "eos_token", "unk_token", "pad_token"};

bool IsVariable(std::string_view text) {
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text.front())) == 0 &&
         std::ranges::all_of(text, is_part);
}

// The item of a name and its value: a text stands as it is where it would not be read as JSON.
std::string ArgumentItem(std::string_view name, const Json& value) {
  const std::string* const text = value.get_ptr<const std::string*>();
  const bool plain = text != nullptr && ParseOrderedJson(*text).is_discarded();
  return fmt::format("{}={}", name, plain ? *text : DumpJson(value));
}

}  // namespace

std::string DayOf(WallTime time) { return FormatUtc(time).substr(0, kDayBytes); }

bool IsDay(std::string_view text) {
  return text.size() == kDayBytes && text.find_first_not_of("0123456789-") == text.npos &&
         ParseUtc(fmt::format("{}T00:00:00Z", text)).has_value();
}

bool AsksForDay(std::string_view chat_template) {
  return chat_template.find("strftime_now") != chat_template.npos;
}

absl::StatusOr<Json> TemplateArguments(const std::vector<std::string>& items) {
  Json arguments = Json::object();
  for (const std::string_view item : items) {
    const std::string_view shown = item.substr(0, kShownOfItem);
    const size_t equals = item.find('=');
    const std::string name(item.substr(0, equals));
    if (equals == item.npos || !IsVariable(name)) {
      return InvalidArgument(fmt::format(
          "\"{}\" is not NAME=VALUE with a name as the template writes it: reasoning_effort=high",
          shown));
    }
    if (std::ranges::find(kNotFree, name) != std::end(kNotFree)) {
      return InvalidArgument(
          fmt::format("\"{}\": {} is given by the rows or the model's tokenizer", shown, name));
    }
    if (arguments.contains(name)) {
      return InvalidArgument(fmt::format("\"{}\" gives {} for the second time", shown, name));
    }
    const std::string_view text = item.substr(equals + 1);
    Json value = ParseOrderedJson(text);
    arguments[name] = value.is_discarded() ? Json(text) : std::move(value);
  }
  return arguments;
}

absl::StatusOr<std::vector<std::string>> ArgumentsOfTable(std::span<const RawEntry> table,
                                                          std::string_view prefix) {
  std::vector<std::string> items;
  for (const RawEntry& entry : table) {
    const std::string_view name = std::string_view(entry.key).substr(prefix.size());
    if (entry.is_null) continue;
    const double* const number = entry.value ? std::get_if<double>(&*entry.value) : nullptr;
    if (!entry.value || (number != nullptr && !std::isfinite(*number))) {
      return InvalidArgument(fmt::format(
          "{} must be a text, a number, true, false or a list of texts, but is {}", name,
          entry.is_table       ? "a table"
          : entry.kind.empty() ? "no number"
                               : entry.kind));
    }
    items.push_back(ArgumentItem(
        name, std::visit([](const auto& value) { return Json(value); }, *entry.value)));
  }
  return items;
}

void ResolveTemplate(const ResolveOptions& options, Draft* draft) {
  if (!draft->Faulty({kTemplateKey})) {
    const std::string problem = TemplateProblem(draft->String(kTemplateKey));
    if (!problem.empty()) draft->AddLater(kTemplateKey, problem);
  }
  if (!draft->Faulty({kArgumentsKey})) {
    const auto arguments = TemplateArguments(ListOf(*draft, kArgumentsKey));
    if (!arguments.ok()) draft->AddProblem(kArgumentsKey, std::string(Message(arguments.status())));
  }
  if (draft->Faulty({kTemplateDateKey})) return;
  const std::string day = draft->String(kTemplateDateKey);
  if (!day.empty() && !IsDay(day)) {
    draft->AddProblem(kTemplateDateKey, fmt::format("\"{}\" is no day of the calendar written as "
                                                    "\"2026-11-26\" (year, month, day)",
                                                    day.substr(0, kShownOfItem)));
  }
  // Whoever serves answers on many days.
  const std::string kind = draft->Has("job.kind") ? draft->String("job.kind") : kTrainingKind;
  if (day.empty() && !options.day.empty() && kind != kServeKind) {
    draft->Derive(kTemplateDateKey, options.day, options.day_of);
  }
}

}  // namespace sft::spec
