#include "worker/engine/generate/batch_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/randn.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/base/error.h"
#include "worker/engine/checkpoint/adapter.h"
#include "worker/engine/generate/generator.h"

namespace sft::engine {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int32_t>;

// A prompt of `length` tokens that differs from request to request.
Ids Prompt(int length, int seed) {
  Ids prompt;
  for (int i = 0; i < length; ++i) prompt.push_back((seed * 31 + i * i * 7 + 5) % kTinyVocabulary);
  return prompt;
}

// Seven that have nothing in common: lengths, sampling, adapter or not.
std::vector<GenerationRequest> Seven() {
  std::vector<GenerationRequest> requests;
  const int lengths[] = {1, 40, 5, 17, 16, 3, 23};
  for (int i = 0; i < 7; ++i) {
    GenerationRequest request;
    request.prompt = Prompt(lengths[i], i);
    request.max_new_tokens = 6 + 5 * i;
    request.adapter = i % 3 != 0;
    request.log_probabilities = true;
    if (i % 2 == 1) {
      request.sampling = {.temperature = 0.8, .top_k = 20, .top_p = 0.95, .seed = 100u + i};
    }
    if (i == 4) request.sampling.repetition_penalty = 1.2;
    requests.push_back(request);
  }
  return requests;
}

class BatchGeneratorTest : public testing::Test {
 protected:
  BatchGeneratorTest() {
    WriteTinyModel(dir_ / "model");
    AdapterConfig config;
    config.r = 2;
    config.alpha = 4;
    config.target_modules = {"q_proj"};
    const auto noise = [](std::vector<int64_t> shape, uint64_t seed) {
      return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat);
    };
    const std::vector<LoraPair> pairs{
        {"model.layers.0.self_attn.q_proj", noise({2, 32}, 1), noise({32, 2}, 2)}};
    WriteAdapter({.target = dir_ / "adapter"}, config, pairs, {});
  }

  Generator Open(const char* adapter = "adapter") const {
    return Generator({.model_dir = dir_ / "model",
                      .adapter_dir = *adapter == 0 ? std::filesystem::path() : dir_ / adapter});
  }

  // All of them together.
  static std::vector<GenerationAnswer> Answers(Generator& generator,
                                               const std::vector<GenerationRequest>& requests,
                                               const BatchOptions& options = {}) {
    const auto batch = generator.MakeBatch(options);
    for (const GenerationRequest& request : requests) batch->Add(request);
    return Finish(*batch, requests.size());
  }

  static std::vector<GenerationAnswer> Finish(BatchGenerator& batch, size_t count) {
    std::vector<GenerationAnswer> answers(count);
    while (!batch.idle()) Take(batch.Step(), answers);
    return answers;
  }

  static void Take(std::vector<GenerationAnswer> from, std::vector<GenerationAnswer>& to) {
    for (GenerationAnswer& answer : from) to[static_cast<size_t>(answer.request)] = answer;
  }

  static void ExpectSame(const std::vector<GenerationAnswer>& answers,
                         const std::vector<GenerationAnswer>& expected) {
    ASSERT_EQ(answers.size(), expected.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      EXPECT_FALSE(expected[i].tokens.empty());
      EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i;
      EXPECT_EQ(answers[i].log_probabilities, expected[i].log_probabilities) << "request " << i;
    }
  }

  static std::vector<GenerationAnswer> OneByOne(Generator& generator) {
    std::vector<GenerationAnswer> alone;
    for (const GenerationRequest& request : Seven()) {
      alone.push_back(Answers(generator, {request})[0]);
    }
    return alone;
  }

