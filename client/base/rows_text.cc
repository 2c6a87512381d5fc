#include "client/base/rows_text.h"

#include <absl/strings/numbers.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <variant>

#include "client/base/data_program.h"
#include "client/output/format.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "common/spec/fields.h"
#include "common/spec/value.h"

namespace sft::client {
namespace {

// As many rows take a second or two.
constexpr int64_t kFastRows = 1000;

// Behind a list's flag stand its items; none, where the value is not one of the key.
std::vector<std::string> ListItems(std::string_view key, const std::string& text) {
  const absl::StatusOr<spec::Value> value = spec::ParseText(*spec::FindField(key), text);
  if (!value.ok()) return {};
  const auto* const items = std::get_if<std::vector<std::string>>(&*value);
  return items == nullptr ? std::vector<std::string>() : *items;
}

// The report on the first rows; discarded, with the reason in `why`, where there is none.
nlohmann::json MeasureRows(const LocalFile& file, const v1::ResolveJobResponse& resolution,
                           const std::string& model, std::string* why) {
  std::vector<std::string> arguments = {file.path, "--name", file.shown(),
                                        "--model", model,    "--json"};
  const auto value_of = [&](std::string_view key) { return ValueOf(resolution, key); };
  for (std::string& argument : RowArguments(value_of)) arguments.push_back(std::move(argument));
  const std::string taken = ValueOf(resolution, "data.max_examples");
  int64_t rows = 0;
  if (!absl::SimpleAtoi(taken, &rows) || rows == 0 || rows > kFastRows) rows = kFastRows;
  arguments.insert(arguments.end(), {"--first", std::to_string(rows)});
  const absl::StatusOr<DataProgramEnd> end = RunDataProgram(std::move(arguments), /*keeps=*/true);
  if (!end.ok()) {
    *why = std::string(Message(end.status()));
    return nlohmann::json(nlohmann::json::value_t::discarded);
  }
  nlohmann::json report = ParseJson(end->said);
  if (!report.is_object()) *why = end->said.substr(0, end->said.find('\n'));
  return report;
}

int64_t RowsOver(const nlohmann::json& report, int64_t limit) {
  for (const nlohmann::json& each : report.at("longer")) {
    if (each.at("tokens") == limit) return each.at("rows").get<int64_t>();
  }
  return 0;
}

std::string MeasuredText(const nlohmann::json& report, int64_t all, const std::string& rule) {
  const auto number = [&](const char* key) { return report.at(key).get<int64_t>(); };
  const int64_t rows = number("rows"), tokens = number("tokens"), limit = number("sequence_length");
  const double share =
      tokens == 0 ? 0
                  : 100 * static_cast<double>(number("loss_tokens")) / static_cast<double>(tokens);
  std::string text =
      fmt::format("  tokens    {}{}, {:.1f} % of them with loss; a row has {} to {}\n",
                  Count(static_cast<double>(tokens)),
                  rows < all ? fmt::format(" in the first {} rows", rows) : "", share,
                  number("shortest"), number("longest"));
  // What is not trained on has any length.
  if (!rule.empty())
    text +=
        fmt::format("  too long  {} of {} rows have more than {} tokens (data.on_long_rows = {})\n",
                    RowsOver(report, limit), rows, limit, rule);
  if (number("bad_rows") > 0) {
    const nlohmann::json& first = report.at("first_bad_rows").at(0);
    text += fmt::format("  bad rows  {} of {}, the first at line {}: {}\n", number("bad_rows"),
                        rows, first.at("line").get<int64_t>(),
                        OneLine(first.at("reason").get<std::string>()));
  }
  return text;
}

std::string UnknownText(const LocalFile& file, const data::DatasetCheck& found,
                        const v1::ResolveJobResponse& resolution, const std::string& job_file,
                        const std::string& why) {
  const std::string length = ValueOf(resolution, "hyperparameters.sequence_length");
  std::string text = fmt::format("  tokens    not known{}; the rows have {}, the longest {}\n", why,
                                 Bytes(found.bytes), Bytes(found.longest_bytes));
  if (length.empty()) return text;
  const std::string path =
      file.name.empty() ? file.path : file.name.substr(0, file.name.rfind('/'));
  return text +
         fmt::format(
             "  too long  not known for {} tokens (hyperparameters.sequence_length): `sftctl "
             "data check {} --job {}` tells, and what is learnt\n",
             length, OneLine(path), OneLine(job_file));
}

}  // namespace

std::string ValueOf(const v1::ResolveJobResponse& resolution, std::string_view key) {
  for (const v1::ResolvedValue& value : resolution.resolved()) {
    if (value.key() == key) return value.value();
  }
  return "";
}

std::vector<std::string> RowArguments(const ValueOfKey& value_of) {
  std::vector<std::string> arguments;
  for (const auto& [flag, key] :
       {std::pair("--columns", "data.columns"), std::pair("--roles", "data.roles"),
        std::pair("--chat-template", "data.chat_template"),
        std::pair("--template-date", "data.template_date"), std::pair("--loss-on", "data.loss_on"),
        std::pair("--loss", "training.loss"),
        std::pair("--sequence-length", "hyperparameters.sequence_length"),
        std::pair("--alpaca-prompt", "data.alpaca_prompt"),
        std::pair("--text-documents", "data.text_documents")}) {
    if (std::string value = value_of(key); !value.empty()) {
      arguments.insert(arguments.end(), {flag, std::move(value)});
    }
  }
  constexpr std::string_view kTemplate = "data.template_arguments";
  for (std::string& item : ListItems(kTemplate, value_of(kTemplate))) {
    arguments.insert(arguments.end(), {"--template-argument", std::move(item)});
  }
  return arguments;
}

std::string RowsText(const LocalFile& file, const data::DatasetCheck& found,
                     const v1::ResolveJobResponse& resolution, const std::string& job_file) {
  std::string text = fmt::format("{}: {} rows: {}\n", OneLine(file.shown()), found.rows,
                                 data::FormsText(found.forms));
  if (found.odd_rows > 0) {
    text += fmt::format("  {} of them cannot be used, the first at {}\n", found.odd_rows,
                        OneLine(found.first_odd));
  }
  const std::string model = ValueOf(resolution, "job.model");
  if (model.empty() || !HasTokenizer(model)) {
    return text + UnknownText(file, found, resolution, job_file,
                              ": the model's tokenizer is not on this machine");
  }
  std::string why;
  const nlohmann::json report = MeasureRows(file, resolution, model, &why);
  if (!report.is_object()) {
    return text + UnknownText(file, found, resolution, job_file, ": " + OneLine(why));
  }
  try {
    return text + MeasuredText(report, found.rows, ValueOf(resolution, "data.on_long_rows"));
  } catch (const nlohmann::json::exception&) {
    return text + UnknownText(file, found, resolution, job_file,
                              ": sft-data beside sftctl is of another version");
  }
}

}  // namespace sft::client
