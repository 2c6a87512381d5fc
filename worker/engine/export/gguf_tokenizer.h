#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "worker/engine/export/gguf_file.h"

namespace sft::engine {

// Adds what a GGUF file says of the tokenizer in a model directory: tokens padded to `vocab`,
// merges, the name under which llama.cpp knows how text is cut before them, special tokens and the
// chat template. `architecture` is llama.cpp's name of the model's: Gemma 4 has a tokenizer of its
// own there. Throws UserError for a tokenizer that llama.cpp has no name for.
void AddTokenizer(const std::filesystem::path& folder, int64_t vocab, std::string_view architecture,
                  GgufKeys& keys);

[[noreturn]] void RefuseTokenizer(const std::string& what);

}  // namespace sft::engine
