// Tests of the program itself: exit codes, messages and the fatal event of inputs refused before
// training.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/file_stamp.h"
#include "common/spec/job_json.h"
#include "worker/channel/launch.h"

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

class RankProcessTest : public ::testing::Test {
 protected:
  RankProcessTest() : dir_(io::MakeTempDir("sft-rank-process-").value()) {
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

TEST_F(RankProcessTest, TellsItsVersionAndHelp) {
  EXPECT_EQ(Run("--version"), channel::kExitOk);
  EXPECT_THAT(output_, ::testing::ContainsRegex("sft-rank [0-9.]+ \\(build [0-9a-f]{16}\\)\n"));
  EXPECT_EQ(Run("--help"), channel::kExitOk);
  EXPECT_THAT(output_, HasSubstr("Example:"));
}

TEST_F(RankProcessTest, AFullOutputIsAnErrorNotACrash) {
  EXPECT_EQ(Run("--help > /dev/full"), channel::kExitInfrastructure);
  EXPECT_EQ(Run("--version > /dev/full"), channel::kExitInfrastructure);
  EXPECT_EQ(Run("dance 2> /dev/full >&2"), channel::kExitUsage);
}

TEST_F(RankProcessTest, WrongArgumentsAndLaunchFilesAreUsageErrors) {
  EXPECT_EQ(Run(""), channel::kExitUsage);
  EXPECT_EQ(Run("dance"), channel::kExitUsage);
  EXPECT_EQ(Run("prepare --launch " + dir_ + "/none"), channel::kExitUsage);
  EXPECT_THAT(output_, HasSubstr(dir_ + "/none"));
  launch_.job_json = R"({"training":{"mode":"dance"}})";
  EXPECT_EQ(RunLaunch("prepare"), channel::kExitUsage);
  EXPECT_THAT(output_, HasSubstr("training.mode"));
  launch_.job_json = "{}";
  EXPECT_EQ(RunLaunch("train --rank 1"), channel::kExitUsage);
  EXPECT_THAT(output_, HasSubstr("--rank 1 is not one of this node's ranks 0 to 0"));
}

TEST_F(RankProcessTest, AMissingModelIsAFatalEventOfTheUser) {
  EXPECT_EQ(RunLaunch("prepare"), channel::kExitUserError);
  EXPECT_THAT(output_, HasSubstr(dir_ + "/model"));
  const nlohmann::json event = LastEvent("prepare");
  EXPECT_EQ(event["event"], "fatal");
  EXPECT_EQ(event["domain"], "user");
  EXPECT_THAT(event["message"].get<std::string>(), HasSubstr(dir_ + "/model"));
  EXPECT_EQ(RunLaunch("train --rank 0"), channel::kExitUserError);
  EXPECT_EQ(LastEvent("rank-0")["event"], "fatal");
}

// These tests need a model that prepare accepts, with a template and a tokenizer of their own.
class HostileModelTest : public RankProcessTest {
 protected:
  HostileModelTest() {
    std::filesystem::create_directories(dir_ + "/model");
    const std::string goldens = std::string(SFT_SOURCE_DIR) + "/tests/parity/data/tokenizer.json";
    tokenizer_ = ParseJson(io::ReadFile(goldens).value());
    Write("model/config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true})");
    Write("model/model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
    Write("train.jsonl", R"({"messages": [{"role": "user", "content": "a"},)"
                         R"( {"role": "assistant", "content": "b"}]})"
                         "\n");
    launch_.train_name = "train.jsonl";
  }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(io::WriteFileAtomic(dir_ + "/" + name, text).ok());
  }
  int Prepare(const std::string& chat_template) {
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
    EXPECT_THAT(event.value("message", ""), HasSubstr(message));
    EXPECT_THAT(output_, HasSubstr(message));
  }

  nlohmann::json tokenizer_;
};

constexpr char kHonest[] = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";

TEST_F(HostileModelTest, AnOrdinaryModelIsPrepared) {
  EXPECT_EQ(Prepare(kHonest), channel::kExitOk) << output_;
}

TEST_F(HostileModelTest, ATokenizerIsMadeOfWhatTheModelHas) {
  const std::string inputs = std::string(SFT_SOURCE_DIR) + "/tests/parity/tokenizers/inputs/";
  for (const char* name : {"vocab.json", "merges.txt"}) {
    Write(std::string("model/") + name, io::ReadFile(inputs + name).value());
  }
  Write("model/tokenizer_config.json", R"({"tokenizer_class": "GPT2Tokenizer"})");
  Write("model/chat_template.jinja", kHonest);
  EXPECT_EQ(RunLaunch("prepare"), channel::kExitOk) << output_;
  EXPECT_THAT(output_, HasSubstr("tokenizer.json is made of vocab.json and merges.txt"));
  Write("model/merges.txt", "nonsense\n");
  EXPECT_EQ(RunLaunch("prepare"), channel::kExitUserError);
  EXPECT_THAT(output_, HasSubstr("merges.txt: line 1"));
}

TEST_F(HostileModelTest, ATokenThatTheModelHasNoEmbeddingForIsRefused) {
  const int64_t control = 383;  // the id of the tokenizer's first added token
  std::string config = io::ReadFile(dir_ + "/model/config.json").value();
  config.replace(config.find("1024"), 4, std::to_string(control));
  Write("model/config.json", config);
  EXPECT_EQ(Prepare(kHonest), channel::kExitOk) << output_;
  EXPECT_EQ(Prepare(std::string("{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>")),
            channel::kExitUserError);
  ExpectUserError("token_without_embedding", "train.jsonl, line 1: its token 385 (\"<|im_end|>\")");
}

TEST_F(HostileModelTest, ATemplateThatDoublesTextIsTheJobsMemoryError) {
  EXPECT_EQ(Prepare("{% set ns = namespace(x='ab') %}{% for i in range(60) %}"
                    "{% set ns.x = ns.x ~ ns.x %}{% endfor %}"),
            channel::kExitUserError);
  ExpectUserError("prepare_out_of_memory", "the chat template takes more than");
}

TEST_F(HostileModelTest, ATokenizerThatMultipliesTextIsTheJobsMemoryError) {
  nlohmann::json replaces = nlohmann::json::array();
  for (int i = 0; i < 8; ++i) {
    replaces.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", "b"}}}, {"content", std::string(50, 'b')}});
  }
  tokenizer_["normalizer"] = {{"type", "Sequence"}, {"normalizers", replaces}};
  EXPECT_EQ(Prepare(kHonest), channel::kExitUserError);
  ExpectUserError("prepare_out_of_memory", "train.jsonl, line 1: the tokenizer takes more than");
}

TEST_F(HostileModelTest, ValuesNestedWithoutEndAreNoCrash) {
  EXPECT_EQ(Prepare("{% if messages | length > 1 %}{% set ns = namespace(x=[]) %}"
                    "{% for i in range(99999) %}{% for j in range(3) %}"
                    "{% set ns.x = [ns.x] %}{% endfor %}{% endfor %}{% endif %}"),
            channel::kExitUserError);
  ExpectUserError("nested_too_deeply", "train.jsonl, line 1: ");
}

TEST_F(HostileModelTest, APatternThatBacktracksWithoutEndGivesUp) {
  // 2^60 ways; the crate stops after a million, since a row that takes 5 minutes would be refused.
  tokenizer_["pre_tokenizer"] = {{"type", "Split"},
                                 {"pattern", {{"Regex", "(?:a+)+(?=b)(?!c)b"}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}};
  Write("train.jsonl", R"({"text": ")" + std::string(60, 'a') + "\"}\n");
  EXPECT_EQ(Prepare(kHonest), channel::kExitOk) << output_;
}

TEST_F(HostileModelTest, ExceedingTheProcessLimitIsTheJobsError) {
  launch_.prepare_memory_bytes = 300 << 20;
  // Within the limit of one text, but not within that of the process.
  std::string rows;
  for (int i = 0; i < 4; ++i) {
    rows += R"({"text": ")" + std::string(9'000'000, 'x') + "\"}\n";
  }
  Write("train.jsonl", rows);
  launch_.job_json = R"({"hyperparameters": {"sequence_length": 1048576}})";
  EXPECT_EQ(Prepare(kHonest), channel::kExitUserError) << output_;
  ExpectUserError("prepare_out_of_memory", "needs more than the 314.6 MB of memory");
}

TEST_F(HostileModelTest, DataSwappedSinceTheNodeAcceptedTheJobAreRefused) {
  launch_.train_stamp = io::ContentStampOf(launch_.train_file);
  EXPECT_EQ(Prepare(kHonest), channel::kExitOk) << output_;
  const std::string row = io::ReadFile(launch_.train_file).value();
  Write("train.jsonl", row + row);
  EXPECT_EQ(Prepare(kHonest), channel::kExitUserError);
  ExpectUserError("data_changed", dir_ + "/train.jsonl has changed since");
  // The ranks read it again.
  EXPECT_EQ(RunLaunch("train --rank 0"), channel::kExitUserError);
  EXPECT_EQ(LastEvent("rank-0").value("code", ""), "data_changed") << output_;
  // A link to another file that looks the same.
  launch_.train_stamp = io::ContentStampOf(launch_.train_file);
  std::filesystem::rename(launch_.train_file, dir_ + "/other.jsonl");
  std::filesystem::create_symlink("other.jsonl", launch_.train_file);
  EXPECT_EQ(Prepare(kHonest), channel::kExitUserError);
  ExpectUserError("data_changed", "other.jsonl");
}

TEST_F(RankProcessTest, AMissingAttemptFolderIsInfrastructure) {
  launch_.attempt_dir = dir_ + "/none";
  EXPECT_EQ(RunLaunch("prepare"), channel::kExitInfrastructure);
  EXPECT_THAT(output_, HasSubstr("none/prepare.events"));
}

TEST_F(RankProcessTest, GenerateNamesTheModelThatIsMissing) {
  EXPECT_EQ(Run("generate --model " + dir_ + "/model --prompt hello"), channel::kExitUserError);
  EXPECT_THAT(output_, HasSubstr(dir_ + "/model"));
}

TEST_F(RankProcessTest, LogitsNamesTheModelThatIsMissing) {
  EXPECT_EQ(Run("logits --model " + dir_ + "/model --tokens t --out " + dir_ + "/o"),
            channel::kExitUserError);
  EXPECT_THAT(output_, HasSubstr(dir_ + "/model"));
  EXPECT_FALSE(std::filesystem::exists(dir_ + "/o"));
}

}  // namespace
}  // namespace sft::rank
