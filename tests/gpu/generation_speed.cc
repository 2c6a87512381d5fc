// How fast a model answers on this GPU: prompts of one length, answered together.
//
//   sft_gpu_generation_speed --model DIR [--adapter DIR] [--weights bf16|nf4] [--batch 64]
//   [--prompt 1792] [--new 256]
//
// Prints one line of JSON: seconds until every request has its first token, tokens/s from then
// until the first has ended, while all are answered, and over all, and a hash of the tokens of the
// first request, which is the same for every
// --batch.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/cuda/loader.h"
#include "worker/engine/generate/batch_generator.h"
#include "worker/engine/generate/generator.h"

namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)));
  }
  return tokens;
}

struct Measured {
  double prompts = 0.0, together = 0.0, all = 0.0;  // seconds: until all have a token, ...
  int64_t tokens = 0;                               // made while all were answered
  uint64_t hash = 0;                                // of the first request's tokens
};

Measured Answer(sft::engine::BatchGenerator& batch, const sft::engine::Generator& generator,
                int64_t requests, int64_t prompt, int64_t fresh) {
  Measured measured;
  int64_t started = 0;
  bool one_ended = false;
  Clock::time_point all_started = Clock::now(), first_ended = all_started;
  const int64_t first = batch.Add({.prompt = {1}, .max_new_tokens = 1}) + 1;
  while (!batch.idle()) batch.Step();
  const Clock::time_point begin = Clock::now();
  for (int64_t i = 0; i < requests; ++i) {
    bool is_first = true;
    batch.Add({.prompt = RandomTokens(prompt, generator.config().vocab, static_cast<uint64_t>(i)),
               .max_new_tokens = fresh,
               .on_token = [&, is_first](int32_t) mutable {
                 if (started == requests && !one_ended) ++measured.tokens;
                 if (std::exchange(is_first, false) && ++started == requests) {
                   all_started = Clock::now();
                 }
                 return true;
               }});
  }
  while (!batch.idle()) {
    for (const sft::engine::GenerationAnswer& answer : batch.Step()) {
      if (!std::exchange(one_ended, true)) first_ended = Clock::now();
      if (answer.request != first) continue;
      for (const int32_t token : answer.tokens) {
        measured.hash = (measured.hash ^ static_cast<uint64_t>(token)) * 0x100000001b3;
      }
    }
  }
  measured.prompts = Seconds(begin, all_started);
  measured.together = Seconds(all_started, first_ended);
  measured.all = Seconds(begin, Clock::now());
  return measured;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures how fast a model answers on this GPU.");
  std::string model, adapter, weights = "bf16";
  int64_t requests = 64, prompt = 1792, fresh = 256;
  app.add_option("--model", model, "model folder")->required();
  app.add_option("--adapter", adapter, "adapter folder");
  app.add_option("--weights", weights, "bf16 or nf4")->check(CLI::IsMember({"bf16", "nf4"}));
  app.add_option("--batch", requests, "requests answered together");
  app.add_option("--prompt", prompt, "tokens of each prompt");
  app.add_option("--new", fresh, "tokens of each answer");
  CLI11_PARSE(app, argc, argv);
  sft::engine::LoadCudaPlugin(sft::engine::DefaultCudaPluginPath());
  sft::engine::Generator generator({.model_dir = model,
                                    .adapter_dir = adapter,
                                    .device = at::Device(at::kCUDA, 0),
                                    .nf4 = weights == "nf4"});
  const auto batch = generator.MakeBatch(
      {.cache_tokens = requests * (prompt + fresh + 16), .most_requests = requests});
  Answer(*batch, generator, requests, std::min<int64_t>(prompt, 64), 4);  // warms up
  const Measured m = Answer(*batch, generator, requests, prompt, fresh);
  const double tokens = static_cast<double>(requests * fresh);
  std::printf(
      "{\"batch\": %ld, \"prompt\": %ld, \"new\": %ld, \"prompt_seconds\": %.4f, "
      "\"prompt_tokens_per_second\": %.0f, \"decode_tokens_per_second\": %.1f, "
      "\"tokens_per_second\": %.1f, \"hash\": \"%016lx\"}\n",
      requests, prompt, fresh, m.prompts, static_cast<double>(requests * prompt) / m.prompts,
      static_cast<double>(m.tokens) / m.together, tokens / m.all, m.hash);
  return 0;
}
