#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "client/base/exit_codes.h"
#include "client/output/console.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace sft::client {

class Connection;
class Command;

// A flag or argument of a command, owned by its command line. Setters return the option itself.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* Required();
  Option* Excludes(Option* other);
  Option* Needs(Option* other);
  Option* Among(const std::vector<std::string>& words);
  Option* WholeNumber(int64_t from);      // at most nine digits
  Option* Times(int least, int at_most);  // number of values
  Option* ShowDefault();                  // in the help text

 private:
  CLI::Option* option_;
};

// Command line of sftctl: its commands with their flags, and the choice that the given words make.
// Hides CLI11, which would cost every file that includes it seconds.
class CommandLine {
 public:
  using Run = std::function<ExitCode(Connection&)>;

  CommandLine(const std::string& name, const std::string& description, const std::string& footer,
              const std::string& version);
  ~CommandLine();

  Command& root();

  // The result of parsing: the command to run, or an empty `run` with the exit code, when the
  // command line was wrong (reported on `console`) or only help was requested.
  struct Choice {
    Run run;
    bool connect = true;  // the command talks to a server
    ExitCode code = kSucceeded;
  };
  Choice Parse(int argc, const char* const* argv, const Console& console);

 private:
  friend class Command;
  struct State;
  std::unique_ptr<State> state_;
};

// A command, or the root of all commands. Owned by its command line.
class Command {
 public:
  Command(CLI::App* app, CommandLine::State* state) : app_(app), state_(state) {}

  // Adds a subcommand, with an example for its help.
  Command* AddCommand(const std::string& name, const std::string& description,
                      const std::string& example);
  // Requires that one of the subcommands is given.
  void RequireCommand();

  // T: std::string, int, int64_t, an optional of std::string, int or double, or a vector of
  // std::string, whose flag takes one value each time it is given. `value` must outlive the
  // command's run.
  template <typename T>
  Option* AddOption(const std::string& name, T& value, const std::string& help);
  Option* AddFlag(const std::string& name, bool& value, const std::string& help);

  // `problem` checks the values together and returns the error; empty if there is none.
  void Check(std::function<std::string()> problem);
  // Sets the function to run, with a connection that was checked; RunHere sets one that needs no
  // server.
  void Run(CommandLine::Run run);
  void RunHere(CommandLine::Run run);

  const std::string& name() const;
  std::string description() const;
  std::vector<const Command*> commands() const;  // subcommands
  std::vector<std::string> flags() const;        // written as "--flag"

 private:
  Option* Keep(CLI::Option* option);
  void Choose(CommandLine::Run run, bool connect);

  CLI::App* app_;
  CommandLine::State* state_;
  std::function<std::string()> problem_;
};

}  // namespace sft::client
