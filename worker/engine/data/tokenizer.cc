#include "worker/engine/data/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/base/json.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/ffi.h"
#include "worker/engine/data/files.h"

namespace sft::engine {

struct Tokenizer::Impl {
  struct Close {
    void operator()(SftTokenizer* tokenizer) const { sft_tokenizer_close(tokenizer); }
  };
  std::unique_ptr<SftTokenizer, Close> handle;
  std::vector<AddedToken> added_tokens;
  std::vector<int32_t> prefix;
  std::vector<int32_t> suffix;
  int32_t vocabulary_size = 0;
  int64_t longest_token = 0;
};

namespace {

Encoding TakeEncoding(const FfiResult& result) {
  if (!result.ok()) throw UserError(fmt::format("cannot tokenise a text: {}", result.text()));
  const SftResult& raw = result.get();
  Encoding encoding;
  encoding.ids.assign(raw.ids, raw.ids + raw.ids_size);
  encoding.starts.assign(raw.starts, raw.starts + raw.spans_size);
  encoding.ends.assign(raw.ends, raw.ends + raw.spans_size);
  return encoding;
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Tokenizer Tokenizer::Open(const std::filesystem::path& tokenizer_json) {
  return FromJson(ReadTextFile(tokenizer_json), tokenizer_json.string());
}

Tokenizer Tokenizer::FromJson(std::string_view json, std::string_view origin) {
  SftTokenizer* handle = nullptr;
  const FfiResult result(sft_tokenizer_open(json.data(), json.size(), &handle));
  if (!result.ok()) {
    throw UserError(fmt::format(
        "{}: not a tokenizer that can be used: {}; it must be the tokenizer.json of a Hugging Face "
        "fast tokenizer",
        origin, result.text()));
  }
  auto impl = std::make_shared<Impl>();
  impl->handle.reset(handle);
  const auto description = ParseJson(result.text());
  for (const auto& token : description.at("added_tokens")) {
    impl->added_tokens.push_back({.id = token.at("id").get<int32_t>(),
                                  .special = token.at("special").get<bool>(),
                                  .text = token.at("text").get<std::string>()});
  }
  impl->prefix = description.at("prefix").get<std::vector<int32_t>>();
  impl->suffix = description.at("suffix").get<std::vector<int32_t>>();
  impl->vocabulary_size = description.at("vocabulary_size").get<int32_t>();
  impl->longest_token = description.at("longest_token").get<int64_t>();
  return Tokenizer(std::move(impl));
}

Encoding Tokenizer::Encode(std::string_view text) const {
  return TakeEncoding(
      FfiResult(sft_tokenizer_encode(impl_->handle.get(), text.data(), text.size(), 0)));
}

Encoding Tokenizer::EncodeAsPlainText(std::string_view text) const {
  Encoding encoding = TakeEncoding(
      FfiResult(sft_tokenizer_encode(impl_->handle.get(), text.data(), text.size(), 1)));
  // A vocabulary may hold a special token as an ordinary piece (unigram models do).
  for (const AddedToken& token : impl_->added_tokens) {
    if (token.special && std::ranges::find(encoding.ids, token.id) != encoding.ids.end()) {
      throw UserError(fmt::format(
          "the tokenizer makes the special token {} even of plain text; remove it from the text",
          token.text));
    }
  }
  return encoding;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  const FfiResult result(
      sft_tokenizer_decode(impl_->handle.get(), ids.data(), ids.size(), skip_special ? 1 : 0));
  if (!result.ok()) throw InternalError(fmt::format("cannot decode tokens: {}", result.text()));
  return std::string(result.text());
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view token) const {
  const FfiResult result(sft_tokenizer_token_id(impl_->handle.get(), token.data(), token.size()));
  if (!result.ok() || result.get().ids_size == 0) return std::nullopt;
  return result.get().ids[0];
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return impl_->added_tokens; }

std::vector<int32_t> Tokenizer::AddedTokensIn(std::string_view text) const {
  const FfiResult result(sft_tokenizer_added_in(impl_->handle.get(), text.data(), text.size()));
  if (!result.ok()) throw UserError(fmt::format("cannot tokenise a text: {}", result.text()));
  return {result.get().ids, result.get().ids + result.get().ids_size};
}

const std::vector<int32_t>& Tokenizer::prefix() const { return impl_->prefix; }
const std::vector<int32_t>& Tokenizer::suffix() const { return impl_->suffix; }
int32_t Tokenizer::vocabulary_size() const { return impl_->vocabulary_size; }
int64_t Tokenizer::longest_token() const { return impl_->longest_token; }

}  // namespace sft::engine
