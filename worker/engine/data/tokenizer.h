#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sft::engine {

// Tokens of one text. Token i covers the bytes [starts[i], ends[i]) of the UTF-8 text; tokens that
// share one character all cover it.
struct Encoding {
  std::vector<int32_t> ids;
  std::vector<uint32_t> starts;
  std::vector<uint32_t> ends;
};

// A token that tokenizer.json adds to the vocabulary by its exact text. `special`: it never stands
// for ordinary text ("<|im_end|>"), unlike "<think>" or a run of spaces.
struct AddedToken {
  int32_t id = 0;
  bool special = false;
  std::string text;
};

// A Hugging Face fast tokenizer (tokenizer.json). Its post-processor, truncation and padding are
// removed when it is opened: they move offsets and add tokens that belong to the chat template.
// Immutable; every const method may be called from any thread at the same time.
class Tokenizer {
 public:
  // Throws UserError when the file is missing, unreadable or not a tokenizer.json.
  static Tokenizer Open(const std::filesystem::path& tokenizer_json);
  // `origin` names the text in error messages.
  static Tokenizer FromJson(std::string_view json, std::string_view origin);

  // The text of added tokens inside `text` becomes those tokens; see FindAddedToken. Throws
  // UserError when `text` is not UTF-8.
  Encoding Encode(std::string_view text) const;

  // As Encode, but special added tokens inside `text` are split into ordinary tokens.
  Encoding EncodeAsPlainText(std::string_view text) const;

  // `skip_special` leaves out special added tokens.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // The id of a token by its exact text in the vocabulary or among the added tokens.
  std::optional<int32_t> TokenId(std::string_view token) const;

  // By id, ascending.
  const std::vector<AddedToken>& added_tokens() const;

  // Ids that encoding an added token in `text` would yield, in order of appearance: exactly the
  // matching that Encode does (normaliser and stripping flags included). Empty for ordinary text.
  std::vector<int32_t> AddedTokensIn(std::string_view text) const;

  // Tokens the removed post-processor put before a text (usually none or BOS) and after it.
  const std::vector<int32_t>& prefix() const;
  const std::vector<int32_t>& suffix() const;

  // One more than the largest id.
  int32_t vocabulary_size() const;
  // Bytes of the longest token's text: a text has at least its size divided by this many tokens.
  int64_t longest_token() const;

 private:
  struct Impl;
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl>
      impl_;  // shared: a tokenizer is copied into threads, its tables are not
};

}  // namespace sft::engine
