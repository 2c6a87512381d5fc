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

// A flag or argument of a command, owned by its command line. Each setter returns the option again.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option* Required();
  Option* Excludes(Option* other);
  Option* Needs(Option* other);
  Option* Among(const std::vector<std::string>& words);
  Option* WholeNumber(int64_t from);      // of nine digits at most
  Option* Times(int least, int at_most);  // so many values
  Option* ShowDefault();                  // in the help

 private:
  CLI::Option* option_;
};

// The words of sftctl's command line: its commands with their flags, and what the words given ask
// for. CLI11, which reads them, is behind this header: it costs every file that includes it
// seconds.
class CommandLine {
 public:
  using Run = std::function<ExitCode(Connection&)>;

  CommandLine(const std::string& name, const std::string& description, const std::string& footer,
              const std::string& version);
  ~CommandLine();

  Command& root();

  // What is left to do: the command that was asked for, or the exit code of a command line that is
  // wrong (said on `console`) or asked for help alone; then `run` is empty.
  struct Choice {
    Run run;
    bool connect = true;  // it talks to a server
    ExitCode code = kSucceeded;
  };
  Choice Parse(int argc, const char* const* argv, const Console& console);

 private:
  friend class Command;
  struct State;
  std::unique_ptr<State> state_;
};

// A command, the root of all included. Owned by its command line.
class Command {
 public:
  Command(CLI::App* app, CommandLine::State* state) : app_(app), state_(state) {}

  // A command below this one, with an example in its help.
  Command* AddCommand(const std::string& name, const std::string& description,
                      const std::string& example);
  // One of the commands below has to be given.
  void RequireCommand();

  // T: std::string, int, int64_t, an optional of std::string, int or double, or a vector of
  // std::string, whose flag takes one value each time it is given. `value` has to live until the
  // command has run.
  template <typename T>
  Option* AddOption(const std::string& name, T& value, const std::string& help);
  Option* AddFlag(const std::string& name, bool& value, const std::string& help);

  // `problem` says what is wrong with the values together; an empty string: nothing.
  void Check(std::function<std::string()> problem);
  // What the command does, with a connection that was checked; RunHere: without a server.
  void Run(CommandLine::Run run);
  void RunHere(CommandLine::Run run);

  const std::string& name() const;
  std::string description() const;
  std::vector<const Command*> commands() const;  // below this one
  std::vector<std::string> flags() const;        // as "--flag"

 private:
  Option* Keep(CLI::Option* option);
  void Choose(CommandLine::Run run, bool connect);

  CLI::App* app_;
  CommandLine::State* state_;
  std::function<std::string()> problem_;
};

}  // namespace sft::client