  std::string Refusal(const GenerationRequest& request, const BatchOptions& options = {}) const {
    Generator generator = Open();
    try {
      generator.MakeBatch(options)->Add(request);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  }

  TempDir dir_;
};

TEST_F(BatchGeneratorTest, SevenTogetherHaveTheBitsOfEachAlone) {
  Generator generator = Open();
  ExpectSame(Answers(generator, Seven()), OneByOne(generator));
}

TEST_F(BatchGeneratorTest, RequestsThatJoinAndLeaveChangeNothing) {
  Generator generator = Open();
  const std::vector<GenerationAnswer> alone = OneByOne(generator);
  const auto batch = generator.MakeBatch({.most_requests = 3, .step_tokens = 7});
  std::vector<GenerationAnswer> answers(7);
  for (const GenerationRequest& request : Seven()) {
    batch->Add(request);
    for (int i = 0; i < 4; ++i) Take(batch->Step(), answers);
  }
  while (!batch->idle()) Take(batch->Step(), answers);
  ExpectSame(answers, alone);
}

TEST_F(BatchGeneratorTest, AShortPromptDoesNotWaitForALongOneAndALongOneNotForEver) {
  Generator generator = Open();
  GenerationRequest longest, shorter;
  longest.prompt = Prompt(56, 1);
  shorter.prompt = Prompt(4, 2);
  longest.max_new_tokens = shorter.max_new_tokens = 3;
  const std::vector<GenerationAnswer> alone = {Answers(generator, {longest})[0],
                                               Answers(generator, {shorter})[0]};
  const auto batch = generator.MakeBatch({.most_requests = 64, .step_tokens = 8});
  int step = 0;
  std::map<int64_t, int> first;  // step of a request's first token
  const auto add = [&](GenerationRequest request) {
    request.on_token = [&first, &step, number = static_cast<int64_t>(first.size())](int32_t) {
      if (first[number] == 0) first[number] = step;
      return true;
    };
    first[static_cast<int64_t>(first.size())] = 0;
    batch->Add(request);
  };
  add(longest);
  std::vector<GenerationAnswer> answers(200);
  // Somebody new asks something short all the time.
  while (!batch->idle()) {
    if (step < 30) add(shorter);
    ++step;
    Take(batch->Step(), answers);
  }
  EXPECT_LE(first[1], 2) << "of 7 that the long one takes alone";
  EXPECT_LE(first[0], 56 / 2) << "it gets some of each step";
  ExpectSame({answers[0]}, {alone[0]});
  for (size_t i = 1; i <= 30; ++i) ExpectSame({answers[i]}, {alone[1]});
}

TEST_F(BatchGeneratorTest, TheNumberOfThreadsChangesNothing) {
  Generator generator = Open();
  const int threads = at::get_num_threads();
  const std::vector<GenerationAnswer> many = Answers(generator, Seven());
  at::set_num_threads(1);
  const std::vector<GenerationAnswer> one = Answers(generator, Seven());
  at::set_num_threads(threads);
  ExpectSame(many, one);
}

TEST_F(BatchGeneratorTest, WhatOnePromptCanGetAndWhatItsKeysTake) {
  Generator generator = Open();
  const auto batch = generator.MakeBatch({.cache_tokens = 90});  // six pages
  EXPECT_EQ(batch->MostNewTokens(40), 96 - 40);
  GenerationRequest request;
  request.prompt = Prompt(40, 1);
  request.max_new_tokens = 96 - 40;
  EXPECT_EQ(Answers(generator, {request}, {.cache_tokens = 90})[0].tokens.size(), 56u);
  ++request.max_new_tokens;
  EXPECT_THAT(Refusal(request, {.cache_tokens = 90}), HasSubstr("do not fit"));
  // Keys and values, fp32.
  const ModelConfig& config = generator.config();
  EXPECT_EQ(generator.CacheTokenBytes(), config.layers * 2 * config.kv_heads * config.head_dim * 4);
}

// Pages are few enough that requests wait for those of others, and get them in another order.
TEST_F(BatchGeneratorTest, PagesUsedAgainChangeNothing) {
  Generator generator = Open();
  ExpectSame(Answers(generator, Seven(), {.cache_tokens = 96}), OneByOne(generator));
}

TEST_F(BatchGeneratorTest, WithoutTheAdapterTheBaseAnswersBitForBit) {
  Generator adapted = Open(), base = Open("");
  std::vector<GenerationRequest> requests = Seven();
  for (GenerationRequest& request : requests) request.adapter = false;
  const std::vector<GenerationAnswer> off = Answers(adapted, requests);
  ExpectSame(off, Answers(base, requests));
  for (GenerationRequest& request : requests) request.adapter = true;
  EXPECT_NE(Answers(adapted, requests)[1].log_probabilities, off[1].log_probabilities);
}

TEST_F(BatchGeneratorTest, TokensOfAPromptAreAsLikelyAsAWholeForwardSays) {
  Generator generator = Open();
  std::vector<GenerationRequest> requests = Seven();
  for (GenerationRequest& request : requests) {
    request.adapter = true;
    request.prompt_scores = true;
    request.max_new_tokens = 0;
  }
  const auto scored = Answers(generator, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Ids& prompt = requests[i].prompt;
    EXPECT_TRUE(scored[i].tokens.empty());
    ASSERT_EQ(scored[i].prompt_scores.size(), prompt.size() - 1);
    const at::Tensor logits = at::log_softmax(generator.Logits(prompt), 1);
    for (size_t k = 0; k + 1 < prompt.size(); ++k) {
      const at::Tensor row = logits[static_cast<int64_t>(k)];
      const TokenScore& score = scored[i].prompt_scores[k];
      EXPECT_NEAR(score.log_probability, row[prompt[k + 1]].item<float>(), 1e-5);
      EXPECT_EQ(score.likeliest, row.argmax().item<int64_t>());
      EXPECT_NEAR(score.likeliest_log_probability, row.max().item<float>(), 1e-5);
    }
  }
  // Together with answers, in pieces, or of the base: the same bits.
  requests = Seven();
  for (GenerationRequest& request : requests) request.prompt_scores = true;
  const auto whole = Answers(generator, requests);
  const auto pieces = Answers(generator, requests, {.most_requests = 2, .step_tokens = 7});
  ExpectSame(whole, Answers(generator, Seven()));
  Generator base = Open("");
  const auto alone = Answers(base, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    for (size_t k = 0; k < whole[i].prompt_scores.size(); ++k) {
      const double found = whole[i].prompt_scores[k].log_probability;
      EXPECT_EQ(found, pieces[i].prompt_scores[k].log_probability);
      const auto& other = requests[i].adapter ? scored : alone;
      EXPECT_EQ(found, other[i].prompt_scores[k].log_probability) << i << " " << k;
    }
  }
}

TEST_F(BatchGeneratorTest, EachChosenTokenIsToldWithTheLikeliestAtItsPlace) {
  Generator generator = Open();
  std::vector<GenerationRequest> requests = Seven();
  std::vector<std::vector<ChosenToken>> told(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].alternatives = 4;
    requests[i].on_choice = [&told, i](const ChosenToken& chosen) { told[i].push_back(chosen); };
  }
  const auto answers = Answers(generator, requests);
  ExpectSame(answers, Answers(generator, Seven()));
  for (size_t i = 0; i < requests.size(); ++i) {
    // The token that ends an answer is told and is no part of it.
    const bool stopped = answers[i].reason == EndReason::kStopToken;
    ASSERT_EQ(told[i].size(), answers[i].tokens.size() + (stopped ? 1 : 0));
    for (size_t k = 0; k < answers[i].tokens.size(); ++k) {
      const ChosenToken& chosen = told[i][k];
      EXPECT_EQ(chosen.token.token, answers[i].tokens[k]);
      EXPECT_EQ(chosen.token.log_probability, answers[i].log_probabilities[k]);
      ASSERT_EQ(chosen.likeliest.size(), 4u);
      const bool greedy =
          requests[i].sampling.temperature == 0.0 && requests[i].sampling.repetition_penalty == 1.0;
      if (!greedy) continue;
      EXPECT_EQ(chosen.likeliest[0].token, chosen.token.token);
      EXPECT_EQ(chosen.likeliest[0].log_probability, chosen.token.log_probability);
    }
  }
}

