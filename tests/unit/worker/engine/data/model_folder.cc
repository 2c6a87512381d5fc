#include "tests/unit/worker/engine/data/model_folder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/json.h"
#include "common/io/file.h"

namespace sft::engine {

TestFolder::TestFolder() : path_(io::MakeTempDir("data_test").value()) {}
TestFolder::~TestFolder() { std::filesystem::remove_all(path_); }

std::filesystem::path TestFolder::Write(const std::string& name, std::string_view text) const {
  std::ofstream(path_ / name, std::ios::binary) << text;
  return path_ / name;
}

std::filesystem::path DataGoldens() {
  return std::filesystem::path(SFT_SOURCE_DIR) / "tests/parity/data";
}

std::string ReadWhole(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

ModelFolder::ModelFolder(const std::string& chat_template, const std::string& bos,
                         const std::string& eos) {
  std::filesystem::copy_file(DataGoldens() / "tokenizer.json", path() / "tokenizer.json");
  nlohmann::json config = {{"bos_token", bos}, {"eos_token", {{"content", eos}}}};
  if (!chat_template.empty()) {
    config["chat_template"] = ReadWhole(DataGoldens() / "templates" / (chat_template + ".jinja"));
  }
  Write("tokenizer_config.json", DumpJson(config));
}

void ModelFolder::AddSpecialTokens(const std::vector<std::string>& texts) const {
  nlohmann::ordered_json tokenizer = ParseOrderedJson(ReadWhole(path() / "tokenizer.json"));
  nlohmann::ordered_json& added = tokenizer["added_tokens"];
  for (const std::string& text : texts) {
    nlohmann::ordered_json token = added.back();
    token["id"] = added.back().at("id").get<int>() + 1;
    token["content"] = text;
    token["special"] = true;
    added.push_back(std::move(token));
  }
  Write("tokenizer.json", DumpJson(tokenizer));
}

}  // namespace sft::engine
