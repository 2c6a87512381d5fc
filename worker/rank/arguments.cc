#include "worker/rank/arguments.h"

#include <fmt/format.h>

#include <charconv>
#include <map>

namespace sft::rank {
namespace {

// Flags of one command that take a value, and where the value goes.
using Flags = std::map<std::string, std::string*, std::less<>>;

absl::Status ParseInt(std::string_view flag, std::string_view text, int minimum, int* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && end == text.data() + text.size() && *value >= minimum) {
    return absl::OkStatus();
  }
  return InvalidArgument(
      fmt::format("{} takes a whole number of at least {}, not \"{}\"", flag, minimum, text));
}

absl::Status ParseNumber(std::string_view flag, const std::string& text, double* value) {
  if (text.empty()) return absl::OkStatus();
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  if (error == std::errc() && end == text.data() + text.size()) return absl::OkStatus();
  return InvalidArgument(fmt::format("{} takes a number, not \"{}\"", flag, text));
}

absl::Status ParseFlags(const std::vector<std::string>& args, const Flags& flags, bool* json) {
  for (size_t i = 1; i < args.size(); ++i) {
    std::string name = args[i];
    if (json != nullptr && name == "--json") {
      *json = true;
      continue;
    }
    const size_t equals = name.find('=');
    const bool joined = name.starts_with("--") && equals != std::string::npos;
    const std::string value = joined ? name.substr(equals + 1) : "";
    if (joined) name.resize(equals);
    const auto flag = flags.find(name);
    if (flag == flags.end()) {
      return InvalidArgument(
          fmt::format("unknown argument \"{}\" of \"sft-rank {}\"", args[i], args[0]));
    }
    if (joined) {
      *flag->second = value;
    } else if (++i < args.size()) {
      *flag->second = args[i];
    } else {
      return InvalidArgument(fmt::format("{} needs a value", name));
    }
  }
  return absl::OkStatus();
}

absl::Status Require(std::string_view command, std::string_view flag, const std::string& value) {
  if (!value.empty()) return absl::OkStatus();
  return InvalidArgument(fmt::format("\"sft-rank {}\" needs {}", command, flag));
}

absl::StatusOr<Arguments> ParseTrain(const std::vector<std::string>& args) {
  Arguments result{.command = Command::kTrain};
  std::string rank;
  SFT_RETURN_IF_ERROR(ParseFlags(
      args, {{"--launch", &result.launch}, {"--rank", &rank}, {"--profile", &result.profile}},
      nullptr));
  SFT_RETURN_IF_ERROR(Require("train", "--launch FILE", result.launch));
  if (!rank.empty()) SFT_RETURN_IF_ERROR(ParseInt("--rank", rank, 0, &result.rank));
  return result;
}

absl::StatusOr<Arguments> ParsePrepare(const std::vector<std::string>& args) {
  Arguments result{.command = Command::kPrepare};
  SFT_RETURN_IF_ERROR(ParseFlags(args, {{"--launch", &result.launch}}, nullptr));
  SFT_RETURN_IF_ERROR(Require("prepare", "--launch FILE", result.launch));
  return result;
}

absl::StatusOr<Arguments> ParseExport(const std::vector<std::string>& args) {
  Arguments result{.command = Command::kExport};
  std::string rank;
  SFT_RETURN_IF_ERROR(ParseFlags(args, {{"--launch", &result.launch}, {"--rank", &rank}}, nullptr));
  SFT_RETURN_IF_ERROR(Require("export", "--launch FILE", result.launch));
  if (!rank.empty()) SFT_RETURN_IF_ERROR(ParseInt("--rank", rank, 0, &result.rank));
  return result;
}

absl::Status CheckDevice(const std::string& device) {
  if (device == "cpu") return absl::OkStatus();
  constexpr std::string_view kCuda = "cuda:";
  int index = 0;
  if (device.starts_with(kCuda) && ParseInt("", device.substr(kCuda.size()), 0, &index).ok()) {
    return absl::OkStatus();
  }
  return InvalidArgument(fmt::format("--device is \"cpu\" or \"cuda:0\", not \"{}\"", device));
}

// Values of numbers, as text.
struct GenerateNumbers {
  std::string tokens, batch, rank, ranks, top_k, seed;
  std::string temperature, top_p, min_p, repetition_penalty;
};

absl::Status ParseGenerateNumbers(const GenerateNumbers& text, Arguments& result) {
  const auto whole = [](std::string_view flag, const std::string& value, int least, int* to) {
    return value.empty() ? absl::OkStatus() : ParseInt(flag, value, least, to);
  };
  SFT_RETURN_IF_ERROR(whole("--max-new-tokens", text.tokens, 1, &result.max_new_tokens));
  SFT_RETURN_IF_ERROR(whole("--batch", text.batch, 1, &result.most_requests));
  SFT_RETURN_IF_ERROR(whole("--rank", text.rank, 0, &result.rank));
  SFT_RETURN_IF_ERROR(whole("--ranks", text.ranks, 1, &result.ranks));
  SFT_RETURN_IF_ERROR(whole("--top-k", text.top_k, 0, &result.top_k));
  SFT_RETURN_IF_ERROR(whole("--seed", text.seed, 0, &result.seed));
  SFT_RETURN_IF_ERROR(ParseNumber("--temperature", text.temperature, &result.temperature));
  SFT_RETURN_IF_ERROR(ParseNumber("--top-p", text.top_p, &result.top_p));
  SFT_RETURN_IF_ERROR(ParseNumber("--min-p", text.min_p, &result.min_p));
  return ParseNumber("--repetition-penalty", text.repetition_penalty, &result.repetition_penalty);
}

absl::Status CheckShare(const Arguments& arguments) {
  const int rank = arguments.rank < 0 ? 0 : arguments.rank;
  if (rank >= arguments.ranks) {
    return InvalidArgument(fmt::format("--rank {} is not one of {} (--ranks): they count from 0",
                                       rank, arguments.ranks));
  }
  if (arguments.ranks > 1 && (arguments.out.empty() || arguments.rank < 0)) {
    return InvalidArgument("--ranks needs --rank N, and --out FILE that all of them share");
  }
  if (!arguments.out.empty() && arguments.prompts.empty()) {
    return InvalidArgument("--out is for the answers to --prompts FILE");
  }
  return absl::OkStatus();
}

absl::StatusOr<Arguments> ParseGenerate(const std::vector<std::string>& args) {
  Arguments result{.command = Command::kGenerate};
  GenerateNumbers numbers;
  SFT_RETURN_IF_ERROR(ParseFlags(args,
                                 {{"--launch", &result.launch},
                                  {"--model", &result.model},
                                  {"--adapter", &result.adapter},
                                  {"--prompt", &result.prompt},
                                  {"--prompts", &result.prompts},
                                  {"--out", &result.out},
                                  {"--stop", &result.stop},
                                  {"--rank", &numbers.rank},
                                  {"--ranks", &numbers.ranks},
                                  {"--batch", &numbers.batch},
                                  {"--max-new-tokens", &numbers.tokens},
                                  {"--temperature", &numbers.temperature},
                                  {"--top-k", &numbers.top_k},
                                  {"--top-p", &numbers.top_p},
                                  {"--min-p", &numbers.min_p},
                                  {"--repetition-penalty", &numbers.repetition_penalty},
                                  {"--seed", &numbers.seed},
                                  {"--device", &result.device}},
                                 &result.json));
  if (!result.launch.empty()) {
    if (!result.model.empty() || !result.prompt.empty() || !result.prompts.empty()) {
      return InvalidArgument(
          "\"sft-rank generate --launch FILE\" has its model and prompts from the file");
    }
    if (numbers.rank.empty()) return result;
    SFT_RETURN_IF_ERROR(ParseInt("--rank", numbers.rank, 0, &result.rank));
    return result;
  }
  SFT_RETURN_IF_ERROR(Require("generate", "--model DIR", result.model));
  if (result.prompt.empty() == result.prompts.empty()) {
    return InvalidArgument("\"sft-rank generate\" needs either --prompt TEXT or --prompts FILE");
  }
  SFT_RETURN_IF_ERROR(ParseGenerateNumbers(numbers, result));
  SFT_RETURN_IF_ERROR(CheckShare(result));
  SFT_RETURN_IF_ERROR(CheckDevice(result.device));
  return result;
}

absl::StatusOr<Arguments> ParseLogits(const std::vector<std::string>& args) {
  Arguments result{.command = Command::kLogits};
  SFT_RETURN_IF_ERROR(ParseFlags(args,
                                 {{"--model", &result.model},
                                  {"--adapter", &result.adapter},
                                  {"--tokens", &result.tokens},
                                  {"--out", &result.out},
                                  {"--device", &result.device}},
                                 nullptr));
  SFT_RETURN_IF_ERROR(Require("logits", "--model DIR", result.model));
  SFT_RETURN_IF_ERROR(Require("logits", "--tokens FILE", result.tokens));
  SFT_RETURN_IF_ERROR(Require("logits", "--out FILE", result.out));
  SFT_RETURN_IF_ERROR(CheckDevice(result.device));
  return result;
}

constexpr int kLongestMeeting = 86'400;  // seconds

absl::StatusOr<Arguments> ParseMeet(const std::vector<std::string>& args) {
  Arguments result{.command = Command::kMeet};
  std::string rank, ranks, port, timeout = std::to_string(result.timeout_seconds);
  SFT_RETURN_IF_ERROR(ParseFlags(args,
                                 {{"--host", &result.host},
                                  {"--port", &port},
                                  {"--rank", &rank},
                                  {"--ranks", &ranks},
                                  {"--timeout", &timeout}},
                                 nullptr));
  SFT_RETURN_IF_ERROR(Require("meet", "--port P", port));
  SFT_RETURN_IF_ERROR(Require("meet", "--rank N", rank));
  SFT_RETURN_IF_ERROR(Require("meet", "--ranks N", ranks));
  SFT_RETURN_IF_ERROR(ParseInt("--port", port, 1, &result.port));
  SFT_RETURN_IF_ERROR(ParseInt("--rank", rank, 0, &result.rank));
  SFT_RETURN_IF_ERROR(ParseInt("--ranks", ranks, 2, &result.ranks));
  SFT_RETURN_IF_ERROR(ParseInt("--timeout", timeout, 1, &result.timeout_seconds));
  if (result.timeout_seconds > kLongestMeeting) {
    return InvalidArgument(fmt::format("--timeout is at most {} seconds", kLongestMeeting));
  }
  if (result.port > 65535) return InvalidArgument("--port is at most 65535");
  if (result.rank >= result.ranks) {
    return InvalidArgument(fmt::format("--rank {} is not one of {} (--ranks): they count from 0",
                                       result.rank, result.ranks));
  }
  return result;
}

}  // namespace

