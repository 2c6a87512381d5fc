#include "server/http/exposition.h"

#include <fmt/format.h>

namespace sft::server {
namespace {

std::string Escape(const std::string& value) {
  std::string escaped;
  for (const char c : value) {
    if (c == '\\' || c == '"') escaped += '\\';
    if (c == '\n') {
      escaped += "\\n";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

void Exposition::Metric(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

void Exposition::Sample(const Labels& labels, double value) { Write("", labels, value); }

void Exposition::Sample(const Labels& labels, const obs::Histogram::Counts& counts) {
  for (size_t i = 0; i < counts.cumulative.size(); ++i) {
    Labels with_bound = labels;
    with_bound.emplace_back(
        "le", i < counts.bounds.size() ? fmt::format("{}", counts.bounds[i]) : "+Inf");
    Write("_bucket", with_bound, static_cast<double>(counts.cumulative[i]));
  }
  Write("_sum", labels, counts.sum);
  Write("_count", labels, static_cast<double>(counts.cumulative.back()));
}

void Exposition::Write(std::string_view suffix, const Labels& labels, double value) {
  std::string list;
  for (const auto& [key, text] : labels) {
    list += fmt::format("{}{}=\"{}\"", list.empty() ? "" : ",", key, Escape(text));
  }
  text_ += list.empty() ? fmt::format("{}{} {}\n", name_, suffix, value)
                        : fmt::format("{}{}{{{}}} {}\n", name_, suffix, list, value);
}

}  // namespace sft::server
