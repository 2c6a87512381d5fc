#include <absl/strings/ascii.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/progress.h"
#include "client/output/table.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/paths.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct MetricOptions {
  std::string job;
  bool follow = false;
  bool all_attempts = false;
  bool ranks = false;
  std::string tensorboard;  // folder
};

std::vector<std::string> PlainRow(const v1::Metric& metric) {
  if (metric.is_eval()) {
    return {std::to_string(metric.step()),
            "",
            fmt::format("{:.4f}", metric.val_loss()),
            "",
            "",
            "",
            "",
            ""};
  }
  return {std::to_string(metric.step()),
          fmt::format("{:.4f}", metric.loss()),
          "",
          fmt::format("{:.3e}", metric.lr()),
          fmt::format("{:.4f}", metric.grad_norm()),
          std::to_string(metric.tokens()),
          Count(metric.tokens_per_second()),
          Bytes(metric.gpu_memory_bytes())};
}

std::vector<std::string> Row(const v1::Metric& metric) {
  std::vector<std::string> row = PlainRow(metric);
  if (!metric.has_preference()) return row;
  const v1::Preference& preference = metric.preference();
  for (const double value : {preference.rewards_chosen(), preference.rewards_rejected(),
                             MarginOf(preference), preference.rewards_accuracies()}) {
    row.push_back(fmt::format("{:.4f}", value));
  }
  return row;
}

// Points of a curve as a table, which has a column for each value that some validation has.
class CurveTable {
 public:
  void Add(const v1::Metric& metric) {
    prefers_ = prefers_ || metric.has_preference();
    waits_ = waits_ || metric.traffic_size() > 0;
    for (const v1::NamedValue& value : metric.values()) {
      if (std::ranges::find(names_, value.name()) == names_.end()) names_.push_back(value.name());
    }
    metrics_.push_back(metric);
  }

  std::string Render() const {
    std::vector<std::string> header = {"STEP",      "LOSS",   "VAL.LOSS", "LR",
                                       "GRAD_NORM", "TOKENS", "TOK/S",    "MEMORY"};
    if (prefers_) header.insert(header.end(), {"CHOSEN", "REJECTED", "MARGIN", "ACCURACY"});
    const size_t columns = header.size();
    if (waits_) header.push_back("COMM");
    for (const std::string& name : names_) header.push_back(absl::AsciiStrToUpper(name));
    Table table(header);
    for (const v1::Metric& metric : metrics_) {
      std::vector<std::string> row = Row(metric);
      row.resize(columns);
      if (waits_) row.push_back(ShareOf(metric));
      for (const std::string& name : names_) row.push_back(ValueOf(metric, name));
      table.Add(std::move(row));
    }
    return table.Render();
  }

 private:
  // Part of the step in which ranks waited for each other.
  static std::string ShareOf(const v1::Metric& metric) {
    if (metric.traffic().empty()) return "";
    return fmt::format("{:.1f}%", 100 * ExposedShare(metric.traffic()));
  }

  static std::string ValueOf(const v1::Metric& metric, const std::string& name) {
    for (const v1::NamedValue& value : metric.values()) {
      if (value.name() == name) return fmt::format("{:.2f}", value.value());
    }
    return "";
  }

  std::vector<v1::Metric> metrics_;
  std::vector<std::string> names_;  // in the order of their first appearance
  bool prefers_ = false;
  bool waits_ = false;  // some points say how long ranks waited for each other
};

// The row of a table of metrics, for a job that answers prompts.
std::vector<std::string> AnswersRow(const v1::Metric& metric) {
  return {std::to_string(metric.step()), std::to_string(metric.total_steps()),
          std::to_string(metric.tokens()), Count(metric.tokens_per_second())};
}

Json AnswersJson(const v1::Metric& metric) {
  return {{"type", "answers"},
          {"answers", metric.step()},
          {"total", metric.total_steps()},
          {"tokens", metric.tokens()},
          {"tokens_per_second", metric.tokens_per_second()},
          {"time", Utc(metric.time())},
          {"attempt", metric.attempt()}};
}

bool AnswersPrompts(Connection& connection, const std::string& job) {
  v1::GetJobRequest request;
  request.set_name(job);
  const auto found = connection.Call(&v1::JobService::Stub::GetJob, request);
  return found.ok() && CountsAnswers(found->kind());
}

ExitCode Metrics(Connection& connection, const MetricOptions& options, bool json) {
  v1::ReadMetricsRequest request;
  request.set_name(options.job);
  request.set_follow(options.follow);
  request.set_all_attempts(options.all_attempts);
  const bool answers = AnswersPrompts(connection, options.job);
  Table of_answers({"ANSWERS", "OF", "TOKENS", "TOK/S"});
  CurveTable of_steps;
  // A broken stream resumes at the point it had reached.
  const auto stream = [&](bool& heard, bool& ended) {
    grpc::ClientContext context;
    Interrupt interrupt(context);
    auto reader = connection.To<v1::JobService>().ReadMetrics(&context, request);
    v1::ReadMetricsResponse response;
    while (reader->Read(&response)) {
      heard = true;
      for (const v1::Metric& metric : response.metrics()) {
        if (json || options.follow) {
          connection.console().out << DumpJson(answers ? AnswersJson(metric) : MetricJson(metric))
                                   << std::endl;
        } else if (answers) {
          of_answers.Add(AnswersRow(metric));
        } else {
          of_steps.Add(metric);
        }
      }
      request.set_index(response.next_index());
    }
    grpc::Status status = reader->Finish();
    ended = status.ok();
    return status;
  };
  const absl::Status status = ReadThroughOutages(connection, options.follow, stream);
  if (Interrupt::Raised()) {
    return Detached(connection, fmt::format("sftctl metrics {} --follow", options.job));
  }
  if (!status.ok()) return Fail(connection, status);
  if (json || options.follow) return kSucceeded;
  connection.console().out << (answers ? of_answers.Render() : of_steps.Render());
  return kSucceeded;
}