std::string HelpText() {
  return R"(sft-rank: one process of a job, and text from a trained model

  sft-rank prepare  --launch FILE           tokenise the data of a job into the node's cache
  sft-rank train    --launch FILE [--rank N]
                                            run rank N of a job (started by sft-shim); without
                                            --rank the variable RANK says which
                    [--profile TRACE]       write a Chrome trace of step 4, packed with gzip
  sft-rank generate --launch FILE [--rank N]
                                            the same for a job of kind "generate"
  sft-rank export   --launch FILE [--rank N]
                                            the same for a job of kind "export"
  sft-rank generate --model DIR [--adapter DIR] (--prompt TEXT | --prompts FILE)
                    [--max-new-tokens N] [--temperature T] [--top-k K] [--top-p P] [--min-p P]
                    [--repetition-penalty X] [--seed N] [--stop TEXT] [--batch N]
                    [--out FILE [--rank N --ranks N]] [--device cpu|cuda:0] [--json]
                                            answer prompts through the model's chat template, with
                                            the likeliest token unless --temperature is above 0.
                                            --prompts holds one prompt a line: text, or JSON with
                                            "messages" or "prompt". --batch are answered at once,
                                            which changes no answer. --json prints one object a
                                            prompt: prompt, answer, tokens, ended. --out gets each
                                            row of --prompts with answer, finish_reason,
                                            prompt_tokens and answer_tokens, in their order; a run
                                            that was killed goes on where it was, and --ranks
                                            processes that share the prompts make the same file
  sft-rank logits   --model DIR [--adapter DIR] --tokens FILE --out FILE [--device cpu|cuda:0]
                                            compute logits, to compare with another program: FILE of
                                            --tokens is safetensors with input_ids, int64
                                            [rows, length]; --out gets them and logits, float32
                                            [rows, length, vocabulary]
  sft-rank meet     [--host ADDRESS] --port P --rank N --ranks N [--timeout SECONDS]
                                            see that processes find each other and agree, over
                                            Gloo: start each rank, on one node or several, with the
                                            address of rank 0's node (127.0.0.1), all within
                                            --timeout (15)
  sft-rank --version
  sft-rank --help

Example:
  sft-rank generate --model models/SmolLM2-135M-Instruct --adapter out \
           --prompt "How do I submit a job?"

Exit codes: 0 done; 2 wrong arguments or launch file; 64 the job's model, data or values cannot be
used; 65 device, network or disk failed; 66 a fault of this program; 67 told to stop.
)";
}

absl::StatusOr<Arguments> ParseArguments(const std::vector<std::string>& args) {
  if (args.empty()) return InvalidArgument("no command given");
  const std::string& command = args[0];
  if (command == "--help" || command == "-h" || command == "help") {
    return Arguments{.command = Command::kHelp};
  }
  if (command == "--version") return Arguments{.command = Command::kVersion};
  if (command == "train") return ParseTrain(args);
  if (command == "prepare") return ParsePrepare(args);
  if (command == "generate") return ParseGenerate(args);
  if (command == "export") return ParseExport(args);
  if (command == "logits") return ParseLogits(args);
  if (command == "meet") return ParseMeet(args);
  return InvalidArgument(fmt::format(
      "unknown command \"{}\": train, prepare, generate, export, logits or meet", command));
}

}  // namespace sft::rank
