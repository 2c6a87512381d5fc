#include <fmt/format.h>
#include <fmt/ranges.h>

#include "client/commands/commands.h"
#include "common/spec/docs.h"
#include "common/spec/fields.h"

namespace sft::client {
namespace {

ExitCode Explain(Connection& connection, const std::string& key) {
  if (key.empty()) {
    connection.console().out << spec::ExplainAll();
    return kSucceeded;
  }
  const std::string text = spec::ExplainKey(key);
  if (text.empty()) {
    std::string near = fmt::format("{}", fmt::join(spec::KeysLike(key), ", "));
    if (near.empty()) near = spec::NearestKey(key);
    return Fail(connection, NotFound(fmt::format("no key is called '{}'{}", key,
                                                 near.empty() ? "; `sftctl explain` lists them all"
                                                              : "; did you mean " + near + "?")));
  }
  connection.console().out << text;
  return kSucceeded;
}

}  // namespace

void AddExplain(Command& app) {
  Command* command = app.AddCommand("explain", "Describe the keys of a job file, or one of them",
                                    "sftctl explain hyperparameters.global_batch");
  auto key = std::make_shared<std::string>();
  command->AddOption("KEY", *key, "Key, another spelling of a key, or a table (default: list all)");
  command->RunHere([key](Connection& connection) { return Explain(connection, *key); });
}

}  // namespace sft::client
