#include "worker/rank/arguments.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sft::rank {
namespace {

using ::testing::HasSubstr;

std::string Problem(const std::vector<std::string>& args) {
  const auto result = ParseArguments(args);
  return result.ok() ? "accepted" : std::string(Message(result.status()));
}

TEST(ArgumentsTest, ReadsEachCommand) {
  const auto train = ParseArguments({"train", "--launch", "l.json", "--rank=3"});
  ASSERT_TRUE(train.ok());
  EXPECT_EQ(train->command, Command::kTrain);
  EXPECT_EQ(train->launch, "l.json");
  EXPECT_EQ(train->rank, 3);
  EXPECT_EQ(ParseArguments({"prepare", "--launch=l"})->command, Command::kPrepare);
  const auto generate =
      ParseArguments({"generate", "--json", "--model", "m", "--adapter", "a", "--prompt", "--what?",
                      "--max-new-tokens", "7", "--device", "cuda:1"});
  ASSERT_TRUE(generate.ok()) << Message(generate.status());
  EXPECT_TRUE(generate->json);
  EXPECT_EQ(generate->prompt, "--what?");
  EXPECT_EQ(generate->max_new_tokens, 7);
  EXPECT_EQ(generate->device, "cuda:1");
  const auto share =
      ParseArguments({"generate", "--model=m", "--prompts=p", "--out=o", "--rank=1", "--ranks=4",
                      "--temperature=0.7", "--top-k=20", "--top-p=0.9", "--min-p=0.05",
                      "--repetition-penalty=1.1", "--seed=9", "--stop=END", "--batch=8"});
  ASSERT_TRUE(share.ok()) << Message(share.status());
  EXPECT_EQ(share->rank, 1);
  EXPECT_EQ(share->ranks, 4);
  EXPECT_EQ(share->out, "o");
  EXPECT_EQ(share->temperature, 0.7);
  EXPECT_EQ(share->top_k, 20);
  EXPECT_EQ(share->top_p, 0.9);
  EXPECT_EQ(share->min_p, 0.05);
  EXPECT_EQ(share->repetition_penalty, 1.1);
  EXPECT_EQ(share->seed, 9);
  EXPECT_EQ(share->stop, "END");
  EXPECT_EQ(share->most_requests, 8);
  const auto logits = ParseArguments({"logits", "--model=m", "--tokens", "t", "--out", "o"});
  ASSERT_TRUE(logits.ok()) << Message(logits.status());
  EXPECT_EQ(logits->command, Command::kLogits);
  EXPECT_EQ(logits->tokens, "t");
  EXPECT_EQ(logits->out, "o");
  EXPECT_EQ(logits->device, "cpu");
  EXPECT_EQ(ParseArguments({"--version"})->command, Command::kVersion);
  EXPECT_EQ(ParseArguments({"-h"})->command, Command::kHelp);
}

TEST(ArgumentsTest, RanksThatMeetSayWhichOfHowManyTheyAre) {
  const auto meet = ParseArguments({"meet", "--port=2950", "--rank", "1", "--ranks=2"});
  ASSERT_TRUE(meet.ok()) << Message(meet.status());
  EXPECT_EQ(meet->command, Command::kMeet);
  EXPECT_EQ(meet->host, "127.0.0.1");
  EXPECT_EQ(meet->port, 2950);
  EXPECT_EQ(meet->rank, 1);
  EXPECT_EQ(meet->ranks, 2);
  EXPECT_EQ(meet->timeout_seconds, 15);
  EXPECT_EQ(ParseArguments({"meet", "--port=1", "--rank=0", "--ranks=2", "--timeout=60"})
                ->timeout_seconds,
            60);
  EXPECT_THAT(Problem({"meet", "--port=1", "--rank=0", "--ranks=2", "--timeout=0"}),
              HasSubstr("--timeout"));
  EXPECT_THAT(Problem({"meet", "--port=1", "--rank=0", "--ranks=2", "--timeout=9999999"}),
              HasSubstr("--timeout is at most 86400 seconds"));
  EXPECT_THAT(Problem({"meet", "--rank=0", "--ranks=2"}), HasSubstr("needs --port P"));
  EXPECT_THAT(Problem({"meet", "--port=70000", "--rank=0", "--ranks=2"}), HasSubstr("65535"));
  EXPECT_THAT(Problem({"meet", "--port=1", "--rank=2", "--ranks=2"}), HasSubstr("not one of 2"));
  EXPECT_THAT(Problem({"meet", "--port=1", "--rank=0", "--ranks=1"}), HasSubstr("at least 2"));
}

TEST(ArgumentsTest, SaysWhatIsWrong) {
  EXPECT_THAT(Problem({}), HasSubstr("no command"));
  EXPECT_THAT(
      Problem({"run"}),
      HasSubstr("unknown command \"run\": train, prepare, generate, export, logits or meet"));
  EXPECT_THAT(Problem({"train", "--rank", "0"}), HasSubstr("needs --launch FILE"));
  EXPECT_THAT(Problem({"train", "--launch", "x", "--rank", "-1"}), HasSubstr("not \"-1\""));
  EXPECT_THAT(Problem({"train", "--launch", "x", "--rank", "1x"}), HasSubstr("not \"1x\""));
  EXPECT_THAT(Problem({"train", "--launch"}), HasSubstr("--launch needs a value"));
  EXPECT_THAT(Problem({"prepare", "--json"}), HasSubstr("unknown argument \"--json\""));
  EXPECT_THAT(Problem({"generate", "--model", "m"}), HasSubstr("either --prompt"));
  EXPECT_THAT(Problem({"generate", "--model", "m", "--prompt", "a", "--prompts", "b"}),
              HasSubstr("either --prompt"));
  EXPECT_THAT(Problem({"generate", "--prompt", "a"}), HasSubstr("needs --model DIR"));
  EXPECT_THAT(Problem({"generate", "--model", "m", "--prompt", "a", "--device", "gpu"}),
              HasSubstr("not \"gpu\""));
  EXPECT_THAT(Problem({"generate", "--model", "m", "--prompt", "a", "--max-new-tokens", "0"}),
              HasSubstr("at least 1"));
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"generate", "--model=m"});
    return Problem(more);
  };
  EXPECT_THAT(with({"--prompts=p", "--temperature=hot"}),
              HasSubstr("--temperature takes a number, not \"hot\""));
  EXPECT_THAT(with({"--prompts=p", "--out=o", "--ranks=2", "--rank=2"}),
              HasSubstr("--rank 2 is not one of 2"));
  EXPECT_THAT(with({"--prompts=p", "--ranks=2", "--rank=0"}), HasSubstr("--ranks needs"));
  EXPECT_THAT(with({"--prompt=p", "--out=o"}), HasSubstr("--out is for"));
  EXPECT_THAT(Problem({"logits", "--model", "m", "--out", "o"}), HasSubstr("needs --tokens FILE"));
  EXPECT_THAT(Problem({"logits", "--model", "m", "--tokens", "t"}), HasSubstr("needs --out FILE"));
}

TEST(ArgumentsTest, HelpHasEachCommandAndAnExample) {
  for (const char* text :
       {"prepare", "train", "generate", "logits", "--version", "Example:", "67"}) {
    EXPECT_THAT(HelpText(), HasSubstr(text));
  }
}

}  // namespace
}  // namespace sft::rank
