#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "client/base/interrupt.h"
#include "client/commands/commands.h"
#include "client/output/json.h"
#include "client/top/terminal.h"
#include "client/top/watch.h"
#include "common/base/env.h"
#include "common/base/json.h"

namespace sft::client {
namespace {

using top::Page;
using top::Tab;

constexpr std::chrono::milliseconds kLook{100};
constexpr int kLeastWidth = 40, kUsualWidth = 80;

struct TopOptions {
  std::string job;
  std::string page;
  std::string filter;
  std::string interval = "2s";
  bool once = false;
};

struct PageName {
  const char* name;
  Page page;
  Tab tab = Tab::kCurve;
};
constexpr PageName kPages[] = {{"jobs", Page::kJobs},
                               {"nodes", Page::kNodes},
                               {"queue", Page::kQueue},
                               {"curve", Page::kJob, Tab::kCurve},
                               {"ranks", Page::kJob, Tab::kRanks},
                               {"log", Page::kJob, Tab::kLog},
                               {"events", Page::kJob, Tab::kEvents}};

absl::StatusOr<top::View> ViewOf(const Connection& connection, const TopOptions& options) {
  top::View view;
  view.server = connection.server();
  view.query.filter = options.filter;
  view.query.job = options.job;
  if (!options.job.empty()) view.query.page = Page::kJob;
  if (options.page.empty()) return view;
  const auto* const named = std::ranges::find(kPages, options.page, &PageName::name);
  if ((named->page == Page::kJob) == options.job.empty()) {
    return InvalidArgument(
        options.job.empty()
            ? fmt::format("--page {} is of a job: name it", options.page)
            : fmt::format("--page {} is not of a job: leave out {}", options.page, options.job));
  }
  view.query.page = named->page;
  view.query.tab = named->tab;
  return view;
}

// As wide as the terminal, or as COLUMNS says.
int WidthOfOutput() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const std::string text = GetEnv("COLUMNS").value_or("");
  int width = kUsualWidth;
  std::from_chars(text.data(), text.data() + text.size(), width);
  return std::max(width, kLeastWidth);
}

Json JsonOf(const top::Snapshot& snapshot) {
  Json json = Json::object();
  if (snapshot.query.page == Page::kJob) {
    json["job"] = JobJson(*snapshot.job);
    json["curves"] = Json::array();
    for (const v1::CurveSeries& series : snapshot.curve.series()) {
      json["curves"].push_back(CurveJson(series));
    }
    return json;
  }
  json["jobs"] = Json::array();
  for (const v1::Job& job : snapshot.jobs) json["jobs"].push_back(JobJson(job));
  json["active"] = snapshot.active;
  json["ended"] = snapshot.ended;
  json["nodes"] = Json::array();
  for (const v1::Node& node : snapshot.nodes) json["nodes"].push_back(NodeJson(node));
  return json;
}

ExitCode PrintOnce(Connection& connection, const top::View& view, bool json) {
  top::Calls calls(connection);
  top::Snapshot snapshot;
  top::Query query = view.query;
  query.whole = json;
  top::Fetch(calls, query, snapshot);
  if (!snapshot.status.ok()) return Fail(connection, snapshot.status);
  if (json) {
    connection.console().out << DumpJson(JsonOf(snapshot), 2) << "\n";
    return kSucceeded;
  }
  const bool unicode = top::LocaleHasUnicode();
  connection.console().out << top::PlainText(
      top::DrawWhole(view, snapshot, WidthOfOutput(), unicode), unicode);
  return kSucceeded;
}

// Redraws when there is news, a key or another size; at most ten times a second for news.
ExitCode Live(Connection& connection, top::View view, std::chrono::seconds interval) {
  // https://no-color.org: any value but an empty one.
  const bool colours = GetEnv("NO_COLOR").value_or("").empty();
  auto terminal = top::Terminal::Open(colours);
  if (!terminal.ok()) return Fail(connection, terminal.status());
  // A cell has two columns of dots.
  view.query.parts = std::max(kUsualWidth, 2 * (*terminal)->size().width);
  top::Watch watch(connection, interval, view.query);
  top::Watch::News news = watch.Latest();
  top::Screen drawn{0, 0, false};
  bool stale = true;
  while (!Interrupt::Raised()) {
    top::Watch::News latest = watch.Latest();
    if (!latest.done.empty()) view.note = latest.done;
    stale = stale || latest.number != news.number;
    news = std::move(latest);
    const top::Screen size = (*terminal)->size();
    if (stale || size.width != drawn.width || size.height != drawn.height) {
      (*terminal)->Show(top::Draw(view, *news.snapshot, size));
      drawn = size;
    }
    const int key = (*terminal)->ReadKey(kLook);
    stale = key != 0;
    if (key == 0) continue;
    switch (top::OnKey(key, *news.snapshot, size.height, view)) {
      case top::Next::kDraw:
        break;
      case top::Next::kAsk:
        watch.Ask(view.query);
        break;
      case top::Next::kAct:
        watch.Act(view.action);
        break;
      case top::Next::kQuit:
        return kSucceeded;
    }
  }
  return kSucceeded;
}

ExitCode Top(Connection& connection, const TopOptions& options, bool json) {
  const absl::StatusOr<top::View> view = ViewOf(connection, options);
  if (!view.ok()) return Fail(connection, view.status());
  const auto interval = ParseDuration(options.interval);
  if (!interval.ok() || interval->count() < 1) {
    return Fail(connection, InvalidArgument("--interval: a duration of 1s or more, as in 5s"));
  }
  const bool terminal = isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
  if (options.once || json || !terminal) return PrintOnce(connection, *view, json);
  return Live(connection, *view, *interval);
}

}  // namespace

void AddTop(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "top", "Show jobs, nodes with their GPUs, what waits, and a job's curves, as they change",
      "sftctl top job-abc --page ranks");
  auto options = std::make_shared<TopOptions>();
  command->AddOption("JOB", options->job, "Begin with this job");
  std::vector<std::string> names;
  for (const PageName& page : kPages) names.emplace_back(page.name);
  command
      ->AddOption("--page", options->page,
                  "Begin with jobs, nodes or queue; with JOB curve, ranks, log or events")
      ->Among(names);
  command->AddOption("--filter", options->filter,
                     "Only jobs like this, as in `list --filter`: \"state=running llama\"; only "
                     "nodes with it in their name");
  command->AddOption("--interval", options->interval, "How often the server is asked")
      ->ShowDefault();
  command->AddFlag("--once", options->once,
                   "Print one picture as plain text, as is done where there is no terminal");
  AddJsonFlag(command, session);
  command->Run([&session, options](Connection& connection) {
    return Top(connection, *options, session.json);
  });
}

}  // namespace sft::client