TEST_F(BatchGeneratorTest, ARequestCanBeTakenBackAndTheOthersStayAsTheyAre) {
  Generator generator = Open();
  const std::vector<GenerationRequest> requests = Seven();
  const std::vector<GenerationAnswer> alone = OneByOne(generator);
  const auto batch = generator.MakeBatch({.most_requests = 3, .step_tokens = 7});
  for (const GenerationRequest& request : requests) batch->Add(request);
  batch->Step();
  EXPECT_TRUE(batch->Withdraw(1)) << "its prompt is being read";
  EXPECT_TRUE(batch->Withdraw(5)) << "it waits";
  EXPECT_FALSE(batch->Withdraw(5));
  std::map<int64_t, GenerationAnswer> answers;
  int steps = 0;
  while (!batch->idle()) {
    for (const GenerationAnswer& answer : batch->Step()) answers[answer.request] = answer;
    if (++steps == 20) batch->Withdraw(6);
  }
  EXPECT_FALSE(batch->Withdraw(0)) << "it is over";
  EXPECT_FALSE(answers.contains(1) || answers.contains(5));
  for (const int64_t each : {0, 2, 3, 4}) {
    ASSERT_TRUE(answers.contains(each)) << each;
    EXPECT_EQ(answers[each].tokens, alone[static_cast<size_t>(each)].tokens) << each;
  }
  // Its pages are there for others.
  for (int i = 0; i < 50; ++i) {
    const int64_t number = batch->Add(requests[1]);
    batch->Step();
    EXPECT_TRUE(batch->Withdraw(number));
  }
}

