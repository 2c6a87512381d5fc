#include "worker/rank/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"
#include "worker/rank/answer_part.h"
#include "worker/rank/prompt_rows.h"
#include "worker/rank/row_answerer.h"

namespace sft::rank {
namespace {

AnswerOptions AnswerOptionsOf(const Arguments& arguments) {
  AnswerOptions options{.model = arguments.model,
                        .adapter = arguments.adapter,
                        .max_new_tokens = arguments.max_new_tokens,
                        .sampling = {.temperature = arguments.temperature,
                                     .top_k = arguments.top_k,
                                     .top_p = arguments.top_p,
                                     .min_p = arguments.min_p,
                                     .repetition_penalty = arguments.repetition_penalty,
                                     .seed = static_cast<uint64_t>(arguments.seed)},
                        .most_requests = arguments.most_requests};
  if (!arguments.stop.empty()) options.stop = {arguments.stop};
  return options;
}

void Print(const Arguments& arguments, const data::PromptRow& row, const RowAnswer& answer) {
  if (arguments.json) {
    // Bytes that are no UTF-8 (a character cut by the token limit) are replaced.
    nlohmann::json line = {{"prompt", row.Asked()},
                           {"answer", answer.text},
                           {"tokens", answer.tokens},
                           {"ended", answer.finish_reason == "stop"}};
    if (!answer.thoughts.empty()) line["reasoning"] = answer.thoughts;
    if (!answer.error.empty()) line["error"] = answer.error;
    fmt::print("{}\n", DumpJson(line));
    return;
  }
  if (arguments.prompts.empty()) {
    fmt::print("{}\n", answer.text);
  } else {
    fmt::print("> {}\n{}\n\n", row.Asked(), answer.text);
  }
  if (!answer.error.empty()) fmt::print(stderr, "sft-rank: {}\n", answer.error);
}

void AnswerIntoFile(const Arguments& arguments, const AnswerOptions& options,
                    const Prompts& prompts) {
  const RowShare share{std::max(arguments.rank, 0), arguments.ranks,
                       static_cast<int64_t>(prompts.rows.size())};
  auto part = AnswerPart::Open(arguments.out, share, RunOf(options, prompts, arguments.ranks));
  ThrowIfError(part.status());
  if (part->answered() > 0) {
    fmt::print(stderr, "{} of {} rows are answered already\n", part->answered(), share.size());
  }
  if (part->answered() < share.size()) {
    const Device device = OpenDevice(arguments.device);
    RowAnswerer answerer(options, prompts, share.begin() + part->answered(), share.end(), device);
    while (answerer.Step([&](int64_t number, const RowAnswer& answer) {
      ThrowIfError(part->Append(LineOf(prompts, options.samples, number, answer)));
    })) {
    }
  }
  const absl::StatusOr<bool> joined = part->Finish();
  ThrowIfError(joined.status());
  fmt::print(stderr, "{} rows answered{}\n", share.size(),
             *joined ? fmt::format(": {}", arguments.out)
                     : "; the other processes still have some of theirs");
}

}  // namespace

void RunGenerate(const Arguments& arguments) {
  const AnswerOptions options = AnswerOptionsOf(arguments);
  CheckOptions(options);
  Prompts prompts{.file = arguments.prompts};
  if (arguments.prompts.empty()) {
    prompts.rows = {data::UserPrompt(arguments.prompt)};
  } else {
    prompts.rows = ReadPromptFile(arguments.prompts);
  }
  if (!arguments.out.empty()) return AnswerIntoFile(arguments, options, prompts);
  const Device device = OpenDevice(arguments.device);
  RowAnswerer answerer(options, prompts, 0, static_cast<int64_t>(prompts.rows.size()), device);
  while (answerer.Step([&](int64_t number, const RowAnswer& answer) {
    Print(arguments, prompts.rows[static_cast<size_t>(number)], answer);
  })) {
  }
}

}  // namespace sft::rank
