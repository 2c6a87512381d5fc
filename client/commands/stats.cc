#include <fmt/format.h>
#include <fmt/ranges.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/table.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "common/base/money.h"
#include "sft/v1/operator_service.grpc.pb.h"

namespace sft::client {
namespace {

struct StatsOptions {
  std::string since = "30d";
  std::string by;
};

std::string Ended(const v1::StatsRow& row) {
  return fmt::format("{} / {} / {}", row.succeeded(), row.failed(), row.cancelled());
}

std::string Wait(bool known, double seconds) { return known ? Duration(seconds) : "-"; }

std::string Failures(const v1::StatsRow& row) {
  std::vector<std::string> parts;
  for (const v1::VerdictCount& each : row.failures()) {
    parts.push_back(fmt::format("{} {}", each.count(), each.code()));
  }
  return parts.empty() ? "-" : fmt::format("{}", fmt::join(parts, ", "));
}

double Share(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

Json RowJson(const v1::StatsRow& row) {
  Json failures = Json::array();
  for (const v1::VerdictCount& each : row.failures()) {
    failures.push_back({{"code", each.code()}, {"domain", each.domain()}, {"count", each.count()}});
  }
  return {{"name", row.name()},
          {"gpu_hours", row.gpu_hours()},
          {"cpu_slot_hours", row.cpu_slot_hours()},
          {"succeeded", row.succeeded()},
          {"failed", row.failed()},
          {"cancelled", row.cancelled()},
          {"placed", row.placed()},
          {"wait_median_seconds",
           row.has_wait_median_seconds() ? Json(row.wait_median_seconds()) : Json(nullptr)},
          {"wait_p90_seconds",
           row.has_wait_p90_seconds() ? Json(row.wait_p90_seconds()) : Json(nullptr)},
          {"cost_micros", row.cost_micros()},
          {"failures", failures}};
}

Json EstimateJson(const v1::EstimateError& error) {
  return {{"estimate", error.estimate()},   {"count", error.count()},
          {"within_10", error.within_10()}, {"within_20", error.within_20()},
          {"within_50", error.within_50()}, {"mean_error", error.mean()}};
}

std::string EstimateText(const v1::EstimateError& error) {
  const auto count = static_cast<double>(error.count());
  return fmt::format(
      "{} of {} job{}: {:.0f}% within 20%, {:.0f}% within 50%, {:.0f}% off on average",
      error.estimate() == "end_after_50_steps" ? "end, after 50 steps," : error.estimate(),
      error.count(), error.count() == 1 ? "" : "s",
      Share(static_cast<double>(error.within_20()), count),
      Share(static_cast<double>(error.within_50()), count), 100 * error.mean());
}

Json StatsJson(const v1::Stats& stats) {
  Json rows = Json::array(), types = Json::array(), estimates = Json::array();
  for (const v1::EstimateError& error : stats.estimates()) estimates.push_back(EstimateJson(error));
  for (const v1::StatsRow& row : stats.rows()) rows.push_back(RowJson(row));
  for (const v1::TypeUse& type : stats.types()) {
    types.push_back({{"gpu_type", type.gpu_type()},
                     {"held_hours", type.held_hours()},
                     {"available_hours", type.available_hours()},
                     {"cost_micros", type.cost_micros()},
                     {"utilization_percent", Share(type.held_hours(), type.available_hours())}});
  }
  return {{"begin", Utc(stats.begin())},
          {"end", Utc(stats.end())},
          {"currency", stats.currency().empty() ? Json(nullptr) : Json(stats.currency())},
          {"total", RowJson(stats.total())},
          {"rows", rows},
          {"types", types},
          {"estimates", estimates}};
}

std::string RowTable(const v1::Stats& stats, const std::string& by) {
  const bool nodes = by == "node", costs = !stats.currency().empty();
  const auto with_cost = [costs](std::vector<std::string> cells, const std::string& cost) {
    if (costs) cells.insert(cells.begin() + 2, cost);
    return cells;
  };
  Table table(
      with_cost({nodes           ? "NODE"
                 : by == "owner" ? "OWNER"
                                 : "PROJECT",
                 "GPU-HOURS", nodes ? "ATTEMPTS OK/FAILED/OTHER" : "JOBS OK/FAILED/CANCELLED",
                 "WAIT", "P90", nodes ? "FAILURES THAT BLAME IT" : "FAILED ATTEMPTS"},
                "COST"));
  for (const v1::StatsRow& row : stats.rows()) {
    table.Add(with_cost({row.name(), fmt::format("{:.2f}", row.gpu_hours()), Ended(row),
                         Wait(row.has_wait_median_seconds(), row.wait_median_seconds()),
                         Wait(row.has_wait_p90_seconds(), row.wait_p90_seconds()), Failures(row)},
                        MoneyText(row.cost_micros(), stats.currency())));
  }
  return table.Render();
}

void Print(Connection& connection, const v1::Stats& stats, const std::string& by) {
  std::ostream& out = connection.console().out;
  const v1::StatsRow& total = stats.total();
  const auto line = [&](std::string_view key, const std::string& value) {
    out << fmt::format("{:<12}{}\n", OneLine(key), OneLine(value));
  };
  line("from", fmt::format("{} to {}", Utc(stats.begin()), Utc(stats.end())));
  for (const v1::TypeUse& type : stats.types()) {
    line(
        type.gpu_type(),
        fmt::format(
            "{:.1f} of {:.1f} hours held: {:.1f}% utilisation{}", type.held_hours(),
            type.available_hours(), Share(type.held_hours(), type.available_hours()),
            type.cost_micros() == 0 ? "" : ", " + MoneyText(type.cost_micros(), stats.currency())));
  }
  line("GPU-hours", fmt::format("{:.2f}", total.gpu_hours()));
  if (!stats.currency().empty()) {
    line("cost", MoneyText(total.cost_micros(), stats.currency()));
  }
  line("jobs", fmt::format("{} succeeded, {} failed, {} cancelled", total.succeeded(),
                           total.failed(), total.cancelled()));
  line("waits", fmt::format("{} placed, median {}, p90 {}", total.placed(),
                            Wait(total.has_wait_median_seconds(), total.wait_median_seconds()),
                            Wait(total.has_wait_p90_seconds(), total.wait_p90_seconds())));
  for (const v1::EstimateError& error : stats.estimates()) line("estimates", EstimateText(error));
  for (const v1::VerdictCount& each : total.failures()) {
    line("failures", fmt::format("{} {} ({})", each.count(), each.code(), each.domain()));
  }
  if (by.empty()) return;
  out << "\n" << RowTable(stats, by);
}

ExitCode Stats(Connection& connection, const StatsOptions& options, bool json) {
  const auto since = ParseDuration(options.since);
  if (!since.ok()) return Fail(connection, since.status());
  v1::GetStatsRequest request;
  request.set_since_seconds(since->count());
  if (options.by == "project") request.set_group_by(v1::GetStatsRequest::PROJECT);
  if (options.by == "owner") request.set_group_by(v1::GetStatsRequest::OWNER);
  if (options.by == "node") request.set_group_by(v1::GetStatsRequest::NODE);
  const auto stats = connection.Call(&v1::OperatorService::Stub::GetStats, request);
  if (!stats.ok()) return Fail(connection, stats.status());
  if (!stats->warning().empty()) {
    connection.console().err << "sftctl: " << OneLine(stats->warning()) << "\n";
  }
  if (json) {
    connection.console().out << DumpJson(StatsJson(*stats), 2) << "\n";
  } else {
    Print(connection, *stats, options.by);
  }
  return kSucceeded;
}

}  // namespace

void AddStats(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "stats", "Show how the fleet was used: GPU-hours, outcomes, waiting times, failures",
      "sftctl stats --since 7d --by project");
  auto options = std::make_shared<StatsOptions>();
  command->AddOption("--since", options->since, "Length of the period up to now (12h, 30d)")
      ->ShowDefault();
  command->AddOption("--by", options->by, "One row per project, owner or node")
      ->Among({"project", "owner", "node"});
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Stats(connection, *options, session.json);
  });
}

}  // namespace sft::client
