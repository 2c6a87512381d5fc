#include "worker/engine/data/channels.h"

#include <algorithm>
#include <string_view>

namespace sft::engine {
namespace {

constexpr std::string_view kFinal = "final";

}  // namespace

std::optional<AnswerChannels> AnswerChannels::Of(const Tokenizer& tokenizer) {
  const auto start = tokenizer.TokenId("<|start|>"), channel = tokenizer.TokenId("<|channel|>");
  const auto message = tokenizer.TokenId("<|message|>");
  if (!start || !channel || !message) return std::nullopt;
  AnswerChannels channels;
  channels.start_ = *start;
  channels.channel_ = *channel;
  channels.message_ = *message;
  for (const char* end : {"<|end|>", "<|return|>", "<|call|>"}) {
    if (const auto id = tokenizer.TokenId(end)) channels.ends_.push_back(*id);
  }
  return channels;
}

AnswerChannels::Parts AnswerChannels::Split(std::span<const int32_t> ids,
                                            const Tokenizer& tokenizer) const {
  Parts parts;
  std::vector<int32_t>* part = &parts.answer;  // null within a header
  std::vector<int32_t> name;                   // of the header's channel, and what follows it
  bool named = false;
  for (const int32_t id : ids) {
    if (id == start_ || id == channel_) {
      part = nullptr;
      named = id == channel_;
      name.clear();
    } else if (id == message_ && part == nullptr) {
      // More may follow: "final <|constrain|>json", "commentary to=functions.weather".
      const std::string channel = tokenizer.Decode(name, /*skip_special=*/true);
      part = !named || channel.starts_with(kFinal) ? &parts.answer : &parts.thoughts;
    } else if (std::ranges::find(ends_, id) != ends_.end()) {
      part = &parts.answer;
    } else if (part != nullptr) {
      part->push_back(id);
    } else if (named) {
      name.push_back(id);
    }
  }
  return parts;
}

}  // namespace sft::engine
