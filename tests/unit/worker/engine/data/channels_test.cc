#include "worker/engine/data/channels.h"

#include <gtest/gtest.h>

#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/data/chat_tokenizer.h"

namespace sft::engine {
namespace {

class ChannelsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.AddSpecialTokens({"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>",
                              "<|call|>", "<|constrain|>"});
  }
  std::vector<int32_t> Encode(const std::string& text) const {
    return tokenizer().tokenizer().Encode(text).ids;
  }
  ChatTokenizer tokenizer() const { return ChatTokenizer::Open(folder_.path()); }

  const ModelFolder folder_{"inst", "<s>", "</s>"};
};

constexpr char kThoughtAndSaid[] =
    "<|channel|>analysis<|message|>two and two<|end|><|start|>assistant<|channel|>final<|message|>"
    "It is four.<|return|>";

TEST_F(ChannelsTest, TheAnswerIsWhatTheFinalChannelSays) {
  const std::vector<int32_t> ids = Encode(kThoughtAndSaid);
  EXPECT_EQ(tokenizer().DecodeAnswer(ids), "It is four.");
  EXPECT_EQ(tokenizer().DecodeThoughts(ids), "two and two");
}

TEST_F(ChannelsTest, CallsOfToolsAreNoAnswer) {
  const std::vector<int32_t> ids = Encode(
      "<|start|>assistant to=f<|channel|>commentary to=f<|constrain|>json<|message|>{}"
      "<|call|>");
  EXPECT_EQ(tokenizer().DecodeAnswer(ids), "");
  EXPECT_EQ(tokenizer().DecodeThoughts(ids), "{}");
}

TEST_F(ChannelsTest, AnAnswerMayHaveAFormOrNoChannel) {
  EXPECT_EQ(
      tokenizer().DecodeAnswer(Encode("<|channel|>final <|constrain|>json<|message|>{}<|return|>")),
      "{}");
  EXPECT_EQ(tokenizer().DecodeAnswer(Encode("<|start|>assistant<|message|>yes<|end|>")), "yes");
  EXPECT_EQ(tokenizer().DecodeAnswer(Encode("plain text")), "plain text");
  EXPECT_EQ(tokenizer().DecodeThoughts(Encode("plain text")), "");
}

TEST_F(ChannelsTest, AnAnswerThatIsWrittenOnlyGrows) {
  const ChatTokenizer whole = tokenizer();
  const std::vector<int32_t> ids = Encode(std::string("first ") + kThoughtAndSaid);
  std::string before;
  for (size_t count = 0; count <= ids.size(); ++count) {
    const std::string now = whole.DecodeAnswer(std::span(ids).first(count));
    EXPECT_TRUE(now.starts_with(before)) << now;
    before = now;
  }
  EXPECT_TRUE(before.ends_with("It is four."));
}

TEST_F(ChannelsTest, OtherTokenizersHaveNone) {
  const ModelFolder other("inst", "<s>", "</s>");
  const ChatTokenizer tokenizer = ChatTokenizer::Open(other.path());
  EXPECT_FALSE(AnswerChannels::Of(tokenizer.tokenizer()).has_value());
  EXPECT_EQ(tokenizer.DecodeThoughts(tokenizer.tokenizer().Encode("a").ids), "");
}

}  // namespace
}  // namespace sft::engine
