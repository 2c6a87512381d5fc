#include "client/top/pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "client/output/event_text.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/node_text.h"
#include "client/output/progress.h"
#include "client/top/plot.h"
#include "common/base/duration.h"

namespace sft::client::top {
namespace {

constexpr double kWarnDisk = 0.97;

struct Value {
  const char* name;
  const char* title;
};
constexpr Value kValues[] = {{"loss", "loss"},
                             {"val_loss", "validation loss"},
                             {"lr", "learning rate"},
                             {"grad_norm", "gradient norm"},
                             {"tokens_per_second", "tokens/s"},
                             {"mfu", "MFU"},
                             {"gpu_memory_bytes", "memory of rank 0"}};

std::string ValueText(const std::string& name, double value) {
  if (name == "gpu_memory_bytes" || name == "rank_memory") return Bytes(std::llround(value));
  if (name == "tokens_per_second") return Count(value);
  if (name == "mfu") return fmt::format("{:.1f}%", 100 * value);
  return fmt::format("{:.4g}", value);
}

std::string StepText(double step) { return fmt::format("{:.0f}", step); }

Style StyleOf(const v1::Job& job) {
  switch (job.state()) {
    case v1::Job::RUNNING:
      return Style::kGood;
    case v1::Job::FAILED:
      return Style::kBad;
    case v1::Job::SUCCEEDED:
    case v1::Job::CANCELLED:
      return Style::kDim;
    default:
      return Style::kWarn;
  }
}

// How far a running job is, or why it is in its state.
std::string WhatOf(const v1::Job& job) {
  const v1::Progress& progress = job.progress();
  const bool runs = job.state() == v1::Job::RUNNING && progress.total_steps() > 0;
  if (!runs) {
    return job.reason().empty() && !IsEnded(job.state()) ? progress.phase() : job.reason();
  }
  std::string text = fmt::format("{:3.0f}%", 100.0 * static_cast<double>(progress.step()) /
                                                 static_cast<double>(progress.total_steps()));
  if (!CountsAnswers(job.kind()) && progress.step() > 0)
    text += fmt::format(" loss {:.3f}", progress.loss());
  return text + fmt::format(" {} left, {} tok/s", Duration(progress.eta_seconds()),
                            Count(progress.tokens_per_second()));
}

struct Slots {
  int all = 0, busy = 0, bad = 0;
};
Slots SlotsOf(const std::vector<v1::Node>& nodes) {
  Slots slots;
  for (const v1::Node& node : nodes) {
    for (const v1::Slot& slot : node.slots()) {
      ++slots.all;
      slots.busy += !slot.job().empty();
      slots.bad += !slot.healthy();
    }
  }
  return slots;
}

Row Summary(const View& view, const Snapshot& snapshot) {
  const Slots slots = SlotsOf(snapshot.nodes);
  std::string text = fmt::format("{} of {} slots busy", slots.busy, slots.all);
  if (slots.bad > 0) text += fmt::format(", {} unhealthy", slots.bad);
  const auto up = std::ranges::count_if(
      snapshot.nodes, [](const v1::Node& node) { return NodeStateName(node) == "UP"; });
  text += fmt::format("; {} of {} nodes up", up, snapshot.nodes.size());
  if (view.query.page == Page::kJobs) {
    text = fmt::format("{} active and {} ended jobs, by {}; {}", snapshot.active, snapshot.ended,
                       view.query.order.substr(0, view.query.order.find(' ')), text);
  }
  if (view.query.page == Page::kQueue) text = fmt::format("{} waiting; {}", snapshot.active, text);
  Row row = {Safe(text)};
  if (!view.query.filter.empty()) {
    row.push_back(Safe("  filter: " + view.query.filter, Style::kWarn));
  }
  if (!snapshot.warning.empty()) row.push_back(Safe("  " + snapshot.warning, Style::kBad));
  return row;
}

PageParts JobsPage(const View& view, const Snapshot& snapshot, int width) {
  const Grid grid({{"JOB", 14},
                   {"NAME", 13},
                   {"STATE", 10},
                   {"OWNER", 8, Align::kLeft, 90},
                   {"VARIANT", 9, Align::kLeft, 64},
                   {"PROGRESS OR REASON", 8}},
                  width);
  PageParts parts{.head = {Summary(view, snapshot), grid.Head()}};
  for (const v1::Job& job : snapshot.jobs) {
    const std::string state = StateName(job.state()) + (job.held() ? " held" : "");
    parts.rows.push_back({job.name(), job.name(),
                          grid.Line({{ShortName(job.name())},
                                     {job.display_name(), Style::kBold},
                                     {state, StyleOf(job)},
                                     {job.owner()},
                                     {job.variant()},
                                     {WhatOf(job)}})});
  }
  parts.nothing = view.query.filter.empty() ? "There is no job yet: sftctl submit job.toml"
                                            : "No job matches the filter.";
  return parts;
}

PageParts QueuePage(const View& view, const Snapshot& snapshot, int width) {
  const Grid grid({{"PLACE", 5, Align::kRight},
                   {"JOB", 14},
                   {"NAME", 12, Align::kLeft, 70},
                   {"OWNER", 8, Align::kLeft, 90},
                   {"VARIANT", 9},
                   {"STARTS", 9},
                   {"WAITS FOR", 8}},
                  width);
  PageParts parts{.head = {Summary(view, snapshot), grid.Head()}};
  const double now = SecondsOf(snapshot.time.time_since_epoch());
  for (const v1::Job& job : snapshot.jobs) {
    const v1::Outlook& outlook = job.outlook();
    const double wait = Seconds(outlook.start_time()) - now;
    const std::string starts = !outlook.has_start_time() ? "-"
                               : wait > 0                ? "in " + Duration(wait)
                                                         : "now";
    parts.rows.push_back({job.name(), job.name(),
                          grid.Line({{outlook.place() > 0 ? std::to_string(outlook.place()) : "-"},
                                     {ShortName(job.name())},
                                     {job.display_name(), Style::kBold},
                                     {job.owner()},
                                     {job.variant()},
                                     {starts},
                                     {job.held() ? "held: " + job.reason() : job.reason()}})});
  }
  parts.nothing = "No job waits.";
  return parts;
}

Row NodeRow(const v1::Node& node, int width) {
  const std::string state = NodeStateName(node);
  int busy = 0;
  for (const v1::Slot& slot : node.slots()) busy += !slot.job().empty();
  Row row = {{Fit(ShortName(node.name()), std::clamp(width / 4, 8, 24)), Style::kBold},
             {" " + Fit(state, 9), state == "UP" ? Style::kGood : Style::kWarn},
             Safe(fmt::format(" {} of {} busy, disk {}", busy, node.slots_size(), DiskText(node)))};
  if (const std::string why = WhyText(node); !why.empty()) {
    row.push_back(Safe("  " + why, Style::kWarn));
  }
  Cut(row, width);
  return row;
}

PageParts NodesPage(const View& view, const Snapshot& snapshot, int width) {
  const Grid grid({{"  SLOT", 6, Align::kRight},
                   {"TYPE", 10},
                   {"JOB", 14},
                   {"MEMORY", 12, Align::kLeft, 60},
                   {"USED", 10, Align::kRight},
                   {"BUSY", 5, Align::kRight},
                   {"", 8}},
                  width);
  PageParts parts{.head = {Summary(view, snapshot), grid.Head()}};
  for (const v1::Node& node : snapshot.nodes) {
    const std::string name = ShortName(node.name());
    if (name.find(view.query.filter) == std::string::npos) continue;
    parts.rows.push_back({name, "", NodeRow(node, width)});
    for (const v1::Slot& slot : node.slots()) {
      const double share = slot.memory_bytes() > 0 ? static_cast<double>(slot.memory_used_bytes()) /
                                                         static_cast<double>(slot.memory_bytes())
                                                   : 0;
      const bool used = !slot.job().empty();
      parts.rows.push_back(
          {fmt::format("{}/{}", name, slot.index()), slot.job(),
           grid.Line({{std::to_string(slot.index())},
                      {slot.gpu_type()},
                      {used ? ShortName(slot.job()) : "free", used ? Style::kPlain : Style::kDim},
                      {Bar(share, 12), share > kWarnDisk ? Style::kWarn : Style::kGood},
                      {Bytes(slot.memory_used_bytes())},
                      {fmt::format("{}%", slot.utilization_percent())},
                      {slot.healthy() ? "" : slot.health_reason(), Style::kBad}})});
    }
  }
  parts.nothing = snapshot.nodes.empty()
                      ? "There is no node yet: sft-worker --help says how one joins."
                      : "No node has the filter's text in its name.";
  return parts;
}

std::vector<Row> JobHead(const View& view, const v1::Job& job, int width) {
  const std::string id = ShortName(job.name());
  Row title = {Safe(job.display_name().empty() ? id : job.display_name(), Style::kBold)};
  if (!job.display_name().empty()) title.push_back(Safe("  " + id));
  title.push_back({"  " + StateName(job.state()) + (job.held() ? " held" : ""), StyleOf(job)});
  if (job.attempt() > 1) title.push_back({fmt::format("  attempt {}", job.attempt())});
  std::vector<std::string> nodes;
  for (const std::string& node : job.nodes()) nodes.push_back(ShortName(node));
  Row who = {Safe(fmt::format("{} in {}, {}{}{}", job.owner(), job.project(), job.variant(),
                              nodes.empty() ? "" : " on ", fmt::join(nodes, ", ")))};
  std::vector<Row> head = {std::move(title), std::move(who)};
  if (job.progress().total_steps() > 0) {
    head.push_back({Safe(ProgressLine(job.progress(), job.kind(), width))});
  } else if (!job.progress().phase().empty() && !IsEnded(job.state())) {
    head.push_back({Safe(job.progress().phase())});
  }
  if (job.state() == v1::Job::FAILED) {
    head.push_back(
        {Safe(fmt::format("{}: {}", job.verdict().code(), job.verdict().message()), Style::kBad)});
    if (!job.verdict().advice().empty()) head.push_back({Safe("  " + job.verdict().advice())});
  } else if (!job.reason().empty()) {
    head.push_back({Safe(job.reason(), StyleOf(job))});
  }
  Row tabs;
  constexpr std::array<const char*, 4> kTabs = {"v curve", "m ranks", "l log", "e events"};
  for (size_t i = 0; i < kTabs.size(); ++i) {
    const bool here = static_cast<size_t>(view.query.tab) == i;
    tabs.push_back({here ? fmt::format("[{}]", kTabs[i]) : fmt::format(" {} ", kTabs[i]),
                    here ? Style::kBold : Style::kDim});
  }
  head.push_back(std::move(tabs));
  for (Row& row : head) Cut(row, width);
  return head;
}

PlotCurve CurveOf(const v1::CurveSeries& series, Style style) {
  return {{series.x().begin(), series.x().end()}, {series.y().begin(), series.y().end()}, style};
}

std::vector<Row> PlotOf(const std::vector<PlotCurve>& curves, const std::string& value,
                        const Screen& size, int rows) {
  return Plot(curves, {.width = size.width,
                       .height = rows,
                       .unicode = size.unicode,
                       .x_text = StepText,
                       .y_text = [value](double y) { return ValueText(value, y); }});
}

void CurveTab(const View& view, const Snapshot& snapshot, const Screen& size, int room,
              PageParts& parts) {
  const auto* const value = std::ranges::find_if(
      kValues, [&](const Value& each) { return each.name == view.query.value; });
  std::vector<PlotCurve> curves;
  std::string text = value != std::end(kValues) ? value->title : view.query.value;
  for (const v1::CurveSeries& series : snapshot.curve.series()) {
    if (series.y().empty()) continue;
    const bool main = series.name() == view.query.value;
    curves.push_back(CurveOf(series, main ? Style::kCurve : Style::kWarn));
    const float last = series.y(series.y_size() - 1);
    text += fmt::format("{} {} at step {}", main ? "" : ", validation",
                        ValueText(series.name(), last), StepText(series.x(series.x_size() - 1)));
    if (main && series.parts() > 0) {
      text += fmt::format(" ({} points, lowest and highest of {} parts)", series.points(),
                          series.parts());
    }
  }
  if (view.query.begin) {
    text += fmt::format("; steps {} to {}", StepText(*view.query.begin), StepText(*view.query.end));
  }
  parts.head.push_back({Safe(text)});
  Cut(parts.head.back(), size.width);
  for (Row& row : PlotOf(curves, view.query.value, size, std::max(3, room - 1))) {
    parts.rows.push_back({"", "", std::move(row)});
  }
}

void RanksTab(const Snapshot& snapshot, const Screen& size, int room, PageParts& parts) {
  constexpr Style kStyles[] = {Style::kCurve, Style::kGood, Style::kWarn, Style::kPlain};
  std::vector<PlotCurve> losses;
  struct Last {
    std::string loss = "-", memory = "-";
    double most = 0;
  };
  std::map<int, Last> ranks;
  for (const v1::CurveSeries& series : snapshot.curve.series()) {
    if (series.y().empty() || !series.name().starts_with("rank_")) continue;
    Last& last = ranks[series.rank()];
    const std::string text = ValueText(series.name(), series.y(series.y_size() - 1));
    if (series.name() == "rank_memory") {
      last.memory = text;
      last.most = *std::ranges::max_element(series.y());
      continue;
    }
    losses.push_back(CurveOf(series, kStyles[static_cast<size_t>(series.rank()) % 4]));
    last.loss = text;
  }
  if (ranks.empty()) {
    parts.nothing = "No rank has told of its own loss yet.";
    return;
  }
  parts.head.push_back({{"loss of each rank over its own rows", Style::kBold}});
  for (Row& row : PlotOf(losses, "rank_loss", size, std::clamp(room / 2, 4, 12))) {
    parts.head.push_back(std::move(row));
  }
  const Grid grid({{"RANK", 5, Align::kRight},
                   {"LOSS", 10, Align::kRight},
                   {"MEMORY", 10, Align::kRight},
                   {" MOST", 8}},
                  size.width);
  parts.head.push_back(grid.Head());
  for (const auto& [rank, last] : ranks) {
    parts.rows.push_back({"", "",
                          grid.Line({{std::to_string(rank), kStyles[static_cast<size_t>(rank) % 4]},
                                     {last.loss},
                                     {last.memory},
                                     {" " + Bytes(std::llround(last.most))}})});
  }
}

PageParts JobPage(const View& view, const Snapshot& snapshot, const Screen& size, int room) {
  PageParts parts;
  if (!snapshot.job) {
    parts.nothing = snapshot.status.ok() || absl::IsUnknown(snapshot.status) ? "loading" : "";
    return parts;
  }
  parts.head = JobHead(view, *snapshot.job, size.width);
  room -= static_cast<int>(parts.head.size());
  switch (view.query.tab) {
    case Tab::kCurve:
      CurveTab(view, snapshot, size, room, parts);
      break;
    case Tab::kRanks:
      RanksTab(snapshot, size, room, parts);
      break;
    case Tab::kLog:
      parts.from_end = true;
      parts.nothing = "The log is empty.";
      for (const std::string& line : snapshot.log) parts.rows.push_back({"", "", {Safe(line)}});
      break;
    case Tab::kEvents:
      parts.from_end = true;
      parts.nothing = "Nothing has happened yet.";
      for (const v1::JobEvent& event : snapshot.events) {
        parts.rows.push_back({"",
                              "",
                              {{Utc(event.time()).substr(0, 19) + "  ", Style::kDim},
                               {Fit(EventKind(event), 12) + " "},
                               Safe(EventText(event))}});
      }
      break;
  }
  return parts;
}

}  // namespace

PageParts PartsOf(const View& view, const Snapshot& snapshot, const Screen& size, int room) {
  // What was listed for another page is not this one's.
  const bool answered = snapshot.query.page == view.query.page;
  const Snapshot nothing;
  PageParts parts;
  switch (view.query.page) {
    case Page::kJobs:
      parts = JobsPage(view, answered ? snapshot : nothing, size.width);
      break;
    case Page::kQueue:
      parts = QueuePage(view, answered ? snapshot : nothing, size.width);
      break;
    case Page::kNodes:
      parts = NodesPage(view, snapshot, size.width);
      break;
    case Page::kJob:
      return JobPage(view, snapshot, size, room);
  }
  if (!answered) parts.nothing = "loading";
  return parts;
}

std::string NextValue(const std::string& value, int by) {
  constexpr int kCount = static_cast<int>(std::size(kValues));
  int at = 0;
  while (at < kCount && kValues[at].name != value) ++at;
  return kValues[(at + by + kCount) % kCount].name;
}

}  // namespace sft::client::top
