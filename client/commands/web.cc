#include <fmt/format.h>

#include "client/base/browser.h"
#include "client/commands/commands.h"
#include "client/output/format.h"
#include "client/output/json.h"
#include "client/output/text.h"
#include "common/base/json.h"
#include "sft/v1/web_service.grpc.pb.h"

namespace sft::client {
namespace {

ExitCode RunWeb(Connection& connection, bool no_open, bool json) {
  const auto made = connection.Call(&v1::WebService::Stub::CreateCode, v1::CreateCodeRequest());
  if (!made.ok()) return Fail(connection, made.status());
  // Behind "#": the browser keeps it to itself.
  const std::string url =
      made->url() + (made->code().empty() ? "/" : fmt::format("/#code={}", made->code()));
  Console& console = connection.console();
  if (json) {
    console.out << DumpJson(
                       Json{{"url", url},
                            {"expire_time", made->has_expire_time() ? Json(Utc(made->expire_time()))
                                                                    : Json(nullptr)}},
                       2)
                << "\n";
    return kSucceeded;
  }
  console.out << OneLine(url) << "\n" << std::flush;
  if (!made->code().empty()) console.err << "good once, for a minute\n";
  if (!no_open && HasDesktop(console)) (void)OpenBrowser(url);
  return kSucceeded;
}

}  // namespace

void AddWeb(Command& app, Session& session) {
  Command* web = app.AddCommand(
      "web", "Print the address of the server's web page, logged in as you, and open it",
      "sftctl web --no-open");
  auto no_open = std::make_shared<bool>(false);
  web->AddFlag("--no-open", *no_open, "Print the address alone");
  AddJsonFlag(web, session);
  web->Run([&session, no_open](Connection& connection) {
    return RunWeb(connection, *no_open, session.json);
  });
}

}  // namespace sft::client
