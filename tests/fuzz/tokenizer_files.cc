// A vocabulary (a SentencePiece model, a tiktoken file or vocab.json) and, after "\n\0\n",
// merges.txt.

#include <string>

#include "tests/fuzz/input.h"
#include "worker/engine/data/ffi.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view mark("\n\0\n", 3);
  const size_t at = std::min(input.find(mark), input.size());
  const std::string vocabulary(input.substr(0, at));
  const std::string merges(input.substr(std::min(at + mark.size(), input.size())));
  for (const char* name : {"LlamaTokenizer", "GPT2Tokenizer", ""}) {
    const std::string request = std::string(R"({"class":")") + name + R"(","pattern":"\\s+",
        "tokenizer_config":{"add_bos_token":true,"bos_token":"<s>",
                            "added_tokens_decoder":{"9":{"content":"<x>"}}}})";
    const sft::engine::FfiResult made(sft_tokenizer_convert(request.data(), request.size(),
                                                            vocabulary.data(), vocabulary.size(),
                                                            merges.data(), merges.size()));
    if (!made.ok()) continue;
    SftTokenizer* tokenizer = nullptr;
    const sft::engine::FfiResult opened(
        sft_tokenizer_open(made.text().data(), made.text().size(), &tokenizer));
    if (opened.ok()) sft_tokenizer_close(tokenizer);
  }
  return 0;
}
