#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sft::data {

// What a row is, told by its columns. Stored in caches and counted in records: append only.
enum class Form : uint8_t {
  kUnknown = 0,
  kMessages = 1,    // {"messages": [{"role", "content"}, ...]}
  kShareGpt = 2,    // {"conversations": [{"from", "value"}, ...]}
  kMixed = 3,       // the same list with "role" and "value", or entries of both kinds
  kCompletion = 4,  // {"prompt", "completion"} (or "response", "answer")
  kAlpaca = 5,      // {"instruction", "input"?, "output"}
  kQuestion = 6,    // {"question", "answer"} (or "query" and "response")
  kText = 7,        // {"text"}
  // Recognised, and not for supervised fine-tuning.
  kPreference = 8,  // "chosen" and "rejected"
  kUnpaired = 9,    // "prompt", "completion" and whether it is good
  kSegments = 10,   // {"segments": [{"label", "text"}, ...]}
  kTokens = 11,     // "input_ids"
  kPromptOnly = 12,
};
inline constexpr int kForms = 13;
// What a job reads: texts and conversations, pairs of answers, answers marked good or bad (which a
// pair is two of), or texts and of those two what is good (an export and an evaluation).
enum class Learns : uint8_t { kTexts, kPairs, kMarked, kChosen };
// By the job's kind and training.loss ("sft", "dpo", ...).
Learns LearnsOf(std::string_view loss, std::string_view kind = "sft");
// Whether it compares answers.
inline bool Compares(Learns learns) {
  return learns == Learns::kPairs || learns == Learns::kMarked;
}
// "ShareGPT", "prompt + completion", ... as messages show it.
std::string_view FormName(Form form);
// Why a job cannot learn from rows of the form; empty if it can.
std::string_view FormRefusal(Form form, Learns learns = Learns::kTexts);
using FormCounts = std::array<int64_t, kForms>;
// "3 ShareGPT, 1 text"; empty when all are 0.
std::string FormsText(const FormCounts& counts);

// What the job file says of how rows are written: columns of the file that stand for columns of a
// form, roles beside the known ones, and the text that Alpaca's columns become.
struct RowNames {
  std::vector<std::pair<std::string, std::string>> columns;  // theirs, ours
  std::vector<std::pair<std::string, std::string>> roles;    // theirs, ours
  bool stanford = false;  // data.alpaca_prompt = "stanford": a prompt and its completion as text

  // The name under which a form knows the column; empty: it has no say, since another stands for
  // it.
  std::string_view Column(std::string_view name) const;
};

// Reads pairs "ours=theirs", as the job file has them.
RowNames NamesOf(const std::vector<std::string>& columns, const std::vector<std::string>& roles);

// A row as far as it is looked at before a job reads it.
struct RowShape {
  bool is_json = false;
  std::string kind;  // "array", when it is not an object
  Form form = Form::kUnknown;
  std::string problem;  // the fault in the form of an object; empty if there is none
};

// Takes little memory whatever the row holds. A row with a pair and with the chosen answer as
// messages is what the job learns from.
RowShape ShapeOf(std::string_view row, const RowNames& names = {}, Learns learns = Learns::kTexts);

}  // namespace sft::data
