#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "client/base/artifact_file.h"
#include "client/base/interrupt.h"
#include "client/base/job_group.h"
#include "client/commands/commands.h"
#include "client/output/comparison.h"
#include "client/output/evaluation.h"
#include "client/output/evaluation_pairs.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

constexpr int kMostCompared = 100;

absl::StatusOr<std::vector<v1::Metric>> ReadCurve(Connection& connection, const std::string& job) {
  grpc::ClientContext context;
  Interrupt interrupt(context);
  v1::ReadMetricsRequest request;
  request.set_name(job);
  auto reader = connection.To<v1::JobService>().ReadMetrics(&context, request);
  v1::ReadMetricsResponse response;
  std::vector<v1::Metric> curve;
  while (reader->Read(&response)) {
    curve.insert(curve.end(), response.metrics().begin(), response.metrics().end());
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return connection.Describe(status);
  return curve;
}

absl::StatusOr<std::vector<RunFigures>> ReadRuns(Connection& connection,
                                                 const std::vector<std::string>& jobs) {
  const double now = static_cast<double>(UnixMicros(connection.clock().Wall())) / 1e6;
  std::vector<RunFigures> runs;
  for (const std::string& name : jobs) {
    v1::GetJobRequest request;
    request.set_name(name);
    SFT_ASSIGN_OR_RETURN(const v1::Job job,
                         connection.Call(&v1::JobService::Stub::GetJob, request));
    SFT_ASSIGN_OR_RETURN(const std::vector<v1::Metric> curve, ReadCurve(connection, name));
    runs.push_back(FiguresOf(job, curve, now));
  }
  return runs;
}

Json JsonNumber(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

int64_t GpusOf(const RunFigures& run) {
  const Json::json_pointer key("/compute/gpu_count");
  return run.resolved.contains(key) ? run.resolved.at(key).get<int64_t>() : 0;
}

// The last value of each name that a validation has beside its loss: not all of them answer rows.
std::vector<v1::NamedValue> LastValues(const RunFigures& run) {
  std::vector<v1::NamedValue> values;
  for (const v1::Metric& validation : run.validations) {
    for (const v1::NamedValue& value : validation.values()) {
      const auto found = std::ranges::find(values, value.name(), &v1::NamedValue::name);
      if (found == values.end()) {
        values.push_back(value);
      } else {
        *found = value;
      }
    }
  }
  return values;
}

Json RunJson(const RunFigures& run, const CommonSamples& common) {
  const LossAt at = LossAtSamples(run, common);
  Json json = {{"job", ShortName(run.job.name())},
               {"name", run.job.display_name()},
               {"state", StateName(run.job.state())},
               {"method", run.method},
               {"gpus", GpusOf(run)},
               {"variant", run.job.variant()},
               {"steps", run.last_step},
               {"samples", run.samples},
               {"tokens", run.tokens},
               {"tokens_per_second", JsonNumber(run.tokens_per_second)},
               {"gpu_memory_bytes", run.gpu_memory_bytes},
               {"wall_seconds", run.wall_seconds}};
  json["loss"] = run.steps.empty() ? Json(nullptr) : JsonNumber(run.steps.back().loss());
  json["val_loss"] =
      run.validations.empty() ? Json(nullptr) : JsonNumber(run.validations.back().val_loss());
  for (const v1::NamedValue& value : LastValues(run)) {
    json[value.name()] = JsonNumber(value.value());
  }
  json["step_at_samples"] = at.known ? Json(at.step) : Json(nullptr);
  json["loss_at_samples"] = at.known ? JsonNumber(at.loss) : Json(nullptr);
  json["mean_loss_at_samples"] = at.known ? JsonNumber(at.mean) : Json(nullptr);
  return json;
}

void PrintJson(const std::vector<RunFigures>& runs, std::ostream& out) {
  const CommonSamples common = CommonSamplesOf(runs);
  Json list = Json::array();
  for (const RunFigures& run : runs) list.push_back(RunJson(run, common));
  Json differences = Json::object();
  for (const auto& [key, values] : Differences(runs)) differences[key] = values;
  out << DumpJson(Json{{"samples", common.to}, {"runs", list}, {"differences", differences}}, 2)
      << "\n";
}

std::string Loss(bool known, double loss) { return known ? fmt::format("{:.4f}", loss) : "-"; }

// What the last answers to validation rows were graded by, a column for each run.
void PrintGrades(const std::vector<RunFigures>& runs, std::ostream& out) {
  std::vector<std::string> header = {"VALIDATION"}, names;
  for (const RunFigures& run : runs) {
    header.push_back(ShortName(run.job.name()));
    for (const v1::NamedValue& value : LastValues(run)) {
      if (std::ranges::find(names, value.name()) == names.end()) names.push_back(value.name());
    }
  }
  Table table(header);
  for (const std::string& name : names) {
    std::vector<std::string> row = {name};
    for (const RunFigures& run : runs) {
      row.emplace_back("-");
      for (const v1::NamedValue& value : LastValues(run)) {
        if (value.name() == name) row.back() = fmt::format("{:.2f}", value.value());
      }
    }
    table.Add(row);
  }
  if (!names.empty()) out << "\n" << table.Render();
}

void PrintTables(const std::vector<RunFigures>& runs, std::ostream& out) {
  const CommonSamples common = CommonSamplesOf(runs);
  Table table({"JOB", "NAME", "STATE", "METHOD", "GPUS", "STEPS", "SAMPLES", "LOSS",
               fmt::format("LOSS@{}", common.to), "VAL.LOSS", "TOK/S", "MEMORY", "WALL"});
  for (const RunFigures& run : runs) {
    const LossAt at = LossAtSamples(run, common);
    const bool any = !run.steps.empty(), validated = !run.validations.empty();
    table.Add(
        {ShortName(run.job.name()), run.job.display_name(), StateName(run.job.state()), run.method,
         std::to_string(GpusOf(run)), std::to_string(run.last_step), std::to_string(run.samples),
         Loss(any, any ? run.steps.back().loss() : 0), Loss(at.known, at.mean),
         Loss(validated, validated ? run.validations.back().val_loss() : 0),
         Count(run.tokens_per_second), Bytes(run.gpu_memory_bytes), Duration(run.wall_seconds)});
  }
  out << table.Render();
  PrintGrades(runs, out);
  std::vector<std::string> header = {"DIFFERENT"};
  for (const RunFigures& run : runs) header.push_back(ShortName(run.job.name()));
  Table differences(header);
  const auto rows = Differences(runs);
  for (const auto& [key, values] : rows) {
    std::vector<std::string> row = {key};
    row.insert(row.end(), values.begin(), values.end());
    differences.Add(row);
  }
  if (!rows.empty()) out << "\n" << differences.Render();
}

struct CompareOptions {
  std::vector<std::string> jobs;
  std::string group;
  std::string project;
  int samples = 3;
};

// Jobs of kind "evaluate": what each has found, and the others against the first, row by row;
// without that, and with a note, where the rows of one are too many to read here.
ExitCode CompareEvaluations(Connection& connection, const std::vector<RunFigures>& runs,
                            int samples, bool json) {
  std::vector<EvaluationRows> all;
  bool by_rows = true;
  for (const RunFigures& run : runs) {
    EvaluationRows& each = all.emplace_back();
    each.label = ShortName(run.job.name());
    absl::StatusOr<Json> report = ReadArtifactJson(connection, each.label, "evaluation.json");
    if (!report.ok()) return Fail(connection, report.status());
    each.report = *std::move(report);
    if (!by_rows) continue;
    auto rows = ReadArtifactLines(connection, each.label, "scores.jsonl");
    if (absl::IsResourceExhausted(rows.status())) {
      connection.console().err << fmt::format("sftctl: not compared row by row: {}\n",
                                              Message(rows.status()));
      by_rows = false;
      continue;
    }
    if (!rows.ok()) return Fail(connection, rows.status());
    each.rows = *std::move(rows);
  }
  for (EvaluationRows& each : all) {
    if (!by_rows) each.rows.clear();
  }
  std::vector<std::string> labels;
  std::vector<Json> reports;
  for (const EvaluationRows& each : all) {
    labels.push_back(each.label);
    reports.push_back(each.report);
  }
  const std::vector<EvaluationDifference> differences = DifferencesToFirst(all);
  const std::string& first = all.front().label;
  if (!json) {
    connection.console().out << EvaluationsTable(labels, reports);
    if (by_rows) {
      connection.console().out << DifferencesText(first, differences)
                               << CommonSamplesText(all, samples);
    }
    return kSucceeded;
  }
  Json list = Json::array();
  for (const EvaluationRows& each : all) {
    list.push_back({{"job", each.label},
                    {"model", each.report.value("model", Json())},
                    {"adapter", each.report.value("adapter", Json())},
                    {"metrics", each.report.value("metrics", Json())}});
  }
  connection.console().out << DumpJson(Json{{"evaluations", list},
                                            {"differences", DifferencesJson(first, differences)},
                                            {"samples", CommonSamplesJson(all, samples)}},
                                       2)
                           << "\n";
  return kSucceeded;
}

absl::StatusOr<std::vector<std::string>> JobsToCompare(Connection& connection,
                                                       const CompareOptions& options) {
  if (options.group.empty()) return options.jobs;
  SFT_ASSIGN_OR_RETURN(
      const std::vector<v1::Job> jobs,
      JobsOfGroup(connection, {options.group, options.project, {}}, kMostCompared));
  if (jobs.size() < 2) {
    return FailedPrecondition(
        fmt::format("group \"{}\" has one job, {}: there is nothing to compare it with",
                    options.group, ShortName(jobs.front().name())));
  }
  std::vector<std::string> names;
  for (const v1::Job& job : jobs) names.push_back(ShortName(job.name()));
  return names;
}

ExitCode Compare(Connection& connection, const CompareOptions& options, bool json) {
  const absl::StatusOr<std::vector<std::string>> jobs = JobsToCompare(connection, options);
  if (!jobs.ok()) return Fail(connection, jobs.status());
  const absl::StatusOr<std::vector<RunFigures>> runs = ReadRuns(connection, *jobs);
  if (!runs.ok()) return Fail(connection, runs.status());
  const v1::Job::Kind kind = runs->front().job.kind();
  for (const RunFigures& run : *runs) {
    if (run.job.kind() == kind) continue;
    return Fail(connection, InvalidArgument(fmt::format(
                                "{} is of kind {}, {} of kind {}: compare jobs of one kind",
                                ShortName(runs->front().job.name()), KindName(kind),
                                ShortName(run.job.name()), KindName(run.job.kind()))));
  }
  if (kind == v1::Job::EVALUATE)
    return CompareEvaluations(connection, *runs, options.samples, json);
  if (json) {
    PrintJson(*runs, connection.console().out);
  } else {
    PrintTables(*runs, connection.console().out);
  }
  return kSucceeded;
}

}  // namespace

void AddCompare(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "compare", "Compare runs: loss at equal samples, speed, memory, settings; or evaluations",
      "sftctl compare job-abc job-def");
  auto options = std::make_shared<CompareOptions>();
  Option* jobs = command->AddOption("JOB", options->jobs, "Two or more jobs");
  jobs->Times(2, kMostCompared);
  Option* group =
      command->AddOption("--group", options->group, "All jobs of this group instead (job.group)");
  group->Excludes(jobs);
  AddProjectOption(command, options->project)->Needs(group);
  command
      ->AddOption("--samples", options->samples,
                  "Of evaluations: rows shown with the answers of each below the tables")
      ->WholeNumber(0)
      ->ShowDefault();
  AddJsonFlag(command, session);
  command->Check([options] {
    const bool none = options->jobs.empty() && options->group.empty();
    return none ? "JOB: name two or more jobs, or --group GROUP" : "";
  });
  command->Run([&session, options](Connection& connection) {
    return Compare(connection, *options, session.json);
  });
}

}  // namespace sft::client
