#include <fmt/format.h>

#include <optional>

#include "client/base/interrupt.h"
#include "client/base/job_follow.h"
#include "client/commands/commands.h"
#include "client/output/event_text.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/cluster_service.grpc.pb.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

struct EventOptions {
  std::string job;
  bool all = false;
  bool follow = false;
  std::optional<int> after;
  std::string project;
};

ExitCode Events(Connection& connection, const std::string& job, bool json) {
  v1::ListEventsRequest request;
  request.set_name(job);
  request.set_page_size(500);
  for (;;) {
    const auto page = connection.Call(&v1::JobService::Stub::ListEvents, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::JobEvent& event : page->events()) {
      if (json) {
        connection.console().out << DumpJson(EventJson(event)) << "\n";
      } else {
        connection.console().out << fmt::format("{}  {:<10}  {}\n", Utc(event.time()),
                                                EventKind(event), EventText(event));
      }
    }
    if (page->next_page_token().empty()) return kSucceeded;
    request.set_page_token(page->next_page_token());
  }
}

// An event of the feed as one of a job, whose texts need the same care.
v1::JobEvent AsJobEvent(const v1::ClusterEvent& event) {
  v1::JobEvent same;
  same.set_sequence(event.job_sequence());
  *same.mutable_time() = event.time();
  same.set_type(event.type());
  same.set_message(event.message());
  same.set_attempt(event.attempt());
  return same;
}

// Prints answers of the feed, and moves on `after`.
class FeedPrinter {
 public:
  FeedPrinter(Console& console, bool json) : console_(console), json_(json) {}

  void Print(const v1::ListClusterEventsResponse& response) {
    if (response.has_gap()) PrintGap(response.gap());
    for (const v1::ClusterEvent& event : response.events()) PrintEvent(event);
  }

 private:
  void PrintGap(const v1::EventGap& gap) {
    if (json_) {
      const Json range = {{"first", gap.first()}, {"last", gap.last()}};
      console_.out << DumpJson(Json({{"gap", range}})) << std::endl;
    }
    console_.err << fmt::format("events {} to {} are no longer kept\n", gap.first(), gap.last());
  }

  void PrintEvent(const v1::ClusterEvent& event) {
    const v1::JobEvent shown = AsJobEvent(event);
    if (json_) {
      console_.out << DumpJson(ClusterEventJson(event)) << std::endl;
      return;
    }
    constexpr size_t kMaxSubject = 24;
    console_.out << fmt::format("{}  {:<16}  {:<10}  {}", Utc(event.time()),
                                OneLine(ShortName(event.subject())).substr(0, kMaxSubject),
                                EventKind(shown), EventText(shown))
                 << std::endl;
  }

  Console& console_;
  const bool json_;
};

ExitCode ListAll(Connection& connection, const EventOptions& options, bool json) {
  FeedPrinter printer(connection.console(), json);
  v1::ListClusterEventsRequest request;
  request.set_after(options.after.value_or(0));
  request.set_project(options.project);
  request.set_page_size(500);
  for (;;) {
    const auto page = connection.Call(&v1::ClusterService::Stub::ListClusterEvents, request);
    if (!page.ok()) return Fail(connection, page.status());
    printer.Print(*page);
    if (!page->more()) return kSucceeded;
    request.set_after(page->last_sequence());
  }
}

ExitCode FollowAll(Connection& connection, const EventOptions& options, bool json) {
  FeedPrinter printer(connection.console(), json);
  v1::WatchClusterEventsRequest request;
  if (options.after.has_value()) request.set_after(*options.after);
  request.set_project(options.project);
  const auto stream = [&](bool& heard, bool&) {
    grpc::ClientContext context;
    const Interrupt interrupt(context);
    auto reader = connection.To<v1::ClusterService>().WatchClusterEvents(&context, request);
    v1::ListClusterEventsResponse response;
    while (reader->Read(&response)) {
      heard = true;
      printer.Print(response);
      request.set_after(response.last_sequence());
    }
    return reader->Finish();
  };
  const absl::Status status = ReadThroughOutages(connection, /*follow=*/true, stream);
  if (Interrupt::Raised()) {
    const std::string from = request.has_after() ? fmt::format(" --after {}", request.after()) : "";
    connection.console().err << fmt::format(
        "\ndetached; go on with `sftctl events --all --follow{}`\n", from);
    return kInterrupted;
  }
  return status.ok() ? kSucceeded : Fail(connection, status);
}

}  // namespace

void AddEvents(Command& app, Session& session) {
  Command* command = app.AddCommand(
      "events",
      "Print the history of a job, or with --all what happened to jobs, nodes and storage",
      "sftctl events --all --follow");
  auto options = std::make_shared<EventOptions>();
  Option* job = command->AddOption("JOB", options->job, "Job");
  Option* all = command
                    ->AddFlag("--all", options->all,
                              "Events of all jobs that you may see, of nodes and of what is stored")
                    ->Excludes(job);
  command
      ->AddFlag("--follow", options->follow,
                "Print what happens from now on, or behind --after, until Ctrl-C")
      ->Needs(all);
  command
      ->AddOption("--after", options->after,
                  "Begin behind the event with this sequence (--json prints them)")
      ->WholeNumber(0)
      ->Needs(all);
  command->AddOption("--project", options->project, "Only events of this project's jobs and data")
      ->Needs(all);
  AddJsonFlag(command, session);
  command->Check([options] {
    return options->job.empty() && !options->all ? "JOB: name a job, or give --all" : "";
  });
  command->Run([&session, options](Connection& connection) {
    if (!options->all) return Events(connection, options->job, session.json);
    return options->follow ? FollowAll(connection, *options, session.json)
                           : ListAll(connection, *options, session.json);
  });
}

}  // namespace sft::client
