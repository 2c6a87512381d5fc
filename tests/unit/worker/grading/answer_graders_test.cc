#include "worker/grading/answer_graders.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/io/file.h"
#include "worker/grading/programs.h"
#include "worker/grading/sandbox.h"

namespace sft::grading {
namespace {

using ::testing::HasSubstr;

class AnswerGradersTest : public testing::Test {
 protected:
  AnswerGradersTest() : dir_(io::MakeTempDir("graders-test").value()) {
    EXPECT_TRUE(io::MakeDirs(dir_ + "/roots").ok());
  }
  ~AnswerGradersTest() override { (void)io::RemoveAll(dir_); }

  spec::Grader Program(const std::string& name, const std::string& script, int mode = 0755) {
    const std::string path = dir_ + "/roots/" + name;
    EXPECT_TRUE(io::WriteFileAtomic(path, "#!/bin/sh\n" + script).ok());
    EXPECT_EQ(chmod(path.c_str(), static_cast<mode_t>(mode)), 0);
    return {.name = name, .command = {path}};
  }
  std::string Found(spec::Grader grader, const std::vector<std::string>& roots) {
    std::vector<spec::Grader> graders = {std::move(grader)};
    return std::string(Message(FindPrograms(roots, /*most_memory_mb=*/2048, graders)));
  }

  const std::string dir_;
};

TEST_F(AnswerGradersTest, AScoreIsANumberWithinItsRange) {
  const spec::Grader grader{.name = "g", .low = -1, .high = 3};
  EXPECT_EQ(*ReadVerdict(grader, "1\n").score, 50);
  EXPECT_EQ(*ReadVerdict(grader, "{\"score\": 3}").score, 100);
  const Verdict told = ReadVerdict(grader, "{\"score\": -1, \"text\": \"poor\"}");
  EXPECT_EQ(*told.score, 0);
  EXPECT_EQ(told.text, "poor");
  for (const char* output : {"", "good", "{}", "null", "[1]", "\"1\"", "1 2", "{\"score\": \"1\"}",
                             "NaN", "1e999", "true"}) {
    EXPECT_THAT(std::string(Message(ReadVerdict(grader, output).score.status())),
                HasSubstr("g wrote no score"))
        << output;
  }
  for (const char* output : {"3.5", "-1.5", "{\"score\": 100}"}) {
    EXPECT_THAT(std::string(Message(ReadVerdict(grader, output).score.status())),
                HasSubstr("not between -1 and 3"));
  }
  EXPECT_LT(ReadVerdict(grader, "{\"score\": 1, \"text\": \"" + std::string(9000, 'x') + "\"}")
                .text.size(),
            2100u);
}

TEST_F(AnswerGradersTest, OnlyProgramsOfTheRootsRun) {
  if (const absl::Status able = CheckConfinement(); !able.ok()) GTEST_SKIP() << able;
  const std::vector<std::string> roots = {dir_ + "/roots"};
  EXPECT_EQ(Found(Program("good", "echo 1"), roots), "");
  EXPECT_THAT(Found(Program("good", "echo 1"), {}), HasSubstr("--grader-root"));
  EXPECT_THAT(Found(Program("plain", "echo 1", 0644), roots), HasSubstr("0755"));
  spec::Grader large = Program("large", "echo 1");
  large.memory_mb = 2049;
  EXPECT_THAT(Found(large, roots), HasSubstr("large wants memory_mb = 2049, and this node gives "
                                             "programs that grade answers 2048"));
  large.memory_mb = 2048;
  EXPECT_EQ(Found(large, roots), "");
  const std::string below = "no program below " + dir_ + "/roots";
  EXPECT_THAT(Found({.name = "a", .command = {"/bin/sh"}}, roots), HasSubstr(below));
  EXPECT_THAT(Found({.name = "a", .command = {dir_ + "/roots/none"}}, roots), HasSubstr(below));
  EXPECT_THAT(Found({.name = "a", .command = {dir_ + "/roots/../roots/../x"}}, roots),
              HasSubstr(below));
  ASSERT_EQ(symlink("/bin/sh", (dir_ + "/roots/link").c_str()), 0);
  EXPECT_THAT(Found({.name = "a", .command = {dir_ + "/roots/link"}}, roots), HasSubstr(below));
  EXPECT_THAT(Found({.name = "a", .command = {dir_ + "/roots"}}, roots), HasSubstr(below));
}

TEST_F(AnswerGradersTest, EveryAnswerOfARowIsGradedByEveryProgram) {
  if (const absl::Status able = CheckConfinement(); !able.ok()) GTEST_SKIP() << able;
  std::vector<spec::Grader> graders = {
      Program("length",
              "read -r line; case \"$line\" in *'\"output_text\":\"long\"'*) echo 1;; *) echo 0;; "
              "esac"),
      Program("fails", "echo no >&2; exit 2"),
      Program("input", "echo '{\"score\": 1, \"text\": \"seen\"}'")};
  ASSERT_TRUE(FindPrograms({dir_ + "/roots"}, 0, graders).ok());
  AnswerGraders pool(
      {.graders = graders, .roots = {dir_ + "/roots"}, .folder = dir_ + "/work", .threads = 3});
  for (int64_t row = 0; row < 6; ++row) {
    pool.Add(row, {{.line = row, .answer = "long"}, {.line = row, .answer = "short \" quoted\n"}});
  }
  for (int64_t row = 0; row < 6; ++row) {
    std::optional<AnswerGraders::Verdicts> verdicts;
    while (!verdicts) {
      verdicts = pool.Take(row);
      if (!verdicts) pool.Wait(std::chrono::milliseconds(100));
    }
    ASSERT_EQ(verdicts->size(), 2u);
    EXPECT_EQ(*(*verdicts)[0][0].score, 100);
    EXPECT_EQ(*(*verdicts)[1][0].score, 0);
    EXPECT_EQ(std::string(Message((*verdicts)[0][1].score.status())),
              "fails ended with exit code 2: no");
    EXPECT_EQ((*verdicts)[1][2].text, "seen");
    EXPECT_FALSE(pool.Take(row)) << "given once";
  }
  EXPECT_TRUE(io::ListDir(dir_ + "/work")->empty()) << "folders of programs stay";
}

TEST_F(AnswerGradersTest, DestroyingThemEndsWhatRuns) {
  if (const absl::Status able = CheckConfinement(); !able.ok()) GTEST_SKIP() << able;
  std::vector<spec::Grader> graders = {Program("slow", "sleep 104")};
  graders[0].timeout_seconds = 200;
  {
    AnswerGraders pool(
        {.graders = graders, .roots = {dir_ + "/roots"}, .folder = dir_ + "/work", .threads = 2});
    for (int64_t row = 0; row < 9; ++row) pool.Add(row, {{.line = row}});
    pool.Wait(std::chrono::milliseconds(300));
  }
  EXPECT_NE(system("pgrep -f '^sleep 104$' > /dev/null"), 0);
}

}  // namespace
}  // namespace sft::grading
