#include "server/openai/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/openai/errors.h"
#include "server/openai/tokenizer.h"

namespace sft::server::openai {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kHello[] = R"("messages": [{"role": "user", "content": "hi"}])";

std::string ParamOf(const absl::Status& status) {
  const auto body = nlohmann::json::parse(ErrorOf(status).body);
  return body["error"]["param"].is_null() ? "" : body["error"]["param"].get<std::string>();
}

TEST(OpenAiRequestTest, AChatBecomesAConversation) {
  const auto asked = ReadChat(
      R"({"model": "job-1:base", "messages": [{"role": "developer", "content": "be short"},
          {"role": "user",
           "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
          "temperature": 0.5, "top_p": 0.9, "seed": -7, "n": 2, "stop": "end", "stream": true,
          "stream_options": {"include_usage": true}, "logprobs": true, "top_logprobs": 4,
          "max_completion_tokens": 9, "frequency_penalty": 1, "presence_penalty": -1, "top_k": 5,
          "min_p": 0.1, "repetition_penalty": 1.1, "user": "ann", "store": true,
          "metadata": {"a": "b"}, "tools": null, "logit_bias": {},
          "response_format": {"type": "text"}})");
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_TRUE(asked->chat && asked->stream && asked->include_usage);
  EXPECT_EQ(asked->model, "job-1:base");
  const v1::CompleteRequest& request = asked->request;
  ASSERT_EQ(request.prompts_size(), 1);
  ASSERT_EQ(request.prompts(0).messages_size(), 2);
  EXPECT_EQ(request.prompts(0).messages(0).role(), "system");
  EXPECT_EQ(request.prompts(0).messages(1).content(), "ab");
  EXPECT_EQ(request.temperature(), 0.5);
  EXPECT_EQ(request.top_p(), 0.9);
  EXPECT_EQ(request.seed(), -7);
  EXPECT_EQ(request.samples(), 2);
  EXPECT_THAT(request.stop(), ElementsAre("end"));
  EXPECT_EQ(request.logprobs(), 4);
  EXPECT_EQ(request.max_new_tokens(), 9);
  EXPECT_EQ(request.frequency_penalty(), 1);
  EXPECT_EQ(request.presence_penalty(), -1);
  EXPECT_EQ(request.top_k(), 5);
  EXPECT_EQ(request.min_p(), 0.1);
  EXPECT_EQ(request.repetition_penalty(), 1.1);
}

TEST(OpenAiRequestTest, WhatIsLeftOutIsTheJobs) {
  const auto asked = ReadChat(std::string("{") + kHello + "}");
  ASSERT_TRUE(asked.ok()) << asked.status();
  EXPECT_EQ(asked->model, "");
  EXPECT_FALSE(asked->stream);
  const v1::CompleteRequest& request = asked->request;
  EXPECT_FALSE(request.has_temperature() || request.has_seed() || request.has_max_new_tokens() ||
               request.has_logprobs() || request.has_top_p());
  EXPECT_TRUE(request.stop().empty());
}

TEST(OpenAiRequestTest, ACompletionHasAnyOfFourForms) {
  struct Case {
    const char* prompt;
    int count;
    const char* text;
    size_t tokens;
  };
  for (const Case& each : {Case{"\"a\"", 1, "a", 0},
                           {"[\"a\", \"b\"]", 2, "b", 0},
                           {"[1, 2]", 1, "", 2},
                           {"[[1], [2, 3]]", 2, "", 2},
                           {"[[1], \"b\"]", 2, "b", 0}}) {
    const auto asked = ReadCompletion(std::string(R"({"prompt": )") + each.prompt + "}");
    ASSERT_TRUE(asked.ok()) << each.prompt << asked.status();
    ASSERT_EQ(asked->request.prompts_size(), each.count) << each.prompt;
    EXPECT_EQ(asked->request.prompts().rbegin()->text(), each.text);
    EXPECT_EQ(static_cast<size_t>(asked->request.prompts().rbegin()->tokens_size()), each.tokens);
  }
  const auto scored = ReadCompletion(
      R"({"prompt": [[1, 2]], "echo": true, "logprobs": 1, "max_tokens": 0, "best_of": 1,
          "suffix": ""})");
  ASSERT_TRUE(scored.ok()) << scored.status();
  EXPECT_TRUE(scored->request.echo());
  EXPECT_EQ(scored->request.logprobs(), 1);
  EXPECT_TRUE(scored->request.has_max_new_tokens());
}

