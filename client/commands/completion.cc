#include <fmt/format.h>

#include "client/commands/commands.h"

namespace sft::client {
namespace {

std::string Words(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> FlagNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What may follow a command: its own commands, and its flags.
std::string WordsAfter(const CLI::App& command) {
  std::vector<std::string> words = CommandNames(command);
  const std::vector<std::string> flags = FlagNames(command);
  words.insert(words.end(), flags.begin(), flags.end());
  return Words(words);
}

std::string Bash(const CLI::App& app) {
  std::string text =
      "_sftctl() {\n  local word=${COMP_WORDS[COMP_CWORD]} words\n  case ${COMP_WORDS[1]} in\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    text += fmt::format("    {}) words=\"{}\" ;;\n", command->get_name(), WordsAfter(*command));
  }
  text += fmt::format("    *) words=\"{} {}\" ;;\n  esac\n", Words(CommandNames(app)),
                      Words(FlagNames(app)));
  text += "  [ \"$COMP_CWORD\" -eq 1 ] && words=\"" + Words(CommandNames(app)) +
          "\"\n"
          "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "  [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- \"$word\"))\n"
          "}\ncomplete -o filenames -F _sftctl sftctl\n";
  return text;
}

std::string Zsh(const CLI::App& app) {
  std::string text =
      "#compdef sftctl\n_sftctl() {\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    std::string description = command->get_description();
    for (size_t at = 0; (at = description.find('\'', at)) != std::string::npos; at += 4) {
      description.replace(at, 1, "'\\''");
    }
    text += fmt::format("      '{}:{}'\n", command->get_name(), description);
  }
  text += "    )\n    _describe command commands\n    return\n  fi\n  case $words[2] in\n";
  for (const CLI::App* command : app.get_subcommands({})) {
    text += fmt::format("    {}) compadd -- {} ;;\n", command->get_name(), WordsAfter(*command));
  }
  text += "  esac\n  _files\n}\ncompdef _sftctl sftctl\n";
  return text;
}

std::string Fish(const CLI::App& app) {
  std::string text;
  for (const CLI::App* command : app.get_subcommands({})) {
    text += fmt::format("complete -c sftctl -n __fish_use_subcommand -a {} -d \"{}\"\n",
                        command->get_name(), command->get_description());
    for (const std::string& flag : FlagNames(*command)) {
      text += fmt::format("complete -c sftctl -n '__fish_seen_subcommand_from {}' -l {}\n",
                          command->get_name(), flag.substr(2));
    }
  }
  return text;
}

}  // namespace

void AddCompletion(CLI::App& app, Session& session) {
  CLI::App* command = AddCommand(app, "completion", "Print a completion script for a shell",
                                 "source <(sftctl completion bash)");
  auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([&session, shell] {
    session.connect = false;
    session.command = [&session, shell](Connection& connection) {
      connection.console().out << (*shell == "bash"  ? Bash(*session.app)
                                   : *shell == "zsh" ? Zsh(*session.app)
                                                     : Fish(*session.app));
      return kSucceeded;
    };
  });
}

}  // namespace sft::client
