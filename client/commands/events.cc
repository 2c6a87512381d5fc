#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"

namespace sft::client {
namespace {

ExitCode Events(Connection& connection, const std::string& job, bool json) {
  v1::ListEventsRequest request;
  request.set_name(job);
  request.set_page_size(500);
  for (;;) {
    const auto page =
        connection.Call(connection.jobs(), &v1::JobService::Stub::ListEvents, request);
    if (!page.ok()) return Fail(connection, page.status());
    for (const v1::JobEvent& event : page->events()) {
      if (json) {
        connection.console().out << EventJson(event).dump() << "\n";
      } else {
        connection.console().out << fmt::format("{}  {:<10}  {}\n", Utc(event.time()), event.type(),
                                                event.message());
      }
    }
    if (page->next_page_token().empty()) return kSucceeded;
    request.set_page_token(page->next_page_token());
  }
}

}  // namespace

void AddEvents(CLI::App& app, Session& session) {
  CLI::App* command = AddCommand(app, "events", "Print a job's history", "sftctl events job-abc");
  auto job = std::make_shared<std::string>();
  command->add_option("JOB", *job, "Job")->required();
  AddJsonFlag(command, session);
  command->callback([&session, job] {
    session.command = [&session, job](Connection& connection) {
      return Events(connection, *job, session.json);
    };
  });
}

}  // namespace sft::client
