#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/spec/job_json.h"
#include "worker/base/setup.h"

namespace sft::worker {

// A node's folders with one usable model, in a temporary folder.
class TestNode : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = *io::MakeTempDir("sft-daemon-test");
    setup_.node = "node-a";
    setup_.data_dir = dir_ + "/data";
    setup_.shared_dir = dir_ + "/shared";
    setup_.model_dirs = {dir_ + "/models"};
    setup_.roots = {dir_ + "/models", dir_ + "/files"};
    setup_.rank_binary = SFT_BINARY_DIR "/tests/sft-fake-rank";
    setup_.shim_binary = SFT_BINARY_DIR "/bin/sft-shim";
    setup_.cpus = 2;
    MakeModel(dir_ + "/models/tiny");
    ASSERT_TRUE(io::MakeDirs(dir_ + "/files").ok());
  }
  void TearDown() override { ASSERT_TRUE(io::RemoveAll(dir_).ok()); }

  static void Write(const std::string& path, const std::string& text) {
    ASSERT_TRUE(io::MakeDirs(path.substr(0, path.rfind('/'))).ok());
    ASSERT_TRUE(io::WriteFileAtomic(path, text).ok());
  }
  // A safetensors file with one tensor of `bytes` bytes.
  static std::string Safetensors(int64_t bytes) {
    std::string header = R"({"w":{"dtype":"U8","shape":[)" + std::to_string(bytes) +
                         R"(],"data_offsets":[0,)" + std::to_string(bytes) + "]}}";
    std::string text(8, '\0');
    for (int i = 0; i < 8; ++i) text[i] = static_cast<char>(header.size() >> (8 * i));
    return text + header + std::string(bytes, 'x');
  }
  static void MakeModel(const std::string& dir) {
    Write(dir + "/config.json", R"({"model_type":"llama"})");
    Write(dir + "/tokenizer.json", "{}");
    Write(dir + "/model.safetensors", Safetensors(64));
  }
  static std::string ResolvedJson(const std::string& model, bool full = false) {
    spec::JobSpec spec;
    spec.job.model = model;
    spec.job.data = "train.jsonl";
    spec.compute.gpu_type = "CPU";
    if (full) spec.training.mode = spec::Mode::kFullFinetune;
    return DumpJson(spec::ToJson(spec));
  }

  std::string dir_;
  NodeSetup setup_;
};

}  // namespace sft::worker
