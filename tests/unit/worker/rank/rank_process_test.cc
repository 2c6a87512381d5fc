// Tests of the program itself: exit codes, messages and the fatal event of inputs refused before
// training.

#include "tests/unit/worker/rank/rank_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/json.h"
#include "common/io/file.h"
#include "common/io/file_stamp.h"

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

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

// A port of this machine that nothing listens on now.
int FreePort() {
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  const io::UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

TEST_F(RankProcessTest, TwoRanksMeetAndAddTheirNumbers) {
  const std::string meet = "meet --port " + std::to_string(FreePort()) + " --ranks 2 --rank ";
  std::thread other([&] {
    const std::string command =
        std::string(SFT_BINARY_DIR) + "/bin/sft-rank " + meet + "1 > /dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0);
  });
  EXPECT_EQ(Run(meet + "0"), channel::kExitOk);
  other.join();
  EXPECT_THAT(output_, HasSubstr("gloo: 2 processes met at 127.0.0.1 and agree"));
  EXPECT_EQ(Run("meet --host 192.0.2.1 --port 9 --ranks 2 --rank 0"), channel::kExitInfrastructure);
  EXPECT_THAT(output_, HasSubstr("192.0.2.1"));
}

TEST_F(RankProcessTest, ARankThatMeetsNobodySaysSoInTimeAndInFewWords) {
  for (const char* rank : {"0", "1"}) {
    const MonoTime begin = Clock::Real().Mono();
    EXPECT_EQ(Run("meet --timeout 2 --port " + std::to_string(FreePort()) + " --ranks 2 --rank " +
                  rank + " 2>&1"),
              channel::kExitInfrastructure);
    EXPECT_LT(Clock::Real().Mono() - begin, std::chrono::seconds(60));
    EXPECT_THAT(output_, HasSubstr("within 2 s"));
    EXPECT_THAT(output_, HasSubstr("Start the other ranks"));
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 2) << output_;
  }
  EXPECT_EQ(Run("meet --host 192.0.2.1 --port 9 --ranks 2 --rank 0"), channel::kExitInfrastructure);
  EXPECT_THAT(output_, HasSubstr("Give a --port that no other process has"));
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

class HostileModelTest : public PreparedModelTest {};

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
  WriteModel(config);
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

// A model with a rope and 40 positions, which jobs ask.
class ShortModelTest : public PreparedModelTest {
 protected:
  ShortModelTest() {
    nlohmann::json config = ParseJson(io::ReadFile(dir_ + "/model/config.json").value());
    config["max_position_embeddings"] = 40;
    WriteModel(DumpJson(config));
  }
  int Ask(const std::string& kind, int new_tokens) {
    launch_.job_json = DumpJson(
        nlohmann::json{{"job", {{"kind", kind}}}, {"generate", {{"max_new_tokens", new_tokens}}}});
    return Prepare();
  }
  static std::string Long() {
    std::string text;
    for (int i = 0; i < 60; ++i) text += std::to_string(i) + " ";
    return text;
  }
};

TEST_F(ShortModelTest, APromptBeyondTheModelsPositionsIsNamed) {
  Write("train.jsonl", R"({"prompt": "a"})"
                       "\n");
  EXPECT_EQ(Ask("generate", 39), channel::kExitOk) << output_;
  EXPECT_EQ(Ask("generate", 40), channel::kExitUserError) << output_;
  ExpectUserError("bad_prompt",
                  "train.jsonl:1: 1 tokens and 40 new ones are more than the model's "
                  "40 positions");
  Write("train.jsonl", R"({"prompt": "a"})"
                       "\n" +
                           DumpJson(nlohmann::json{{"prompt", Long()}}) + "\n");
  EXPECT_EQ(Ask("generate", 1), channel::kExitUserError) << output_;
  ExpectUserError("bad_prompt", "train.jsonl:2: ");
}

TEST_F(ShortModelTest, ARowToEvaluateBeyondTheModelsPositionsIsNamed) {
  const auto row = [](const std::string& prompt, const std::string& completion) {
    return DumpJson(nlohmann::json{{"prompt", prompt}, {"completion", completion}}) + "\n";
  };
  Write("train.jsonl", row("ab?", "c"));
  EXPECT_EQ(Ask("evaluate", 20), channel::kExitOk) << output_;
  EXPECT_EQ(Ask("evaluate", 40), channel::kExitUserError) << output_;
  ExpectUserError("bad_prompt", "train.jsonl:1: ");
  for (const std::string& too_long : {row(Long(), "c"), row("ab?", Long())}) {
    Write("train.jsonl", row("ab?", "c") + too_long);
    EXPECT_EQ(Ask("evaluate", 2), channel::kExitUserError) << output_;
    ExpectUserError("bad_prompt", "train.jsonl:2: ");
  }
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
