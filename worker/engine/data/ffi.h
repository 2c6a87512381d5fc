#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

// C interface of the Rust crate in tokenizer/ (src/lib.rs is its other half). Used by tokenizer.cc,
// tokenizer_files.cc, chat_template.cc and runaway.cc alone.

extern "C" {

struct SftTokenizer;
struct SftTemplate;

// Result of an entry point; sft_result_free frees its memory.
struct SftResult {
  int32_t ok;
  const char* text;  // the answer, or the error
  size_t text_size;
  const int32_t* ids;
  size_t ids_size;
  const uint32_t* starts;
  const uint32_t* ends;
  size_t spans_size;
  void* owner;
};

void sft_result_free(SftResult* result);

// Ends the process when a call takes more memory than it may (`bytes` so far), or the system has no
// `bytes` for it: see memory.rs. `what` is what the call was doing. Must not return.
using SftMemoryHandler = void (*)(int32_t refused, const char* what, size_t what_size,
                                  size_t bytes);
void sft_set_memory_handler(SftMemoryHandler handler);

// Makes the tokenizer.json of a vocabulary and merges.txt (empty: it needs none); `request` is what
// the JSON files beside them say.
SftResult sft_tokenizer_convert(const char* request, size_t request_size, const char* vocabulary,
                                size_t vocabulary_size, const char* merges, size_t merges_size);

SftResult sft_tokenizer_open(const char* json, size_t size, SftTokenizer** out);
void sft_tokenizer_close(SftTokenizer* tokenizer);
SftResult sft_tokenizer_encode(const SftTokenizer* tokenizer, const char* text, size_t size,
                               int32_t plain);
SftResult sft_tokenizer_decode(const SftTokenizer* tokenizer, const int32_t* ids, size_t size,
                               int32_t skip_special);
SftResult sft_tokenizer_token_id(const SftTokenizer* tokenizer, const char* text, size_t size);
SftResult sft_tokenizer_added_in(const SftTokenizer* tokenizer, const char* text, size_t size);

SftResult sft_template_compile(const char* source, size_t source_size, const char* variables,
                               size_t variables_size, SftTemplate** out);
void sft_template_close(SftTemplate* chat_template);
SftResult sft_template_render(const SftTemplate* chat_template, const char* messages,
                              size_t messages_size, const char* tools, size_t tools_size,
                              const char* variables, size_t variables_size,
                              int32_t add_generation_prompt);

}  // extern "C"

namespace sft::engine {

// Owns a result for as long as its memory is read.
class FfiResult {
 public:
  explicit FfiResult(const SftResult& result) : result_(result) {}
  ~FfiResult() { sft_result_free(&result_); }
  FfiResult(const FfiResult&) = delete;
  FfiResult& operator=(const FfiResult&) = delete;

  bool ok() const { return result_.ok != 0; }
  std::string_view text() const { return {result_.text, result_.text_size}; }
  const SftResult& get() const { return result_; }

 private:
  SftResult result_;
};

}  // namespace sft::engine