TEST_F(BatchGeneratorTest, ASeedMakesTheSameAnswerAndAnotherSeedAnother) {
  Generator generator = Open();
  GenerationRequest request;
  request.prompt = Prompt(5, 1);
  request.max_new_tokens = 30;
  request.sampling = {.temperature = 1.0, .seed = 7};
  GenerationRequest other = request;
  other.sampling.seed = 8;
  const auto answers = Answers(generator, {request, other, request});
  EXPECT_EQ(answers[0].tokens, answers[2].tokens);
  EXPECT_NE(answers[0].tokens, answers[1].tokens);
}

TEST_F(BatchGeneratorTest, AStopStringEndsTheAnswerWhereItBegins) {
  Generator generator = Open();
  GenerationRequest request;
  request.prompt = Prompt(5, 1);
  request.max_new_tokens = 30;
  request.sampling = {.temperature = 1.0, .seed = 7};
  const Ids whole = Answers(generator, {request})[0].tokens;
  request.decode = [](std::span<const int32_t> tokens) {
    std::string text;
    for (const int32_t token : tokens) text += fmt::format("<{}>", token);
    return text;
  };
  // Begins within one token and ends within the next but one: it overhangs at both sides.
  const std::string text = request.decode(whole);
  const std::string stop = request.decode(std::span(whole).subspan(10, 3));
  request.stop_strings = {"no such text", stop.substr(1, stop.size() - 2)};
  const GenerationAnswer answer = Answers(generator, {request})[0];
  EXPECT_EQ(answer.reason, EndReason::kStopString);
  EXPECT_EQ(answer.tokens, Ids(whole.begin(), whole.begin() + 13));
  EXPECT_EQ(answer.text_bytes, text.find(request.stop_strings[1]));
}

TEST_F(BatchGeneratorTest, EndsForEachReason) {
  Generator generator = Open();
  GenerationRequest request;
  request.prompt = Prompt(5, 1);
  request.max_new_tokens = 9;
  request.sampling = {.temperature = 1.0, .seed = 7};
  const Ids whole = Answers(generator, {request})[0].tokens;
  std::vector<GenerationRequest> requests(3, request);
  requests[1].stop_ids = {whole[4]};
  int heard = 0;
  requests[2].on_token = [&heard](int32_t) { return ++heard < 3; };
  const auto answers = Answers(generator, requests);
  EXPECT_EQ(answers[0].reason, EndReason::kLength);
  EXPECT_EQ(answers[1].reason, EndReason::kStopToken);
  EXPECT_LT(answers[1].tokens.size(), 5u);
  EXPECT_EQ(answers[2].reason, EndReason::kListener);
  EXPECT_EQ(answers[2].tokens.size(), 3u);
}

