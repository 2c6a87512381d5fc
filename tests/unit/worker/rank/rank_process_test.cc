// The program itself: exit codes, messages and the fatal event of what is refused before training.

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
  EXPECT_THAT(output_, HasSubstr("sft-rank "));
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
