#include "client/base/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <deque>
#include <map>
#include <optional>

#include "client/output/text.h"
#include "common/base/edit_distance.h"

namespace sft::client {
namespace {

std::string CheckWholeNumber(const std::string& text, int64_t from) {
  // More digits would not fit into the options' types.
  constexpr size_t kMaxDigits = 9;
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (digits && text.size() <= kMaxDigits && std::stoll(text) >= from) return "";
  return fmt::format("must be a whole number from {} to 999999999, but is '{}'", from, text);
}

// What CLI11 reports as a missing command is usually a misspelt one; empty if it is not.
std::string UnknownCommand(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining();
  if (!app.get_subcommands().empty() || left.empty() || left.front().starts_with("-")) return "";
  const std::string& word = left.front();
  std::string nearest;
  size_t best = SuggestionLimit(word) + 1;
  for (const CLI::App* command : app.get_subcommands({})) {
    const size_t distance = EditDistance(word, command->get_name());
    if (distance < best) best = distance, nearest = command->get_name();
  }
  return fmt::format("no command is called '{}'{}; `sftctl --help` lists them", OneLine(word),
                     nearest.empty() ? "" : fmt::format(", did you mean {}?", nearest));
}

ExitCode ReportParseError(const CLI::App& app, const CLI::ParseError& error,
                          const Console& console) {
  if (const std::string unknown = UnknownCommand(app); !unknown.empty()) {
    console.err << "sftctl: " << unknown << "\n";
    return kUsage;
  }
  // Help and version are "errors" of CLI11 with code 0.
  if (error.get_exit_code() != 0) console.err << "sftctl: ";
  return app.exit(error, console.out, console.err) == 0 ? kSucceeded : kUsage;
}

template <typename T>
constexpr bool kIsList = std::is_same_v<T, std::vector<std::string>>;

}  // namespace

struct CommandLine::State {
  State(const std::string& name, const std::string& description) : app(description, name) {}

  CLI::App app;
  std::deque<Option> options;
  std::deque<Command> commands;
  std::map<const CLI::App*, const Command*> by_app;
  Choice choice;
};

Option* Option::Required() {
  option_->required();
  return this;
}

Option* Option::Excludes(Option* other) {
  option_->excludes(other->option_);
  return this;
}

Option* Option::Needs(Option* other) {
  option_->needs(other->option_);
  return this;
}

Option* Option::Among(const std::vector<std::string>& words) {
  option_->check(CLI::IsMember(words));
  return this;
}

Option* Option::WholeNumber(int64_t from) {
  option_->check(
      CLI::Validator([from](const std::string& text) { return CheckWholeNumber(text, from); }, ""));
  return this;
}

Option* Option::Times(int least, int at_most) {
  option_->expected(least, at_most);
  return this;
}

Option* Option::ShowDefault() {
  option_->capture_default_str();
  return this;
}

CommandLine::CommandLine(const std::string& name, const std::string& description,
                         const std::string& footer, const std::string& version)
    : state_(std::make_unique<State>(name, description)) {
  state_->app.fallthrough();
  state_->app.footer(footer);
  state_->app.set_version_flag("--version", version);
  state_->commands.emplace_back(&state_->app, state_.get());
}

CommandLine::~CommandLine() = default;

Command& CommandLine::root() { return state_->commands.front(); }

CommandLine::Choice CommandLine::Parse(int argc, const char* const* argv, const Console& console) {
  try {
    state_->app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return {.code = ReportParseError(state_->app, error, console)};
  }
  return std::move(state_->choice);
}

Command* Command::AddCommand(const std::string& name, const std::string& description,
                             const std::string& example) {
  CLI::App* app = app_->add_subcommand(name, description);
  app->footer("Example:\n  " + example);
  Command* command = &state_->commands.emplace_back(app, state_);
  state_->by_app[app] = command;
  return command;
}

void Command::RequireCommand() { app_->require_subcommand(1); }

Option* Command::Keep(CLI::Option* option) { return &state_->options.emplace_back(option); }

template <typename T>
Option* Command::AddOption(const std::string& name, T& value, const std::string& help) {
  CLI::Option* option = app_->add_option(name, value, help);
  if (kIsList<T> && name.starts_with("-")) option->allow_extra_args(false);
  return Keep(option);
}

template Option* Command::AddOption(const std::string&, std::string&, const std::string&);
template Option* Command::AddOption(const std::string&, int&, const std::string&);
template Option* Command::AddOption(const std::string&, int64_t&, const std::string&);
template Option* Command::AddOption(const std::string&, std::optional<std::string>&,
                                    const std::string&);
template Option* Command::AddOption(const std::string&, std::optional<int>&, const std::string&);
template Option* Command::AddOption(const std::string&, std::optional<double>&, const std::string&);
template Option* Command::AddOption(const std::string&, std::vector<std::string>&,
                                    const std::string&);

Option* Command::AddFlag(const std::string& name, bool& value, const std::string& help) {
  return Keep(app_->add_flag(name, value, help));
}

void Command::Check(std::function<std::string()> problem) { problem_ = std::move(problem); }

void Command::Choose(CommandLine::Run run, bool connect) {
  app_->final_callback([this, run = std::move(run), connect] {
    // If a command and its subcommand are given, the subcommand is meant.
    if (!app_->get_subcommands().empty()) return;
    const std::string problem = problem_ ? problem_() : "";
    if (!problem.empty()) throw CLI::ValidationError(problem);
    state_->choice = {.run = run, .connect = connect};
  });
}

void Command::Run(CommandLine::Run run) { Choose(std::move(run), true); }

void Command::RunHere(CommandLine::Run run) { Choose(std::move(run), false); }

const std::string& Command::name() const { return app_->get_name(); }

std::string Command::description() const { return app_->get_description(); }

std::vector<const Command*> Command::commands() const {
  std::vector<const Command*> commands;
  for (const CLI::App* app : app_->get_subcommands({})) commands.push_back(state_->by_app.at(app));
  return commands;
}

std::vector<std::string> Command::flags() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

}  // namespace sft::client