TEST_F(BatchGeneratorTest, ARequestWhoseTokenCannotBeChosenFailsAloneAndSaysWhy) {
  Generator generator = Open();
  std::vector<GenerationRequest> requests(2);
  for (GenerationRequest& request : requests) {
    request.prompt = Prompt(5, 1);
    request.max_new_tokens = 3;
  }
  const Ids whole = Answers(generator, {requests[0]})[0].tokens;
  for (int32_t id = 0; id < kTinyVocabulary; ++id) requests[1].prompt.push_back(id);
  requests[1].sampling.no_repeat_ngram = 1;  // the prompt has every token
  const auto answers = Answers(generator, requests);
  EXPECT_EQ(answers[0].tokens, whole);
  EXPECT_EQ(answers[1].reason, EndReason::kFailed);
  EXPECT_TRUE(answers[1].tokens.empty());
  EXPECT_THAT(answers[1].problem, HasSubstr("token 1 of the answer cannot be chosen"));
}

// Searches of different widths beside ordinary requests.
std::vector<GenerationRequest> WithSearches() {
  std::vector<GenerationRequest> requests = Seven();
  for (size_t i = 0; i < requests.size(); i += 2) {
    requests[i].log_probabilities = false;
    requests[i].sampling = {.repetition_penalty = 1.1, .no_repeat_ngram = 3};
    requests[i].beams = {.beams = static_cast<int>(2 + i), .answers = 2, .length_penalty = 0.8};
    requests[i].stop_ids = {7, 40};
  }
  return requests;
}

TEST_F(BatchGeneratorTest, SearchesHaveTheSameBitsAloneAndBesideOthers) {
  Generator generator = Open();
  const auto all = [&](const std::vector<GenerationRequest>& requests,
                       const BatchOptions& options) {
    const auto batch = generator.MakeBatch(options);
    for (const GenerationRequest& request : requests) batch->Add(request);
    std::map<std::pair<int64_t, int>, GenerationAnswer> answers;
    while (!batch->idle()) {
      for (GenerationAnswer& answer : batch->Step()) {
        EXPECT_TRUE(answers.emplace(std::pair(answer.request, answer.sample), answer).second);
      }
    }
    return answers;
  };
  const auto requests = WithSearches();
  const auto together = all(requests, {});
  EXPECT_EQ(together.size(), 11u);
  const auto cramped = all(requests, {.cache_tokens = 1200, .most_requests = 9, .step_tokens = 7});
  for (const auto& [key, answer] : together) {
    const auto alone = all({requests[static_cast<size_t>(key.first)]}, {});
    for (const GenerationAnswer& other : {alone.at({0, key.second}), cramped.at(key)}) {
      EXPECT_EQ(answer.tokens, other.tokens) << key.first << "/" << key.second;
      EXPECT_EQ(answer.score, other.score) << key.first << "/" << key.second;
      EXPECT_EQ(answer.reason, other.reason);
    }
  }
  for (int64_t i = 0; i < 7; i += 2) {
    EXPECT_GE(together.at({i, 0}).score, together.at({i, 1}).score);
    EXPECT_NE(together.at({i, 0}).tokens, together.at({i, 1}).tokens);
  }
}

