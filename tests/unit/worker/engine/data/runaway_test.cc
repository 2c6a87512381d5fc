#include "worker/engine/data/runaway.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/unit/worker/engine/data/model_folder.h"
#include "worker/engine/base/error.h"
#include "worker/engine/data/chat_tokenizer.h"
#include "worker/engine/data/dataset.h"

namespace sft::engine {
namespace {

using ::testing::ExitedWithCode;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kToldCode = 7;

void Tell(const Runaway& runaway) {
  const std::string text = fmt::format("kind {} of {} at line {}\n", static_cast<int>(runaway.kind),
                                       runaway.what, runaway.line);
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text.data(), text.size());
  _exit(kToldCode);
}

ChatTokenizer Open(const TestFolder& folder, const std::string& chat_template) {
  folder.Write("chat_template.jinja", chat_template);
  return ChatTokenizer::Open(folder.path());
}

// Renders one message with the template.
void Render(const std::string& chat_template, const std::string& content = "x") {
  const ModelFolder folder("", "<s>", "</s>");
  const ChatTokenizer tokenizer = Open(folder, chat_template);
  const ChatMessage message{"user", content};
  tokenizer.EncodePrompt({&message, 1});
}

class RunawayTest : public ::testing::Test {
 protected:
  RunawayTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(RunawayTest, ATextThatIsTooLongForItsConversationIsAnErrorOfTheTemplate) {
  for (const char* const huge :
       {"{{ messages | tojson(indent=1000000000) }}", "{{ messages | tojson(indent=600000) }}",
        "{{ 'ab' * 4000000 }}", "{{ [('a' * 900000)] * 10 }}",
        "{% for i in range(99999) %}{{ messages }}{% endfor %}"}) {
    EXPECT_THAT([huge] { Render(huge); },
                ThrowsMessage<UserError>(HasSubstr("too much for its conversation")))
        << huge;
  }
}

TEST_F(RunawayTest, ALongRowMayMakeALongText) {
  Render("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
         std::string(2 << 20, ' '));
}

TEST_F(RunawayTest, AValueThatIsNestedTooDeeplyCannotBePrinted) {
  const std::string nest =
      "{% set ns = namespace(x=[]) %}{% for i in range(3000) %}{% set ns.x = [ns.x] %}"
      "{% endfor %}";
  for (const char* const print : {"{{ ns.x }}", "{{ ns.x | tojson }}", "{{ ns.x | string }}"}) {
    EXPECT_THAT([&] { Render(nest + print); }, ThrowsMessage<UserError>(HasSubstr("nested")));
  }
}

TEST_F(RunawayTest, WhatTakesTooMuchMemoryForOneTextEndsTheProcess) {
  for (const char* const bomb :
       {"{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}",
        "{{ (['abcdefgh'] * 1000000000000) | join }}", "{{ '%1000000000d' | format(5) }}",
        "{{ 'a\\nb' | indent(1000000000) }}", "{{ ('a' * 90000) | replace('a', 'a' * 90000) }}",
        "{{ ([1] * 1000000000000) | list }}",
        "{% set x %}{% for i in range(99999) %}{{ messages * 99 }}{% endfor %}{% endset %}"}) {
    EXPECT_EXIT(
        {
          SetRunawayHandler(&Tell);
          Render(bomb);
        },
        ExitedWithCode(kToldCode), "kind 0 of the chat template")
        << bomb;
  }
}

TEST_F(RunawayTest, ARowThatDoesNotEndEndsTheProcess) {
  const ModelFolder folder("", "<s>", "</s>");
  PrepareOptions options;
  options.data = folder.Write("rows.jsonl",
                              "\n"
                              R"({"messages": [{"role": "user", "content": "a"},)"
                              R"( {"role": "assistant", "content": "b"}]})");
  options.cache_dir = folder.path() / "cache";
  options.row_limit = std::chrono::milliseconds(100);
  const std::string endless = "{{ ([1] * 1000000000000) | sum }}";
  // In a row, and where the encoder tries the template.
  for (const auto& [chat_template, told] :
       {std::pair{"{% if messages | length > 1 %}" + endless + "{% endif %}", "at line 2"},
        std::pair{endless, "at line 0"}}) {
    const ChatTokenizer tokenizer = Open(folder, chat_template);
    EXPECT_EXIT(
        {
          SetRunawayHandler(&Tell);
          PrepareDataset(tokenizer, options);
        },
        ExitedWithCode(kToldCode), std::string("kind 3 of  ") + told);
  }
}

TEST_F(RunawayTest, ATextThatCannotFitIsNotTokenised) {
  const ModelFolder folder("inst", "<s>", "</s>");
  const ChatTokenizer tokenizer = ChatTokenizer::Open(folder.path());
  PrepareOptions options;
  options.data = folder.Write("rows.jsonl", R"({"text": ")" + std::string(9 << 20, 'a') + "\"}");
  options.cache_dir = folder.path() / "cache";
  EXPECT_THAT([&] { PrepareDataset(tokenizer, options); },
              ThrowsMessage<UserError>(HasSubstr("more than 2048 tokens (sequence_length) can")));
  options.data = folder.Write("rows.jsonl", R"({"text": ")" + std::string(17 << 20, 'a') + "\"}");
  EXPECT_THAT([&] { PrepareDataset(tokenizer, options); },
              ThrowsMessage<UserError>(HasSubstr("a line of 17825804 bytes, at most 16777216")));
}

}  // namespace
}  // namespace sft::engine
