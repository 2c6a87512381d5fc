#include "worker/node/weights_check.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/plan/tensors.h"
#include "tests/unit/worker/base/test_node.h"
#include "worker/node/models.h"

namespace sft::worker {
namespace {

constexpr char kTinyLlama[] =
    R"({"model_type":"llama","hidden_size":8,"intermediate_size":16,"num_attention_heads":2,)"
    R"("num_key_value_heads":1,"num_hidden_layers":1,"vocab_size":32,"tie_word_embeddings":true})";
constexpr char kQueryWeight[] = "model.layers.0.self_attn.q_proj.weight";
constexpr char kFinalNorm[] = "model.norm.weight";

using TinyShapes = std::map<std::string, std::vector<int64_t>>;

TinyShapes TinyTensors() {
  TinyShapes shapes;
  for (const plan::TensorUnit& unit : plan::TensorsOf(*plan::ParseModelConfig(kTinyLlama))) {
    for (const plan::TensorInfo& tensor : unit.tensors) shapes[tensor.name] = tensor.shape;
  }
  return shapes;
}

// A file of bf16 tensors in the order of their names.
std::string TensorFile(const TinyShapes& shapes, const std::string& type = "BF16") {
  std::vector<std::string> entries;
  int64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    const int64_t begin = end;
    int64_t bytes = type == "BF16" ? 2 : 1;
    for (const int64_t size : shape) bytes *= size;
    end += bytes;
    entries.push_back(fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  name, type, fmt::join(shape, ","), begin, end));
  }
  const std::string header = fmt::format("{{{}}}", fmt::join(entries, ","));
  std::string text(8, '\0');
  for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
  return text + header + std::string(end, '\0');
}

class WeightsCheckTest : public TestNode {
 protected:
  void SetUp() override {
    TestNode::SetUp();
    tiny_ = dir_ + "/models/tiny";
    Write(tiny_ + "/config.json", kTinyLlama);
  }
  std::string ProblemOf(const TinyShapes& shapes) {
    Write(tiny_ + "/model.safetensors", TensorFile(shapes));
    return InspectModel(tiny_, "tiny", setup_).problem();
  }
  std::string ProblemOfShards(const std::map<std::string, TinyShapes>& shards,
                              const std::map<std::string, std::string>& places) {
    std::filesystem::remove(tiny_ + "/model.safetensors");
    for (const auto& [file, shapes] : shards) Write(tiny_ + "/" + file, TensorFile(shapes));
    Write(tiny_ + "/model.safetensors.index.json",
          DumpJson(nlohmann::json{{"weight_map", places}}));
    return InspectModel(tiny_, "tiny", setup_).problem();
  }

  std::string tiny_;
};

TEST_F(WeightsCheckTest, AModelWithAllItsTensorsHasNoProblem) {
  TinyShapes shapes = TinyTensors();
  EXPECT_EQ(ProblemOf(shapes), "");
  // What may stand beside them.
  shapes["lm_head.weight"] = {3};
  shapes["model.layers.0.self_attn.rotary_emb.inv_freq"] = {2};
  EXPECT_EQ(ProblemOf(shapes), "");
}

TEST_F(WeightsCheckTest, ATensorThatIsMissingOrOfAnotherShapeOrUnknownIsNamed) {
  TinyShapes missing = TinyTensors();
  missing.erase(kFinalNorm);
  EXPECT_EQ(ProblemOf(missing),
            "the weights hold no tensor model.norm.weight, which config.json asks for");
  TinyShapes other = TinyTensors();
  other[kQueryWeight] = {8, 9};
  EXPECT_EQ(ProblemOf(other),
            "model.safetensors: model.layers.0.self_attn.q_proj.weight has shape [8, 9], "
            "config.json asks for [8, 8]");
  TinyShapes more = TinyTensors();
  more["model.layers.1.input_layernorm.weight"] = {8};
  EXPECT_EQ(ProblemOf(more),
            "the weights hold model.layers.1.input_layernorm.weight, which the "
            "architecture in config.json does not have");
  Write(tiny_ + "/model.safetensors", TensorFile(TinyTensors(), "I8"));
  EXPECT_NE(InspectModel(tiny_, "tiny", setup_)
                .problem()
                .find("has type I8, and config.json has no quantization_config"),
            std::string::npos);
}

TEST_F(WeightsCheckTest, ATensorOfTwoShardsOrOfAnotherThanTheIndexSaysIsNamed) {
  TinyShapes first = TinyTensors();
  const TinyShapes second = {{kFinalNorm, {8}}};
  first.erase(kFinalNorm);
  std::map<std::string, std::string> places;
  for (const auto& [name, shape] : first) places[name] = "a.safetensors";
  places[kFinalNorm] = "b.safetensors";
  EXPECT_EQ(ProblemOfShards({{"a.safetensors", first}, {"b.safetensors", second}}, places), "");
  TinyShapes both = second;
  both[kQueryWeight] = {8, 8};
  EXPECT_EQ(
      ProblemOfShards({{"b.safetensors", both}}, places),
      fmt::format("a.safetensors and b.safetensors both hold the tensor \"{}\"", kQueryWeight));
  EXPECT_EQ(ProblemOfShards({{"b.safetensors", {{"x", {1}}}}}, places),
            "model.safetensors.index.json places \"model.norm.weight\" in b.safetensors, which "
            "does not hold it");
}

TEST_F(WeightsCheckTest, ATensorTwiceInAHeaderIsNamed) {
  std::string file = TensorFile({{"a", {1}}, {"b", {1}}});
  file[file.find("\"b\"") + 1] = 'a';
  Write(tiny_ + "/model.safetensors", file);
  EXPECT_EQ(InspectModel(tiny_, "tiny", setup_).problem(),
            "model.safetensors: in the header \"a\" stands there twice");
}

TEST_F(WeightsCheckTest, AFamilyThatIsNotSupportedIsComparedWithNothing) {
  Write(tiny_ + "/config.json", R"({"model_type":"mamba"})");
  EXPECT_EQ(ProblemOf({{"x", {1}}}), "");
}

// Files of the same size and time are not read again; others are.
TEST_F(WeightsCheckTest, AnUnchangedFolderIsNotReadAgain) {
  const std::string path = tiny_ + "/model.safetensors";
  ASSERT_EQ(ProblemOf(TinyTensors()), "");
  struct stat before {};
  ASSERT_EQ(stat(path.c_str(), &before), 0);
  const auto overwrite = [&](char value) {
    FILE* file = fopen(path.c_str(), "r+");  // of the same inode
    ASSERT_NE(file, nullptr);
    fputc(value, file);
    ASSERT_EQ(fclose(file), 0);
  };
  overwrite(1);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(InspectModel(tiny_, "tiny", setup_).problem(), "");
  const timespec later[2] = {before.st_atim, {before.st_mtim.tv_sec + 1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), later, 0), 0);
  EXPECT_NE(InspectModel(tiny_, "tiny", setup_).problem(), "");
}

}  // namespace
}  // namespace sft::worker