TEST_F(BatchGeneratorTest, ASearchCanBeTakenBackAndItsPagesAreThereForOthers) {
  Generator generator = Open();
  const std::vector<GenerationRequest> requests = WithSearches();
  const GenerationAnswer alone = Answers(generator, {requests[1]})[0];
  const auto batch = generator.MakeBatch({.cache_tokens = 1200, .most_requests = 9});
  for (int i = 0; i < 30; ++i) {
    const int64_t search = batch->Add(requests[4]);
    // Its prompt is read, then its beams are followed.
    for (int step = 0; step < i % 4; ++step) EXPECT_TRUE(batch->Step().empty());
    EXPECT_TRUE(batch->Withdraw(search));
    EXPECT_FALSE(batch->Withdraw(search));
    EXPECT_TRUE(batch->idle());
  }
  // One that is answered beside it stays as it is.
  const int64_t search = batch->Add(requests[4]), other = batch->Add(requests[1]);
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(batch->Step().empty());
  EXPECT_TRUE(batch->Withdraw(search));
  std::vector<GenerationAnswer> answers;
  while (answers.empty()) answers = batch->Step();
  EXPECT_EQ(answers[0].request, other);
  EXPECT_EQ(answers[0].tokens, alone.tokens);
  EXPECT_TRUE(batch->idle());
}

TEST_F(BatchGeneratorTest, ASearchEndsAtAStopString) {
  Generator generator = Open();
  GenerationRequest request;
  request.prompt = Prompt(5, 3);
  request.max_new_tokens = 20;
  request.beams = {.beams = 3, .answers = 3};
  request.sampling.no_repeat_ngram = 1;
  const auto text = [](std::span<const int32_t> ids) {
    std::string made;
    for (const int32_t id : ids) made += fmt::format("<{}>", id);
    return made;
  };
  const auto batch = generator.MakeBatch({});
  batch->Add(request);
  std::vector<GenerationAnswer> free;
  while (free.empty()) free = batch->Step();
  request.decode = text;
  request.stop_strings = {fmt::format("<{}>", free[0].tokens[4])};
  const auto stopped = generator.MakeBatch({});
  stopped->Add(request);
  std::vector<GenerationAnswer> answers;
  while (answers.empty()) answers = stopped->Step();
  size_t ended = 0;
  for (const GenerationAnswer& answer : answers) {
    const std::string whole = text(answer.tokens);
    const size_t found = whole.find(request.stop_strings[0]);
    EXPECT_EQ(found != std::string::npos, answer.reason == EndReason::kStopString);
    if (answer.reason != EndReason::kStopString) continue;
    EXPECT_EQ(answer.text_bytes, found);
    EXPECT_TRUE(whole.ends_with(request.stop_strings[0]));
    ++ended;
  }
  EXPECT_GT(ended, 0u);
}

TEST_F(BatchGeneratorTest, WhatCannotBeAnsweredIsRefusedByName) {
  GenerationRequest good;
  good.prompt = {1, 2, 3};
  EXPECT_EQ(Refusal(good), "accepted");
  const auto with = [&](const auto& change) {
    GenerationRequest request = good;
    change(request);
    return request;
  };
  EXPECT_THAT(Refusal(with([](auto& r) { r.prompt.clear(); })), HasSubstr("prompt is empty"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.prompt = {kTinyVocabulary}; })), HasSubstr("token 96"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.max_new_tokens = 0; })), HasSubstr("max_new_tokens"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.stop_strings = {""}; })), HasSubstr("stop string"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.sampling.top_p = 0.0; })), HasSubstr("top_p is 0"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.sampling.temperature = -1.0; })),
              HasSubstr("temperature is -1"));
  const GenerationRequest search = with([](auto& r) { r.beams.beams = 4; });
  EXPECT_EQ(Refusal(search), "accepted");
  EXPECT_THAT(Refusal(search, {.most_requests = 3}), HasSubstr("4 beams are more than the 3"));
  EXPECT_THAT(Refusal(search, {.cache_tokens = 600}), HasSubstr("of each of 4 beams do not fit"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.beams.beams = 2, r.sampling.temperature = 0.5; })),
              HasSubstr("draws no tokens"));
  EXPECT_THAT(Refusal(with([](auto& r) { r.beams = {.beams = 2, .answers = 3}; })),
              HasSubstr("3 answers of a search with 2 beams"));
  EXPECT_THAT(Refusal(good, {.cache_tokens = 100}), HasSubstr("do not fit into keys and values"));
}

}  // namespace
}  // namespace sft::engine
