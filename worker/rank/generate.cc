#include "worker/rank/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/io/sha256.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/generate/generator.h"
#include "worker/engine/nn/dropout.h"
#include "worker/rank/answer_part.h"
#include "worker/rank/device.h"
#include "worker/rank/prompt_rows.h"

namespace sft::rank {
namespace {

// What one prompt got.
struct RowAnswer {
  std::string text;
  size_t prompt_tokens = 0, tokens = 0;
  bool ended = false;  // by the model or a stop text, not by the limit
};

// Takes the answers of rows one after the other, in their order.
using TakeAnswer = std::function<void(const PromptRow& row, const RowAnswer& answer)>;

// An adapter brings the template it was trained with.
engine::ChatTokenizer OpenTokenizer(const Arguments& arguments) {
  const std::filesystem::path adapter = arguments.adapter;
  const bool own =
      !arguments.adapter.empty() && std::filesystem::exists(adapter / "tokenizer.json");
  return engine::ChatTokenizer::Open(own ? adapter : std::filesystem::path(arguments.model));
}

// `row` counts the rows of the whole file, so that an answer does not depend on who makes it.
engine::GenerationRequest RequestFor(const Arguments& arguments,
                                     const engine::ChatTokenizer& tokenizer, const PromptRow& row,
                                     int64_t number) {
  engine::GenerationRequest request;
  request.prompt = EncodeRow(tokenizer, row);
  request.max_new_tokens = arguments.max_new_tokens;
  request.sampling = {.temperature = arguments.temperature,
                      .top_k = arguments.top_k,
                      .top_p = arguments.top_p,
                      .min_p = arguments.min_p,
                      .repetition_penalty = arguments.repetition_penalty,
                      .seed = engine::MixSeed(static_cast<uint64_t>(arguments.seed),
                                              static_cast<uint64_t>(number))};
  request.stop_ids = tokenizer.stop_ids();
  if (!arguments.stop.empty()) {
    request.stop_strings = {arguments.stop};
    request.decode = [&tokenizer](std::span<const int32_t> ids) {
      return tokenizer.DecodeAnswer(ids);
    };
  }
  return request;
}

RowAnswer AnswerOf(const engine::ChatTokenizer& tokenizer, const engine::GenerationAnswer& made) {
  RowAnswer answer;
  answer.text = tokenizer.DecodeAnswer(made.tokens);
  if (made.reason == engine::EndReason::kStopString) answer.text.resize(made.text_bytes);
  answer.tokens = made.tokens.size();
  answer.ended = made.reason != engine::EndReason::kLength;
  return answer;
}

// All prompts are encoded and checked before the first is answered.
void AnswerRows(const Arguments& arguments, const std::vector<PromptRow>& rows, int64_t first,
                int64_t last, const TakeAnswer& take) {
  if (first == last) return;
  const Device device = OpenDevice(arguments.device);
  const engine::ChatTokenizer tokenizer = OpenTokenizer(arguments);
  std::vector<engine::GenerationRequest> requests;
  int64_t longest = 0;
  for (int64_t i = first; i < last; ++i) {
    requests.push_back(RequestFor(arguments, tokenizer, rows[static_cast<size_t>(i)], i));
    longest = std::max(longest, static_cast<int64_t>(requests.back().prompt.size()));
  }
  engine::Generator generator(
      {.model_dir = arguments.model, .adapter_dir = arguments.adapter, .device = device.torch});
  engine::BatchOptions options{.most_requests = arguments.most_requests};
  options.cache_tokens = std::max(options.cache_tokens, longest + arguments.max_new_tokens);
  const std::unique_ptr<engine::BatchGenerator> batch = generator.MakeBatch(options);
  std::vector<size_t> prompt_tokens;
  for (size_t i = 0; i < requests.size(); ++i) {
    prompt_tokens.push_back(requests[i].prompt.size());
    const PromptRow& row = rows[static_cast<size_t>(first) + i];
    try {
      batch->Add(std::move(requests[i]));
    } catch (const engine::UserError& error) {
      if (row.line == 0) throw;
      throw engine::UserError(fmt::format("{}:{}: {}", arguments.prompts, row.line, error.what()),
                              "bad_prompt");
    }
  }
  std::map<int64_t, RowAnswer> early;  // answers that wait for those of rows before them
  int64_t next = 0;
  while (next < last - first) {
    for (const engine::GenerationAnswer& made : batch->Step()) {
      RowAnswer answer = AnswerOf(tokenizer, made);
      answer.prompt_tokens = prompt_tokens[static_cast<size_t>(made.request)];
      early.emplace(made.request, std::move(answer));
    }
    for (auto found = early.find(next); found != early.end(); found = early.find(++next)) {
      take(rows[static_cast<size_t>(first + next)], found->second);
      early.erase(found);
    }
  }
}

void Print(const Arguments& arguments, const PromptRow& row, const RowAnswer& answer) {
  const std::string prompt = row.messages.empty() ? row.text : row.messages.back().content;
  if (arguments.json) {
    // Bytes that are no UTF-8 (a character cut by the token limit) are replaced.
    fmt::print("{}\n", DumpJson(nlohmann::json{{"prompt", prompt},
                                               {"answer", answer.text},
                                               {"tokens", answer.tokens},
                                               {"ended", answer.ended}}));
  } else if (arguments.prompts.empty()) {
    fmt::print("{}\n", answer.text);
  } else {
    fmt::print("> {}\n{}\n\n", prompt, answer.text);
  }
}

std::string LineOf(const PromptRow& row, const RowAnswer& answer) {
  nlohmann::ordered_json line = row.members;
  line["answer"] = answer.text;
  line["finish_reason"] = answer.ended ? "stop" : "length";
  line["prompt_tokens"] = answer.prompt_tokens;
  line["answer_tokens"] = answer.tokens;
  return DumpJson(line);
}

// What decides the answers, and how they are divided.
std::string RunOf(const Arguments& a, const std::vector<PromptRow>& rows) {
  io::Sha256 prompts;
  for (const PromptRow& row : rows) prompts.Update(DumpJson(row.members) + "\n");
  return DumpJson(nlohmann::ordered_json{{"prompts", prompts.FinishHex()},
                                         {"rows", rows.size()},
                                         {"model", a.model},
                                         {"adapter", a.adapter},
                                         {"max_new_tokens", a.max_new_tokens},
                                         {"temperature", a.temperature},
                                         {"top_k", a.top_k},
                                         {"top_p", a.top_p},
                                         {"min_p", a.min_p},
                                         {"repetition_penalty", a.repetition_penalty},
                                         {"seed", a.seed},
                                         {"stop", a.stop},
                                         {"ranks", a.ranks}},
                  2) +
         "\n";
}

// A full disk is the machine's fault, a file that is in the way the user's.
void ThrowIfError(const absl::Status& status) {
  if (status.ok()) return;
  const std::string message(Message(status));
  if (absl::IsAlreadyExists(status)) throw engine::UserError(message, "output_exists");
  throw engine::InfrastructureError(message);
}

void AnswerIntoFile(const Arguments& arguments, const std::vector<PromptRow>& rows) {
  const RowShare share{std::max(arguments.rank, 0), arguments.ranks,
                       static_cast<int64_t>(rows.size())};
  auto part = AnswerPart::Open(arguments.out, share, RunOf(arguments, rows));
  ThrowIfError(part.status());
  if (part->answered() > 0) {
    fmt::print(stderr, "{} of {} rows are answered already\n", part->answered(), share.size());
  }
  AnswerRows(arguments, rows, share.begin() + part->answered(), share.end(),
             [&](const PromptRow& row, const RowAnswer& answer) {
               ThrowIfError(part->Append(LineOf(row, answer)));
             });
  const absl::StatusOr<bool> joined = part->Finish();
  ThrowIfError(joined.status());
  fmt::print(stderr, "{} rows answered{}\n", share.size(),
             *joined ? fmt::format(": {}", arguments.out)
                     : "; the other processes still have some of theirs");
}

}  // namespace

void RunGenerate(const Arguments& arguments) {
  const std::vector<PromptRow> rows = arguments.prompts.empty()
                                          ? std::vector<PromptRow>{UserPrompt(arguments.prompt)}
                                          : ReadPromptRows(arguments.prompts);
  if (!arguments.out.empty()) {
    AnswerIntoFile(arguments, rows);
    return;
  }
  AnswerRows(arguments, rows, 0, static_cast<int64_t>(rows.size()),
             [&](const PromptRow& row, const RowAnswer& answer) { Print(arguments, row, answer); });
}

}  // namespace sft::rank
