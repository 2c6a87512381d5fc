#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "client/base/exit_codes.h"
#include "common/base/json.h"
#include "common/spec/resolve.h"
#include "tests/unit/client/fake_server.h"

namespace sft::client {
namespace {

using ::testing::HasSubstr;

TEST(InitTest, ListsEveryJobFileOfConfigsOnceWithWhatItIs) {
  FakeServer server;
  const auto list = ParseJson(Sftctl(server, {"init", "--list", "--json"}).out);
  std::set<std::string> names, files;
  for (const auto& each : list) {
    names.insert(each["template"]);
    files.insert(each["file"]);
    EXPECT_GT(each["about"].get<std::string>().size(), 10u) << each;
    EXPECT_FALSE(each["variant"].get<std::string>().empty()) << each;
  }
  EXPECT_EQ(names.size(), list.size());
  size_t there = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SFT_SOURCE_DIR "/configs")) {
    EXPECT_TRUE(files.contains(entry.path().filename().string())) << entry.path();
    ++there;
  }
  EXPECT_EQ(there, list.size());
  const std::string text = Sftctl(server, {"init", "--list"}).out;
  EXPECT_THAT(text, HasSubstr("QLoRA"));
  EXPECT_THAT(text, HasSubstr("qlora-8b"));
  EXPECT_THAT(text, HasSubstr("full fine-tuning"));
}

TEST(InitTest, EveryTemplateWithAnotherModelAndDataIsAJobFile) {
  FakeServer server;
  for (const auto& each : ParseJson(Sftctl(server, {"init", "--list", "--json"}).out)) {
    const std::string name = each["template"], file = each["file"];
    const Outcome plain = Sftctl(server, {"init", "--template", name});
    ASSERT_EQ(plain.code, kSucceeded) << name << plain.err;
    EXPECT_EQ(plain.out, ReadTestFile(SFT_SOURCE_DIR "/configs/" + file));
    const Outcome filled = Sftctl(
        server, {"init", "--template", name, "--model", "my/model", "--data", "a \"b\"\\c.jsonl"});
    ASSERT_EQ(filled.code, kSucceeded) << name << filled.err;
    const spec::Resolution job = spec::Resolve(filled.out, file, {});
    EXPECT_TRUE(job.ok()) << name;
    EXPECT_EQ(job.spec.job.model, "my/model") << name;
    EXPECT_EQ(job.spec.job.data, "a \"b\"\\c.jsonl") << name;
    const spec::JobSpec::Data before = spec::Resolve(plain.out, file, {}).spec.data;
    EXPECT_EQ(job.spec.data.val, "") << name;
    EXPECT_EQ(job.spec.data.val_split, before.val.empty() ? before.val_split : "0.1") << name;
  }
}

TEST(InitTest, WritesAFileAndReplacesNoneUnasked) {
  FakeServer server;
  const std::string path = TestFolder() + "/job.toml";
  const std::vector<std::string> command = {"init", "--template", "qlora-8b", path};
  const Outcome first = Sftctl(server, command);
  EXPECT_EQ(first.code, kSucceeded) << first.err;
  EXPECT_THAT(first.err, HasSubstr("sftctl submit " + path + " --dry-run"));
  EXPECT_THAT(ReadTestFile(path), HasSubstr("[lora]"));
  const Outcome second = Sftctl(server, command);
  EXPECT_EQ(second.code, kUsage);
  EXPECT_THAT(second.err, HasSubstr("is there already"));
  std::vector<std::string> forced = command;
  forced.insert(forced.end(), {"--force", "--model", "other/model"});
  EXPECT_EQ(Sftctl(server, forced).code, kSucceeded);
  EXPECT_THAT(ReadTestFile(path), HasSubstr("model = \"other/model\""));
  EXPECT_EQ(Sftctl(server, {"init", "--template", "qlora-8b", TestFolder(), "--force"}).code,
            kUsage);
}

TEST(InitTest, WrongWordsSayWhatWouldBeRight) {
  FakeServer server;
  const auto why = [&](const std::vector<std::string>& words) {
    std::vector<std::string> command = {"init"};
    command.insert(command.end(), words.begin(), words.end());
    const Outcome run = Sftctl(server, command);
    EXPECT_NE(run.code, kSucceeded);
    EXPECT_EQ(run.out, "");
    return run.err;
  };
  EXPECT_THAT(why({}), HasSubstr("--list shows them"));
  EXPECT_THAT(why({"--template", "qlora-8c"}), HasSubstr("did you mean qlora-8b?"));
  EXPECT_THAT(why({"--template", "xyz"}), HasSubstr("`sftctl init --list` shows them"));
  EXPECT_THAT(why({"--template", "run-bnb", TestFolder() + "/job.toml"}),
              HasSubstr("has to end with .yaml"));
  EXPECT_THAT(why({"--template", "qlora-8b", "--model", "../x"}), HasSubstr("job.model: "));
  EXPECT_THAT(why({"--template", "qlora-8b", "--model", ""}), HasSubstr("--model is empty"));
  EXPECT_THAT(why({"--template", "qlora-8b", "--data", "a\nb"}), HasSubstr("job.data: "));
  EXPECT_THAT(why({"--template", "qlora-8b", "--json"}), HasSubstr("only --list prints JSON"));
  EXPECT_THAT(why({"--template", "qlora-8b", "--force"}), HasSubstr("FILE"));
}

}  // namespace
}  // namespace sft::client
