#pragma once

#include <absl/status/statusor.h>

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/spec/raw_entry.h"

// What a chat template is given beside the conversation: data.template_date and
// data.template_arguments.

namespace sft::spec {

// The day that earlier versions gave every template that asks for one. Their jobs go on with it.
inline constexpr char kFormerTemplateDate[] = "2024-07-26";

// The day of a time, in UTC: "2026-11-26".
std::string DayOf(WallTime time);
// True for a day of the calendar written so.
bool IsDay(std::string_view text);

// True for a template that prints the day it is.
bool AsksForDay(std::string_view chat_template);

// The items of data.template_arguments, each "name=value", as an object: a value is JSON, or else a
// text. InvalidArgument names the item that is none, or whose name is twice there or is not free.
absl::StatusOr<nlohmann::ordered_json> TemplateArguments(const std::vector<std::string>& items);
// The items that a table of a job file stands for; `table` holds what is in it, each key with the
// table's name before it (`prefix`). InvalidArgument names a value that no argument has.
absl::StatusOr<std::vector<std::string>> ArgumentsOfTable(std::span<const RawEntry> table,
                                                          std::string_view prefix);

}  // namespace sft::spec
