#include "worker/rank/evaluation_report.h"

#include <fmt/format.h>

#include <cmath>
#include <deque>
#include <fstream>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/json.h"
#include "common/grade/compare.h"

namespace sft::rank {
namespace {

using ReportJson = nlohmann::ordered_json;
using Sums = grade::Grader::Sums;

constexpr int64_t kSamples = 50;

// The rows that both models were graded on, by metric.
struct Graded {
  const grade::Metric* metric;
  std::vector<grade::PairedSums> rows;
  int64_t ungraded = 0;
  std::string why;  // the first row's
};

ReportJson Number(std::optional<double> value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

// What each model's row adds to a loss metric; nothing where its loss is no number.
std::optional<Sums> LossSums(const grade::Metric& metric, const ReportJson& line,
                             const ReportJson& side) {
  if (!side["nll"].is_number()) return std::nullopt;
  const char* by = metric.name == "bits_per_byte" ? "reference_bytes" : "reference_tokens";
  return Sums{side["nll"].get<double>(), line[by].get<double>()};
}

class Report {
 public:
  Report(const grade::Grader& grader, const std::vector<std::string>& graders) : grader_(grader) {
    for (const grade::Metric* metric : grader.metrics()) graded_.push_back({metric});
    for (const std::string& name : graders) {
      graders_.push_back({.name = name, .doc = "of a grader of the job's"});
    }
    for (const grade::Metric& metric : graders_) graded_.push_back({&metric});
    for (const grade::Metric& metric : grade::Metrics()) {
      if (metric.kind == grade::MetricKind::kLoss) graded_.push_back({&metric});
    }
  }

  void Add(ReportJson line) {
    ++rows_;
    tuned_ = line.contains("tuned");
    errors_ += line.contains("error") ? 1 : 0;
    const std::string reference = line["reference"];
    // A row's scores follow from its texts: the same sums whoever made the line.
    const auto base = grader_.Grade(line["base"]["answer"].get<std::string>(), reference);
    const auto tuned =
        tuned_ ? grader_.Grade(line["tuned"]["answer"].get<std::string>(), reference) : base;
    for (size_t i = 0; i < base.size(); ++i) {
      if (base[i].ok() && tuned[i].ok()) {
        graded_[i].rows.push_back({*base[i], *tuned[i]});
        continue;
      }
      const absl::Status& status = base[i].ok() ? tuned[i].status() : base[i].status();
      if (graded_[i].ungraded++ == 0) {
        graded_[i].why = fmt::format("line {}: {}", line["line"].get<int64_t>(), Message(status));
      }
    }
    size_t next = base.size();
    for (size_t i = 0; i < graders_.size(); ++i) AddVerdict(line, graded_[next++]);
    for (; next < graded_.size(); ++next) AddLoss(line, graded_[next]);
    if (rows_ <= kSamples) samples_.push_back(std::move(line));
  }

  ReportJson Finish(const ReportHead& head) const {
    ReportJson metrics = ReportJson::array();
    for (const Graded& graded : graded_) metrics.push_back(MetricJson(graded));
    ReportJson report = {{"model", head.model},
                         {"adapter", head.adapter},
                         {"data", head.data},
                         {"rows", rows_},
                         {"without_question", head.without_question},
                         {"errors", errors_},
                         {"resamples", grade::kResamples},
                         {"metrics", metrics},
                         {"samples", samples_}};
    return report;
  }

 private:
  // What a program said of the answers stands in the line: it is not asked again.
  static void AddVerdict(const ReportJson& line, Graded& graded) {
    const std::string name(graded.metric->name);
    std::vector<Sums> sums;
    for (const char* side : {"base", "tuned"}) {
      if (!line.contains(side)) continue;
      const ReportJson& scores = line[side]["scores"];
      if (scores.contains(name)) {
        sums.push_back({scores[name].get<double>() / 100, 1});
      } else if (graded.ungraded++ == 0) {
        graded.why = fmt::format("line {}: {}", line["line"].get<int64_t>(),
                                 line[side]["ungraded"].value(name, "no score"));
      }
      if (!scores.contains(name)) return;
    }
    graded.rows.push_back({sums.front(), sums.back()});
  }

  static void AddLoss(const ReportJson& line, Graded& graded) {
    const auto base = LossSums(*graded.metric, line, line["base"]);
    const auto tuned =
        line.contains("tuned") ? LossSums(*graded.metric, line, line["tuned"]) : base;
    if (base && tuned) {
      graded.rows.push_back({*base, *tuned});
    } else if (graded.ungraded++ == 0) {
      graded.why = fmt::format("line {}: the loss is no number", line["line"].get<int64_t>());
    }
  }

  ReportJson MetricJson(const Graded& graded) const {
    const grade::Comparison found =
        grade::Compare(*graded.metric, graded.rows, tuned_ ? grade::kResamples : 0);
    ReportJson json = {{"name", graded.metric->name},
                       {"doc", graded.metric->doc},
                       {"greater_is_better", graded.metric->greater_is_better},
                       {"rows", found.rows},
                       {"base", Number(found.base)}};
    if (graded.ungraded > 0) {
      json["ungraded"] = graded.ungraded;
      json["first_ungraded"] = graded.why;
    }
    if (!tuned_) return json;
    json["tuned"] = Number(found.tuned);
    json["difference"] = Number(found.difference);
    json["low"] = Number(found.low);
    json["high"] = Number(found.high);
    json["p"] = Number(found.p);
    if (found.mcnemar_p) {
      json["only_base"] = found.only_base;
      json["only_tuned"] = found.only_tuned;
      json["mcnemar_p"] = *found.mcnemar_p;
    }
    return json;
  }

  const grade::Grader& grader_;
  std::deque<grade::Metric> graders_;
  std::vector<Graded> graded_;
  int64_t rows_ = 0, errors_ = 0;
  bool tuned_ = false;
  ReportJson samples_ = ReportJson::array();
};

}  // namespace

absl::StatusOr<ReportJson> MakeReport(const std::string& lines_file, const grade::Grader& grader,
                                      const ReportHead& head) {
  std::ifstream file(lines_file);
  if (!file) return NotFound(lines_file + " cannot be read");
  Report report(grader, head.graders);
  for (std::string text; std::getline(file, text);) {
    ReportJson line = ParseOrderedJson(text);
    if (!line.is_object()) return DataLoss(lines_file + " holds a line that is no JSON");
    report.Add(std::move(line));
  }
  return report.Finish(head);
}

}  // namespace sft::rank
