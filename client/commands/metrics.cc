#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/interrupt.h"
#include "client/job_follow.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"

namespace sft::client {
namespace {

struct MetricOptions {
  std::string job;
  bool follow = false;
};

std::vector<std::string> Row(const v1::Metric& metric) {
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

ExitCode Metrics(Connection& connection, const MetricOptions& options, bool json) {
  v1::ReadMetricsRequest request;
  request.set_name(options.job);
  request.set_follow(options.follow);
  Table table({"STEP", "LOSS", "VAL.LOSS", "LR", "GRAD_NORM", "TOKENS", "TOK/S", "MEMORY"});
  // A broken stream goes on at the point it had reached.
  const auto stream = [&](bool& heard, bool& ended) {
    grpc::ClientContext context;
    Interrupt interrupt(context);
    auto reader = connection.jobs().ReadMetrics(&context, request);
    v1::ReadMetricsResponse response;
    while (reader->Read(&response)) {
      heard = true;
      for (const v1::Metric& metric : response.metrics()) {
        if (json || options.follow) {
          connection.console().out << MetricJson(metric).dump() << std::endl;
        } else {
          table.Add(Row(metric));
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
  if (!json && !options.follow) connection.console().out << table.Render();
  return kSucceeded;
}

}  // namespace

void AddMetrics(CLI::App& app, Session& session) {
  CLI::App* command = AddCommand(app, "metrics", "Print a job's training and validation curve",
                                 "sftctl metrics job-abc --json > curve.jsonl");
  auto options = std::make_shared<MetricOptions>();
  command->add_option("JOB", options->job, "Job")->required();
  command->add_flag("--follow", options->follow,
                    "Go on until the job has ended (one JSON object a line)");
  AddJsonFlag(command, session);
  command->callback([&session, options] {
    session.command = [&session, options](Connection& connection) {
      return Metrics(connection, *options, session.json);
    };
  });
}

}  // namespace sft::client
