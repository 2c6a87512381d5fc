#include "server/openai/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "server/openai/models.h"

namespace sft::server::openai {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

v1::CompleteResponse Piece(int index, const std::string& text, const std::string& finish = "") {
  v1::CompleteResponse piece;
  piece.set_index(index);
  piece.set_text(text);
  piece.set_finish_reason(finish);
  if (!finish.empty()) {
    piece.set_prompt_tokens(3);
    piece.set_answer_tokens(2);
  }
  return piece;
}

void AddToken(v1::CompleteResponse& piece, int id, const std::string& text, double logprob,
              std::vector<std::tuple<int, std::string, double>> top = {}, bool ends = false) {
  v1::TokenScore& token = *piece.add_tokens();
  token.set_id(id);
  token.set_text(text);
  token.set_logprob(logprob);
  token.set_ends(ends);
  for (const auto& [other, other_text, other_logprob] : top) {
    v1::TokenScore& each = *token.add_top();
    each.set_id(other);
    each.set_text(other_text);
    each.set_logprob(other_logprob);
  }
}

Asked Chat(const std::string& more = "") {
  return *ReadChat(R"({"messages": [{"role": "user", "content": "hi"}])" + more + "}");
}

// The data of the events of some pieces.
std::vector<std::string> Events(Answer& answer, const std::vector<v1::CompleteResponse>& pieces) {
  std::vector<std::string> events;
  for (const v1::CompleteResponse& piece : pieces) {
    const auto more = answer.Take(piece);
    EXPECT_TRUE(more.ok()) << more.status();
    if (more.ok()) events.insert(events.end(), more->begin(), more->end());
  }
  return events;
}

TEST(OpenAiAnswerTest, AChatThatDoesNotStreamIsOneMessage) {
  const Asked asked = Chat(R"(, "n": 2)");
  Answer answer(asked, "chatcmpl-1", "job-1", 5);
  EXPECT_TRUE(Events(answer, {Piece(1, "b"), Piece(0, "a"), Piece(0, ""), Piece(1, "c", "stop"),
                              Piece(0, "", "length")})
                  .empty());
  const json whole = json::parse(answer.Whole());
  EXPECT_EQ(whole["id"], "chatcmpl-1");
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["created"], 5);
  EXPECT_EQ(whole["model"], "job-1");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "a");
  EXPECT_EQ(whole["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole["choices"][1]["message"]["content"], "bc");
  EXPECT_TRUE(whole["choices"][1]["logprobs"].is_null());
  // One prompt, two answers.
  EXPECT_EQ(whole["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 4);
  EXPECT_EQ(whole["usage"]["total_tokens"], 7);
}

TEST(OpenAiAnswerTest, AStreamTellsTheRoleOnceAndTheUsageLast) {
  const Asked asked = Chat(R"(, "stream": true, "stream_options": {"include_usage": true})");
  Answer answer(asked, "chatcmpl-1", "job-1", 5);
  const auto events =
      Events(answer, {Piece(0, ""), Piece(0, "a"), Piece(0, "b"), Piece(0, "", "stop")});
  ASSERT_EQ(events.size(), 3u) << "what says nothing is no event";
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"],
            json({{"role", "assistant"}, {"content", "a"}}));
  EXPECT_EQ(json::parse(events[1])["choices"][0]["delta"], json({{"content", "b"}}));
  EXPECT_TRUE(json::parse(events[1])["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(json::parse(events[1])["usage"].is_null());
  EXPECT_EQ(json::parse(events[2])["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json::parse(events[2])["object"], "chat.completion.chunk");
  const auto last = answer.LastEvents();
  ASSERT_EQ(last.size(), 2u);
  EXPECT_TRUE(json::parse(last[0])["choices"].empty());
  EXPECT_EQ(json::parse(last[0])["usage"]["total_tokens"], 5);
  EXPECT_EQ(last[1], "[DONE]");
}

TEST(OpenAiAnswerTest, AnAnswerThatFailsIsAnError) {
  const Asked asked = Chat();
  Answer answer(asked, "i", "m", 5);
  v1::CompleteResponse failed = Piece(0, "", "error");
  failed.set_error("the logits are NaN");
  EXPECT_THAT(std::string(answer.Take(failed).status().message()), HasSubstr("NaN"));
  EXPECT_FALSE(answer.Take(Piece(7, "a")).ok());
}

TEST(OpenAiAnswerTest, TheTokensOfAChatHaveBytesAndNoEnd) {
  const Asked asked = Chat(R"(, "logprobs": true, "top_logprobs": 1)");
  Answer answer(asked, "i", "m", 5);
  v1::CompleteResponse piece = Piece(0, "é", "stop");
  AddToken(piece, 7, "é", -0.5, {{8, "e", -0.25}});
  AddToken(piece, 2, "</s>", -0.1, {}, /*ends=*/true);
  Events(answer, {piece});
  const json content = json::parse(answer.Whole())["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 1u);
  EXPECT_EQ(content[0]["token"], "é");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  EXPECT_EQ(content[0]["bytes"], json({0xc3, 0xa9}));
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], "e");
}

TEST(OpenAiAnswerTest, TheTokensOfACompletionHaveTheLikeliestAndThemselves) {
  const Asked asked = *ReadCompletion(R"({"prompt": [5, 6], "echo": true, "logprobs": 1})");
  Answer answer(asked, "i", "m", 5);
  v1::CompleteResponse piece = Piece(0, "ébc", "stop");
  v1::TokenScore& first = *piece.add_tokens();
  first.set_id(5);
  first.set_text("é");
  AddToken(piece, 6, "b", -2, {{9, "x", -0.5}});
  AddToken(piece, 7, "c", -0.25, {{7, "c", -0.25000001}});
  AddToken(piece, 8, "c", -3, {{7, "c", -0.25}});
  Events(answer, {piece});
  const json logprobs = json::parse(answer.Whole())["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json({"é", "b", "c", "c"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -2, -0.25, -3}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1, 2, 3}));
  EXPECT_TRUE(logprobs["top_logprobs"][0].is_null());
  EXPECT_EQ(logprobs["top_logprobs"][1], json({{"x", -0.5}, {"b", -2}}));
  // It is the likeliest: by one number, so that who compares them sees it.
  EXPECT_EQ(logprobs["top_logprobs"][2], json({{"c", -0.25}}));
  // Another token of the same text.
  EXPECT_EQ(logprobs["top_logprobs"][3], json({{"c", -0.25}, {"token_id:8", -3}}));
}

TEST(OpenAiAnswerTest, OffsetsCountOnlyTokensThatAreInTheText) {
  const auto offsets = [](const std::string& prompt) {
    const Asked asked =
        *ReadCompletion(R"({"prompt": )" + prompt + R"(, "echo": true, "logprobs": 0})");
    Answer answer(asked, "i", "m", 5);
    v1::CompleteResponse piece = Piece(0, "ab", "stop");
    for (const char* text : {"<s>", "a", "b"}) AddToken(piece, 1, text, -1);
    AddToken(piece, 2, "</s>", -1, {}, /*ends=*/true);
    AddToken(piece, 2, "", -1);
    Events(answer, {piece});
    return json::parse(answer.Whole())["choices"][0]["logprobs"]["text_offset"];
  };
  // BOS was put before the text; a list of tokens is shown with it, and so is a text that has it.
  EXPECT_EQ(offsets("\"a\""), json({0, 0, 1, 2, 2}));
  EXPECT_EQ(offsets("\"<s>a\""), json({0, 3, 4, 5, 5}));
  EXPECT_EQ(offsets("[1, 1]"), json({0, 3, 4, 5, 5}));
}

TEST(OpenAiAnswerTest, WhatIsKeptHasALimitAndWhatStreamsHasNone) {
  for (const bool streams : {false, true}) {
    const Asked asked = Chat(streams ? R"(, "stream": true)" : "");
    Answer answer(asked, "i", "m", 5);
    const std::string mebibyte(1 << 20, 'x');
    absl::Status status;
    for (int i = 0; i < 40 && status.ok(); ++i) status = answer.Take(Piece(0, mebibyte)).status();
    EXPECT_EQ(status.ok(), streams) << status;
    EXPECT_EQ(absl::IsInvalidArgument(status), !streams);
  }
}

TEST(OpenAiModelsTest, AJobIsAModelAndItsBaseAnother) {
  v1::ListServedModelsResponse served;
  v1::ServedModel& tuned = *served.add_models();
  tuned.set_name("projects/alpha/jobs/job-1");
  tuned.set_model("Qwen/Qwen3-8B");
  tuned.set_has_adapter(true);
  tuned.set_running(true);
  EXPECT_EQ(ChooseModel(served, "", "")->job, "job-1") << "the only one";
  v1::ServedModel& base = *served.add_models();
  base.set_name("projects/alpha/jobs/job-2");
  base.set_running(true);
  v1::ServedModel& waits = *served.add_models();
  waits.set_name("projects/alpha/jobs/job-3");
  const json list = json::parse(ModelList(ServedModels(served)));
  ASSERT_EQ(list["data"].size(), 3u) << "those that run";
  EXPECT_EQ(list["data"][0]["id"], "job-1");
  EXPECT_EQ(list["data"][0]["owned_by"], "alpha");
  EXPECT_EQ(list["data"][1]["id"], "job-1:base");
  EXPECT_EQ(list["data"][2]["id"], "job-2");

  EXPECT_TRUE(ChooseModel(served, "job-1:base", "")->base);
  EXPECT_EQ(ChooseModel(served, "", "job-2")->job, "job-2");
  EXPECT_EQ(ChooseModel(served, "job-1:base", "job-1")->id, "job-1:base");
  // One that waits says itself why it does not answer.
  EXPECT_EQ(ChooseModel(served, "job-3", "")->job, "job-3");
  for (const auto& [model, job] :
       std::vector<std::pair<std::string, std::string>>{{"", ""},
                                                        {"gpt-4o", ""},
                                                        {"job-2:base", ""},
                                                        {"job-1", "job-2"},
                                                        {"", "job-9"},
                                                        {":base", ""}}) {
    const auto chosen = ChooseModel(served, model, job);
    EXPECT_EQ(chosen.status().code(), absl::StatusCode::kNotFound) << model << job;
    EXPECT_THAT(std::string(chosen.status().message()), HasSubstr("job-")) << model;
  }
  EXPECT_EQ(json::parse(*ModelPage(served, "job-1"))["root"], "Qwen/Qwen3-8B");
  EXPECT_FALSE(ModelPage(served, "other").ok());
}

}  // namespace
}  // namespace sft::server::openai