TEST(OpenAiRequestTest, WhatWouldBePassedOverIsRefusedByName) {
  struct Case {
    std::string more;
    const char* param;
  };
  for (const Case& each : std::vector<Case>{
           {R"("tools": [])", "tools"},
           {R"("no_such": 1)", "no_such"},
           {R"("temperature": "hot")", "temperature"},
           {R"("temperature": 1e400)", ""},
           {R"("top_p": 1.5)", "top_p"},
           {R"("seed": 1.5)", "seed"},
           {R"("seed": 18446744073709551615)", "seed"},
           {R"("n": 0)", "n"},
           {R"("n": 129)", "n"},
           {R"("n": 9223372036854775808)", "n"},
           {R"("max_tokens": 0)", "max_tokens"},
           {R"("max_tokens": -1)", "max_tokens"},
           {R"("max_tokens": 1e300)", "max_tokens"},
           {R"("max_tokens": 1, "max_completion_tokens": 2)", "max_tokens"},
           {R"("stop": [""])", "stop"},
           {R"("stop": 5)", "stop"},
           {R"("stop": ["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])",
            "stop"},
           {R"("stream": 1)", "stream"},
           {R"("stream_options": {"include_usage": true})", "stream_options"},
           {R"("stream": true, "stream_options": {"other": true})", "stream_options.other"},
           {R"("top_logprobs": 3)", "top_logprobs"},
           {R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
           {R"("logit_bias": {"5": 1})", "logit_bias"},
           {R"("response_format": {"type": "json_object"})", "response_format"},
           {R"("model": 5)", "model"},
           {R"("presence_penalty": 3)", "presence_penalty"},
           {R"("top_p": 0)", "top_p"},
           {R"("repetition_penalty": 0)", "repetition_penalty"},
           {R"("repetition_penalty": 1e-300)", "repetition_penalty"}}) {
    const auto asked = ReadChat(std::string("{") + kHello + ", " + each.more + "}");
    ASSERT_FALSE(asked.ok()) << each.more;
    EXPECT_EQ(asked.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ParamOf(asked.status()), each.param) << each.more << asked.status();
  }
}

TEST(OpenAiRequestTest, MessagesThatCannotBeAskedAreRefusedByTheirPlace) {
  struct Case {
    const char* messages;
    const char* param;
  };
  for (const Case& each :
       {Case{"[]", "messages"},
        {"5", "messages"},
        {"[5]", "messages[0]"},
        {R"([{"role": "tool", "content": "a"}])", "messages[0].role"},
        {R"([{"content": "a"}])", "messages[0].role"},
        {R"([{"role": "user"}])", "messages[0].content"},
        {R"([{"role": "user", "content": 5}])", "messages[0].content"},
        {R"([{"role": "user", "content": "a", "name": "b"}])", "messages[0].name"},
        {R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])",
         "messages[0].content[0].type"},
        {R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])",
         "messages"}}) {
    const auto asked = ReadChat(std::string(R"({"messages": )") + each.messages + "}");
    ASSERT_FALSE(asked.ok()) << each.messages;
    EXPECT_EQ(ParamOf(asked.status()), each.param) << asked.status();
  }
  EXPECT_EQ(ParamOf(ReadChat("{}").status()), "messages");
}

TEST(OpenAiRequestTest, PromptsThatAreNoneAreRefused) {
  std::string many = "[\"a\"";
  for (int i = 0; i < 64; ++i) many += ", \"a\"";
  struct Case {
    std::string prompt;
    const char* param;
  };
  for (const Case& each : std::vector<Case>{{"[]", "prompt"},
                                            {"{}", "prompt"},
                                            {"[[]]", "prompt[0]"},
                                            {"[1, \"a\"]", "prompt"},
                                            {"[1, 2147483648]", "prompt"},
                                            {"[[1, -1]]", "prompt[0]"},
                                            {"[null]", "prompt[0]"},
                                            {many + "], \"n\": 2", "n"},
                                            {"\"a\", \"max_tokens\": 0", "max_tokens"},
                                            {"\"a\", \"echo\": true, \"logprobs\": 2", "logprobs"},
                                            {"\"a\", \"best_of\": 2", "best_of"},
                                            {"\"a\", \"suffix\": \"b\"", "suffix"},
                                            {"\"a\", \"logprobs\": true", "logprobs"}}) {
    const auto asked = ReadCompletion(R"({"prompt": )" + each.prompt + "}");
    ASSERT_FALSE(asked.ok()) << each.prompt;
    EXPECT_EQ(ParamOf(asked.status()), each.param) << asked.status();
  }
  EXPECT_EQ(ParamOf(ReadCompletion("{}").status()), "prompt");
}

