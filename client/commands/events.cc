#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/event_text.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

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

}  // namespace

void AddEvents(Command& app, Session& session) {
  Command* command = app.AddCommand("events", "Print a job's history", "sftctl events job-abc");
  auto job = std::make_shared<std::string>();
  command->AddOption("JOB", *job, "Job")->Required();
  AddJsonFlag(command, session);
  command->Run(
      [&session, job](Connection& connection) { return Events(connection, *job, session.json); });
}

}  // namespace sft::client
