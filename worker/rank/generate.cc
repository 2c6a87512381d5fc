#include "worker/rank/generate.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/io/file.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/eval/generator.h"
#include "worker/rank/device.h"

namespace sft::rank {
namespace {

constexpr int64_t kMaxPromptsBytes = int64_t{1} << 26;

// --prompt, or the lines of --prompts that are not blank.
std::vector<std::string> Prompts(const Arguments& arguments) {
  if (!arguments.prompt.empty()) return {arguments.prompt};
  const auto text = io::ReadFile(arguments.prompts, kMaxPromptsBytes);
  if (!text.ok()) throw engine::UserError(std::string(Message(text.status())), "no_prompts");
  std::vector<std::string> prompts;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") != std::string::npos) prompts.push_back(line);
  }
  if (prompts.empty()) {
    throw engine::UserError(arguments.prompts + " holds no prompt", "no_prompts",
                            "Write one prompt a line.");
  }
  return prompts;
}

// An adapter brings the template it was trained with.
engine::ChatTokenizer OpenTokenizer(const Arguments& arguments) {
  const std::filesystem::path adapter = arguments.adapter;
  const bool own =
      !arguments.adapter.empty() && std::filesystem::exists(adapter / "tokenizer.json");
  return engine::ChatTokenizer::Open(own ? adapter : std::filesystem::path(arguments.model));
}

void Print(const Arguments& arguments, const std::string& prompt, const std::string& answer,
           size_t tokens, bool ended) {
  if (arguments.json) {
    // Bytes that are no UTF-8 (a character cut by the token limit) are replaced.
    fmt::print("{}\n",
               DumpJson(nlohmann::json{
                   {"prompt", prompt}, {"answer", answer}, {"tokens", tokens}, {"ended", ended}}));
  } else if (arguments.prompts.empty()) {
    fmt::print("{}\n", answer);
  } else {
    fmt::print("> {}\n{}\n\n", prompt, answer);
  }
}

}  // namespace

void RunGenerate(const Arguments& arguments) {
  const Device device = OpenDevice(arguments.device);
  const std::vector<std::string> prompts = Prompts(arguments);
  const engine::ChatTokenizer tokenizer = OpenTokenizer(arguments);
  engine::Generator generator(
      {.model_dir = arguments.model, .adapter_dir = arguments.adapter, .device = device.torch});
  for (const std::string& prompt : prompts) {
    const std::vector<engine::ChatMessage> messages{{.role = "user", .content = prompt}};
    const std::vector<int32_t> ids = generator.Generate(
        tokenizer.EncodePrompt(messages), arguments.max_new_tokens, tokenizer.stop_ids());
    Print(arguments, prompt, tokenizer.DecodeAnswer(ids), ids.size(),
          static_cast<int>(ids.size()) < arguments.max_new_tokens);
  }
}

}  // namespace sft::rank
