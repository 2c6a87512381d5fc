#pragma once

#include <filesystem>
#include <string>

namespace sft::engine {

inline constexpr int kTinyVocabulary = 96;

// The config.json of a Llama of two layers; `extra`: more members, each preceded by a comma.
std::string TinyConfig(const std::string& extra = "");

// Writes config.json, random bf16 weights from a seed and stand-ins for the tokenizer's files.
void WriteTinyModel(const std::filesystem::path& dir, const std::string& config = TinyConfig());

}  // namespace sft::engine
