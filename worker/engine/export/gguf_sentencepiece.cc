#include "worker/engine/export/gguf_sentencepiece.h"

#include <fmt/format.h>

#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "worker/engine/export/gguf_tokenizer.h"

namespace sft::engine {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSpace = "\u2581";
constexpr float kNever = -1e9F;

std::string KindOf(const Json& part) {
  return part.is_object() ? part.value("type", std::string()) : std::string();
}

// A normalizer or pre-tokenizer as a list of its parts; none of null.
std::vector<Json> Steps(const Json& json, const char* key, const char* list) {
  const Json step = json.value(key, Json());
  if (step.is_null()) return {};
  if (KindOf(step) != "Sequence") return {step};
  const Json parts = step.value(list, Json::array());
  return {parts.begin(), parts.end()};
}

bool ReplacesSpaces(const Json& step) {
  const Json pattern = step.value("pattern", Json::object());
  return KindOf(step) == "Replace" && pattern.value("String", std::string()) == " " &&
         step.value("content", std::string()) == kSpace;
}

// Whether a space goes before each text.
bool ReadSpaces(const Json& json) {
  bool before = false, replaced = false;
  for (const Json& step : Steps(json, "normalizer", "normalizers")) {
    if (ReplacesSpaces(step)) {
      replaced = true;
    } else if (KindOf(step) == "Prepend" && step.value("prepend", std::string()) == kSpace) {
      before = true;
    } else {
      RefuseTokenizer(fmt::format("it changes text before it is cut ({})", KindOf(step)));
    }
  }
  for (const Json& step : Steps(json, "pre_tokenizer", "pretokenizers")) {
    const std::string kind = KindOf(step);
    // The normalizer has replaced all spaces, so a split at spaces does nothing.
    const Json pattern = step.value("pattern", Json::object());
    if (kind == "Split" && replaced && pattern.value("String", std::string()) == " ") continue;
    if (kind != "Metaspace" || step.value("replacement", std::string()) != kSpace ||
        step.value("split", true)) {
      RefuseTokenizer(fmt::format("it cuts text ({}), which llama.cpp does not", kind));
    }
    if (step.value("prepend_scheme", std::string("always")) != "never") {
      RefuseTokenizer(
          "a space goes before some texts alone (Metaspace); llama.cpp puts one before each, also "
          "where a text begins with one");
    }
    replaced = true;
  }
  if (!replaced) RefuseTokenizer("its spaces stay spaces");
  return before;
}

std::pair<std::string, std::string> PairOf(const Json& merge) {
  if (merge.is_string()) {
    const std::string text = merge.get<std::string>();
    const size_t space = text.find(' ');
    if (space != text.npos && space > 0 && space + 1 < text.size()) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
             merge[1].is_string()) {
    return {merge[0].get<std::string>(), merge[1].get<std::string>()};
  }
  RefuseTokenizer("a merge is no pair");
}

// Where characters begin, but for the first.
std::vector<size_t> Cuts(std::string_view text) {
  std::vector<size_t> cuts;
  for (size_t at = 1; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0) != 0x80) cuts.push_back(at);
  }
  return cuts;
}

// The merges: what each token is made of, and the order.
class Merges {
 public:
  explicit Merges(const Json& list) {
    std::string last;
    for (const Json& merge : list) {
      const auto [left, right] = PairOf(merge);
      std::string token = left + right;
      pairs_.insert(left + " " + right);
      if (token == last) continue;
      const float score = -static_cast<float>(scores_.size());
      if (!scores_.emplace(token, score).second) {
        RefuseTokenizer(
            fmt::format("the merges of \"{}\" are not in a row, as SentencePiece's are", token));
      }
      last = std::move(token);
    }
  }

  float ScoreOf(const std::string& token) const {
    const auto found = scores_.find(token);
    return found == scores_.end() ? kNever : found->second;
  }
  bool Has(const std::string& left, const std::string& right) const {
    return pairs_.contains(left + " " + right);
  }

 private:
  std::unordered_map<std::string, float> scores_;
  std::unordered_set<std::string> pairs_;
};

// Refuses a token that llama.cpp would make of a pair that is no merge.
void CheckPairs(const std::string& token, const std::unordered_set<std::string>& vocabulary,
                const Merges& merges) {
  const std::vector<size_t> cuts = Cuts(token);
  for (size_t i = 0; i < cuts.size(); ++i) {
    const std::string left = token.substr(0, cuts[i]), right = token.substr(cuts[i]);
    const bool stands = (i == 0 || vocabulary.contains(left)) &&
                        (i + 1 == cuts.size() || vocabulary.contains(right));
    if (stands && !merges.Has(left, right)) {
      RefuseTokenizer(fmt::format(
          "\"{}\" and \"{}\" make a token and are no merge, as in no SentencePiece model", left,
          right));
    }
  }
}

void RefuseStripping(const Json& tokenizer) {
  for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
    if (token.value("lstrip", false) || token.value("rstrip", false)) {
      RefuseTokenizer(fmt::format("its token {} takes the spaces beside it",
                                  token.value("content", std::string())));
    }
  }
}

}  // namespace

bool IsSentencePiece(const Json& tokenizer) {
  const Json model = tokenizer.value("model", Json::object());
  return KindOf(model) == "BPE" && model.value("byte_fallback", false);
}

SentencePieces ReadSentencePieces(const Json& tokenizer, int64_t vocab) {
  SentencePieces pieces;
  pieces.space_before = ReadSpaces(tokenizer);
  const Json& model = tokenizer.at("model");
  if (model.value("ignore_merges", false)) RefuseTokenizer("whole words need no merges in it");
  RefuseStripping(tokenizer);
  const Json& vocabulary = model.at("vocab");
  const Merges merges(model.value("merges", Json::array()));
  std::unordered_set<std::string> added, texts;
  for (const auto& [text, id] : vocabulary.items()) texts.insert(text);
  for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
    added.insert(token.value("content", std::string()));
  }
  pieces.scores.assign(static_cast<size_t>(vocab), kNever);
  for (const auto& [text, id] : vocabulary.items()) {
    if (!id.is_number_integer()) RefuseTokenizer("a token has no number");
    const auto number = id.get<int64_t>();
    if (number < 0 || number >= vocab) continue;  // refused with the tokens
    pieces.scores[static_cast<size_t>(number)] = merges.ScoreOf(text);
    const bool byte = text.size() == 6 && text.starts_with("<0x");
    if (!byte && !added.contains(text)) CheckPairs(text, texts, merges);
  }
  return pieces;
}

void CheckGemma4Pieces(const Json& tokenizer) {
  if (ReadSpaces(tokenizer)) RefuseTokenizer("a space goes before each text");
  const Json& model = tokenizer.at("model");
  if (model.value("ignore_merges", false)) RefuseTokenizer("whole words need no merges in it");
  RefuseStripping(tokenizer);
  for (const Json& merge : model.value("merges", Json::array())) {
    const auto [left, right] = PairOf(merge);
    const std::string token = left + right;
    const size_t first = token.find('\n');
    if (first != token.npos && token.find_first_not_of('\n') != token.npos) {
      RefuseTokenizer(
          fmt::format("\"{}\" and \"{}\" become one token, with a line feed in it", left, right));
    }
  }
}

}  // namespace sft::engine
