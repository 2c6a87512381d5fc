#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "worker/engine/export/gguf_file.h"

namespace sft::engine {

// Adds what a GGUF file says of the tokenizer in a model directory: tokens padded to `vocab`,
// merges, the name under which llama.cpp knows how text is cut before them, special tokens and the
// chat template. Throws UserError for a tokenizer that llama.cpp has no name for.
void AddTokenizer(const std::filesystem::path& folder, int64_t vocab, GgufKeys& keys);

[[noreturn]] void RefuseTokenizer(const std::string& what);

}  // namespace sft::engine
