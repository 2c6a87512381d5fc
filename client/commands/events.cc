#include <fmt/format.h>

#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/job_service.grpc.pb.h"

namespace sft::client {
namespace {

// What a rank wrote as a JSON object, in words; other messages as they are.
std::string EventText(const v1::JobEvent& event) {
  const Json note = ParseOrderedJson(event.message());
  if (!note.is_object()) return OneLine(event.message());
  const auto number = [&](const char* key) {
    const auto found = note.find(key);
    return found != note.end() && found->is_number() ? found->get<double>() : 0.0;
  };
  const auto text = [&](const char* key) {
    const auto found = note.find(key);
    return found != note.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  if (event.type() == "prepared") {
    return fmt::format("{:.0f} of {:.0f} rows, {:.0f} left out; {} tokens, {} of them with loss",
                       number("used"), number("rows"), number("skipped"), Count(number("tokens")),
                       Count(number("loss_tokens")));
  }
  if (event.type() == "ready") {
    return OneLine(fmt::format(
        "rank {:.0f} of {:.0f} on {} after {:.1f} s: {:.0f} steps, {} of {} parameters train",
        number("rank"), number("world"), text("device"), number("seconds"), number("total_steps"),
        Count(number("trainable_parameters")), Count(number("total_parameters"))));
  }
  if (event.type() == "consistency") {
    const bool same = note.value("consistent", Json(false)) == Json(true);
    return OneLine(fmt::format("rank {:.0f}: weights {} ({})", number("rank"),
                               same ? "agree" : "DIFFER", text("weights_sha256").substr(0, 12)));
  }
  std::string words;
  for (const auto& [key, value] : note.items()) {
    if (key == "event" || key == "time") continue;
    words += fmt::format("{}{} {}", words.empty() ? "" : ", ", key,
                         value.is_string() ? value.get<std::string>() : DumpJson(value));
  }
  return OneLine(words);
}

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
        connection.console().out << fmt::format("{}  {:<10}  {}\n", Utc(event.time()), event.type(),
                                                EventText(event));
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
