#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/plan/tensors.h"
#include "common/spec/job_json.h"
#include "worker/channel/launch.h"

// Runs the program sft-rank, on a model folder that a test may spoil.

namespace sft::rank {

// Name -> shape of the tensors of a safetensors file, all bf16.
using Shapes = std::map<std::string, std::vector<int64_t>>;

// The tensors that a model with this config.json has.
inline Shapes ShapesOf(const std::string& config_json) {
  Shapes shapes;
  const auto config = plan::ParseModelConfig(config_json);
  EXPECT_TRUE(config.ok()) << config.status();
  if (!config.ok()) return shapes;
  for (const plan::TensorUnit& unit : plan::TensorsOf(*config)) {
    for (const plan::TensorInfo& tensor : unit.tensors) shapes[tensor.name] = tensor.shape;
  }
  return shapes;
}

// The bytes of a file that holds zeros of these shapes.
inline std::string SafetensorsOf(const Shapes& shapes) {
  nlohmann::json header = nlohmann::json::object();
  int64_t end = 0;
  for (const auto& [name, shape] : shapes) {
    int64_t bytes = 2;
    for (const int64_t size : shape) bytes *= size;
    header[name] = {{"dtype", "BF16"}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  const std::string text = DumpJson(header);
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(text.size() >> 8 * i);
  return file + text + std::string(static_cast<size_t>(end), '\0');
}

inline std::string WeightsOf(const std::string& config_json) {
  return SafetensorsOf(ShapesOf(config_json));
}

class RankProcessTest : public ::testing::Test {
 protected:
  RankProcessTest() : dir_(io::MakeTempDir("sft-rank-process-").value()) {
    setenv("GOMP_SPINCOUNT", "1000", /*overwrite=*/1);  // else the program starts itself again
    launch_ = {.attempt_uid = "a-1",
               .job_json = DumpJson(spec::ToJson(spec::JobSpec())),
               .device = "cpu",
               .model_dir = dir_ + "/model",
               .train_file = dir_ + "/train.jsonl",
               .cache_dir = dir_ + "/cache",
               .attempt_dir = dir_,
               .output_dir = dir_ + "/output"};
  }
  ~RankProcessTest() override { std::filesystem::remove_all(dir_); }

  // Runs the program; its output, both streams together, is in output_.
  int Run(const std::string& arguments) {
    output_.clear();
    const std::string command =
        std::string(SFT_BINARY_DIR) + "/bin/sft-rank " + arguments + " 2>&1";
    FILE* pipe = popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) {
      output_.append(buffer.data(), got);
    }
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  int RunLaunch(const std::string& command) {
    EXPECT_TRUE(io::WriteFileAtomic(dir_ + "/launch.json", channel::ToJson(launch_)).ok());
    return Run(command + " --launch " + dir_ + "/launch.json");
  }

  // The last line of an event file.
  nlohmann::json LastEvent(const std::string& process) const {
    std::string text = io::ReadFile(dir_ + "/" + process + ".events").value();
    text.pop_back();
    return ParseJson(text.substr(text.rfind('\n') + 1));
  }

  std::string dir_;
  channel::RankLaunch launch_;
  std::string output_;
};

inline constexpr char kHonest[] =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

// These tests need a model that prepare accepts, with a template and a tokenizer of their own.
class PreparedModelTest : public RankProcessTest {
 protected:
  PreparedModelTest() {
    std::filesystem::create_directories(dir_ + "/model");
    const std::string goldens = std::string(SFT_SOURCE_DIR) + "/tests/parity/data/tokenizer.json";
    tokenizer_ = ParseJson(io::ReadFile(goldens).value());
    WriteModel(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true})");
    Write("train.jsonl", R"({"messages": [{"role": "user", "content": "a"},)"
                         R"( {"role": "assistant", "content": "b"}]})"
                         "\n");
    launch_.train_name = "train.jsonl";
  }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/" + name, text).ok());
  }
  // config.json, and weights of zeros that are as it says.
  void WriteModel(const std::string& config) {
    Write("model/config.json", config);
    Write("model/model.safetensors", WeightsOf(config));
  }
  int Prepare(const std::string& chat_template = kHonest) {
    Write("model/tokenizer.json", DumpJson(tokenizer_));
    Write("model/chat_template.jinja", chat_template);
    return RunLaunch("prepare");
  }
  // Checks how prepare ends: the exit code of a user error, and the fatal event.
  void ExpectUserError(const std::string& code, const std::string& message) {
    const nlohmann::json event = LastEvent("prepare");
    EXPECT_EQ(event.value("event", ""), "fatal") << output_;
    EXPECT_EQ(event.value("domain", ""), "user");
    EXPECT_EQ(event.value("code", ""), code);
    EXPECT_THAT(event.value("message", ""), ::testing::HasSubstr(message));
    EXPECT_THAT(output_, ::testing::HasSubstr(message));
  }

  nlohmann::json tokenizer_;
};

}  // namespace sft::rank