TEST(OpenAiRequestTest, BodiesThatAreNoJsonAreRefused) {
  for (const char* body : {"", "{", "[]", "\"a\"", "{\"prompt\": \"\xff\"}",
                           "{\"prompt\": \"a\", \"prompt\": \"b\"}"}) {
    const auto asked = ReadCompletion(body);
    EXPECT_EQ(asked.status().code(), absl::StatusCode::kInvalidArgument) << body;
  }
  EXPECT_FALSE(ReadCompletion(std::string(100000, '[')).ok());
}

TEST(OpenAiRequestTest, BodiesOfMoreValuesThanAnybodyNeedsAreRefusedUnparsed) {
  const auto list = [](const std::string& each, size_t count) {
    std::string text = "[" + each;
    for (size_t i = 1; i < count; ++i) text += "," + each;
    return text + "]";
  };
  for (const std::string& metadata :
       {list("[]", 100001), list("{}", 100001), list("\"\"", 100001), list("1", 1000002)}) {
    const auto asked = ReadCompletion(R"({"prompt": "a", "metadata": )" + metadata + "}");
    EXPECT_THAT(std::string(asked.status().message()), HasSubstr("at most 100000"));
  }
  // Long prompts and texts that look like values are no such thing.
  EXPECT_TRUE(ReadCompletion(R"({"prompt": )" + list("70000", 500000) + "}").ok());
  const std::string brackets(300000, '[');
  EXPECT_TRUE(ReadCompletion(R"({"prompt": "a\\\"b,)" + brackets + R"("})").ok());
}

TEST(OpenAiRequestTest, TheTokenizersRoutesAreRead) {
  const auto text =
      ReadTokenize(R"({"prompt": "a b", "add_special_tokens": false, "model": "job-1"})");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->request.text(), "a b");
  EXPECT_FALSE(text->request.add_special_tokens());
  EXPECT_EQ(text->model, "job-1");
  const auto tokens = ReadDetokenize(R"({"tokens": [1, 2]})");
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_THAT(tokens->request.tokens(), ElementsAre(1, 2));
  for (const char* bad :
       {R"({})", R"({"tokens": 5})", R"({"tokens": ["a"]})", R"({"tokens": [], "x": 1})"}) {
    EXPECT_FALSE(ReadDetokenize(bad).ok()) << bad;
  }
  EXPECT_FALSE(ReadTokenize(R"({"prompt": ["a"]})").ok());
  EXPECT_FALSE(ReadTokenize(R"({"messages": []})").ok());
}

TEST(OpenAiErrorsTest, AnErrorThatNamesNoParameterGetsOne) {
  EXPECT_EQ(ParamOf(InParam("prompt", InvalidArgument("a"))), "prompt");
  EXPECT_EQ(ParamOf(InParam("prompt", ParamError("n", "a"))), "n");
  EXPECT_EQ(ParamOf(InParam("prompt", Unavailable("a"))), "");
  EXPECT_TRUE(InParam("prompt", absl::OkStatus()).ok());
}

TEST(OpenAiErrorsTest, StatusesOfHttp) {
  struct Case {
    absl::Status status;
    int http;
    const char* code;
    bool retry;
  };
  for (const Case& each :
       std::vector<Case>{{InvalidArgument("a"), 400, "", false},
                         {absl::UnauthenticatedError("a"), 401, "invalid_api_key", false},
                         {PermissionDenied("a"), 403, "", false},
                         {NotFound("a"), 404, "model_not_found", false},
                         {FailedPrecondition("a"), 404, "model_not_found", false},
                         {absl::OutOfRangeError("a"), 413, "", false},
                         {ResourceExhausted("a"), 429, "rate_limit_exceeded", true},
                         {Unavailable("a"), 503, "", true},
                         {absl::CancelledError("a"), 400, "", false},
                         {Internal("a"), 500, "", false}}) {
    const ErrorAnswer error = ErrorOf(each.status);
    EXPECT_EQ(error.http_status, each.http);
    EXPECT_EQ(error.retry_after_s > 0, each.retry);
    const auto body = nlohmann::json::parse(error.body);
    EXPECT_EQ(body["error"]["message"], "a");
    EXPECT_EQ(body["error"]["code"].is_null() ? "" : body["error"]["code"].get<std::string>(),
              each.code);
  }
}

}  // namespace
}  // namespace sft::server::openai