// Parts of a rank's curve in a table, and in JSON, where they are as many as the server keeps.
constexpr int kTableParts = 10, kAllParts = 4000;

// Loss and memory of every rank over its own rows.
ExitCode Ranks(Connection& connection, const MetricOptions& options, bool json) {
  v1::GetCurveRequest request;
  request.set_name(options.job);
  request.add_values("rank_loss");
  request.add_values("rank_memory");
  request.set_max_parts(json ? kAllParts : kTableParts);
  const auto curve = connection.Call(&v1::JobService::Stub::GetCurve, request);
  if (!curve.ok()) return Fail(connection, curve.status());
  // By rank and step: the lowest and highest of parts are other steps for loss and memory.
  struct Point {
    std::optional<double> loss, memory;
  };
  std::map<std::pair<int, int64_t>, Point> points;
  for (const v1::CurveSeries& series : curve->series()) {
    for (int i = 0; i < series.x_size(); ++i) {
      Point& point = points[{series.rank(), std::llround(series.x(i))}];
      if (!std::isfinite(series.y(i))) continue;
      (series.name() == "rank_loss" ? point.loss : point.memory) = series.y(i);
    }
  }
  Table table({"RANK", "STEP", "LOSS", "MEMORY"});
  const auto number = [](const std::optional<double>& value) {
    return value ? Json(*value) : Json(nullptr);
  };
  for (const auto& [key, point] : points) {
    if (json) {
      connection.console().out << DumpJson(Json{{"type", "rank"},
                                                {"rank", key.first},
                                                {"step", key.second},
                                                {"loss", number(point.loss)},
                                                {"gpu_memory_bytes", number(point.memory)}})
                               << "\n";
      continue;
    }
    table.Add({std::to_string(key.first), std::to_string(key.second),
               point.loss ? fmt::format("{:.4f}", *point.loss) : "",
               point.memory ? Bytes(std::llround(*point.memory)) : ""});
  }
  if (points.empty()) {
    connection.console().err << fmt::format("no rank of {} has told of its own loss\n",
                                            ShortName(options.job));
  } else if (!json) {
    connection.console().out << table.Render();
  }
  return kSucceeded;
}

// Writes a chunk to its file below the folder; an existing file is replaced.
absl::Status SaveChunk(const std::string& folder, const v1::ReadTensorBoardResponse& chunk,
                       std::optional<io::AppendFile>& file) {
  if (!io::IsSafeRelative(chunk.file()) || chunk.file().find('/') != std::string::npos) {
    return InvalidArgument("the server names a file outside the folder: " + chunk.file());
  }
  const std::string path = folder + "/" + chunk.file();
  if (!file || file->path() != path) {
    SFT_ASSIGN_OR_RETURN(file, io::AppendFile::Open(path));
    SFT_RETURN_IF_ERROR(file->Truncate(0));
  }
  return file->Append(chunk.data());
}

// Downloads the event files into DIR/JOB, so that one DIR holds the runs of many jobs.
ExitCode TensorBoard(Connection& connection, const MetricOptions& options) {
  const std::string folder = options.tensorboard + "/" + ShortName(options.job);
  v1::ReadTensorBoardRequest request;
  request.set_name(options.job);
  grpc::ClientContext context;
  Interrupt interrupt(context);
  const auto reader = connection.To<v1::JobService>().ReadTensorBoard(&context, request);
  v1::ReadTensorBoardResponse chunk;
  std::optional<io::AppendFile> file;
  absl::Status saved;
  bool any = false;
  while (saved.ok() && reader->Read(&chunk)) {
    if (!any) saved = io::MakeDirs(folder);
    any = true;
    if (saved.ok()) saved = SaveChunk(folder, chunk, file);
  }
  if (!saved.ok()) context.TryCancel();
  const grpc::Status status = reader->Finish();
  if (!saved.ok()) return Fail(connection, saved);
  if (!status.ok()) return Fail(connection, connection.Describe(status));
  if (!any) return Fail(connection, NotFound(options.job + " has no metrics yet"));
  connection.console().err << fmt::format("tensorboard --logdir {}\n", options.tensorboard);
  connection.console().out << folder << "\n";
  return kSucceeded;
}

}  // namespace

void AddMetrics(Command& app, Session& session) {
  Command* command = app.AddCommand("metrics", "Print a job's training and validation curve",
                                    "sftctl metrics job-abc --json > curve.jsonl");
  auto options = std::make_shared<MetricOptions>();
  command->AddOption("JOB", options->job, "Job")->Required();
  command->AddFlag("--follow", options->follow,
                   "Keep printing until the job ends (one JSON object per line)");
  command->AddFlag("--all-attempts", options->all_attempts,
                   "Include steps that a later attempt repeated after a restart");
  command->AddOption("--tensorboard", options->tensorboard,
                     "Download the TensorBoard event files to DIR/JOB instead");
  command->AddFlag("--ranks", options->ranks,
                   "Loss and memory of each rank over its own rows; a long run in fewer points");
  AddJsonFlag(command, session);
  command->Check([options] {
    return options->ranks && (options->follow || options->all_attempts)
               ? "--ranks: leave out --follow and --all-attempts"
               : "";
  });
  command->Run([&session, options](Connection& connection) {
    if (options->ranks) return Ranks(connection, *options, session.json);
    if (!options->tensorboard.empty()) return TensorBoard(connection, *options);
    return Metrics(connection, *options, session.json);
  });
}

}  // namespace sft::client
