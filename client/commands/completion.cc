#include <fmt/format.h>

#include "client/commands/commands.h"

namespace sft::client {
namespace {

std::string Words(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, " "));
}

std::vector<std::string> CommandNames(const Command& command) {
  std::vector<std::string> names;
  for (const Command* below : command.commands()) names.push_back(below->name());
  return names;
}

// Words that may follow a command: its subcommands and its flags.
std::string WordsAfter(const Command& command) {
  std::vector<std::string> words = CommandNames(command);
  const std::vector<std::string> flags = command.flags();
  words.insert(words.end(), flags.begin(), flags.end());
  return Words(words);
}

std::string Bash(const Command& app) {
  std::string text =
      "_sftctl() {\n  local word=${COMP_WORDS[COMP_CWORD]} words\n  case ${COMP_WORDS[1]} in\n";
  for (const Command* command : app.commands()) {
    text += fmt::format("    {}) words=\"{}\" ;;\n", command->name(), WordsAfter(*command));
  }
  text += fmt::format("    *) words=\"{} {}\" ;;\n  esac\n", Words(CommandNames(app)),
                      Words(app.flags()));
  text += "  [ \"$COMP_CWORD\" -eq 1 ] && words=\"" + Words(CommandNames(app)) +
          "\"\n"
          "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
          "  [ ${#COMPREPLY[@]} -eq 0 ] && COMPREPLY=($(compgen -f -- \"$word\"))\n"
          "}\ncomplete -o filenames -F _sftctl sftctl\n";
  return text;
}

std::string Zsh(const Command& app) {
  std::string text =
      "#compdef sftctl\n_sftctl() {\n  if (( CURRENT == 2 )); then\n    local -a commands=(\n";
  for (const Command* command : app.commands()) {
    std::string description = command->description();
    for (size_t at = 0; (at = description.find('\'', at)) != std::string::npos; at += 4) {
      description.replace(at, 1, "'\\''");
    }
    text += fmt::format("      '{}:{}'\n", command->name(), description);
  }
  text += "    )\n    _describe command commands\n    return\n  fi\n  case $words[2] in\n";
  for (const Command* command : app.commands()) {
    text += fmt::format("    {}) compadd -- {} ;;\n", command->name(), WordsAfter(*command));
  }
  text += "  esac\n  _files\n}\ncompdef _sftctl sftctl\n";
  return text;
}

std::string Fish(const Command& app) {
  std::string text;
  for (const Command* command : app.commands()) {
    text += fmt::format("complete -c sftctl -n __fish_use_subcommand -a {} -d \"{}\"\n",
                        command->name(), command->description());
    for (const std::string& flag : command->flags()) {
      text += fmt::format("complete -c sftctl -n '__fish_seen_subcommand_from {}' -l {}\n",
                          command->name(), flag.substr(2));
    }
  }
  return text;
}

}  // namespace

void AddCompletion(Command& app) {
  Command* command = app.AddCommand("completion", "Print a completion script for a shell",
                                    "source <(sftctl completion bash)");
  auto shell = std::make_shared<std::string>();
  command->AddOption("SHELL", *shell, "bash, zsh or fish")
      ->Required()
      ->Among({"bash", "zsh", "fish"});
  command->RunHere([&app, shell](Connection& connection) {
    connection.console().out << (*shell == "bash"  ? Bash(app)
                                 : *shell == "zsh" ? Zsh(app)
                                                   : Fish(app));
    return kSucceeded;
  });
}

}  // namespace sft::client
