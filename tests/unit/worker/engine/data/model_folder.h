#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace sft::engine {

// A folder that is removed at the end of the test.
class TestFolder {
 public:
  TestFolder();
  ~TestFolder();
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Writes a file into it and returns its path.
  std::filesystem::path Write(const std::string& name, std::string_view text) const;

 private:
  std::filesystem::path path_;
};

std::filesystem::path DataGoldens();  // tests/parity/data
std::string ReadWhole(const std::filesystem::path& path);

// The text side of a model: the goldens' tokenizer and a tokenizer_config.json with one of the
// goldens' templates ("" for none).
struct ModelFolder : TestFolder {
  ModelFolder(const std::string& chat_template, const std::string& bos, const std::string& eos);
  // Gives the tokenizer further special tokens.
  void AddSpecialTokens(const std::vector<std::string>& texts) const;
};

}  // namespace sft::engine
