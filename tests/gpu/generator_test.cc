#include "worker/engine/generate/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randn.h>

#include <string>
#include <vector>

#include "tests/gpu/gpu_test.h"
#include "tests/unit/worker/engine/checkpoint/temp_dir.h"
#include "tests/unit/worker/engine/model/tiny_model.h"
#include "worker/engine/checkpoint/adapter.h"

// Answers of small models on a GPU: the same bits whatever is answered beside a request and however
// prompts are cut, and in fp32 the tokens of the CPU, which tests/parity holds against
// transformers.

namespace sft::engine {
namespace {

using Answers = std::vector<GenerationAnswer>;

constexpr int kRequests = 70;  // more than a tile has

struct GeneratorCase {
  const char* name;
  const char* family;      // keys of config.json that set it apart, model_type first
  int64_t query_rows = 0;  // outputs of q_proj
  bool nf4 = false;

  friend void PrintTo(const GeneratorCase& c, std::ostream* out) { *out << c.name; }
};

constexpr char kAttention[] = R"("model_type": "qwen3")";
// Attention, whose queries have gates beside them, between two gated DeltaNets.
constexpr char kHybrid[] = R"("model_type": "qwen3_5_text", "linear_num_key_heads": 2,
      "linear_num_value_heads": 4, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
      "layer_types": ["full_attention", "linear_attention", "linear_attention"],
      "partial_rotary_factor": 0.5)";

constexpr GeneratorCase kGenerators[] = {{"plain", kAttention, 512},
                                         {"nf4", kAttention, 512, true},
                                         {"hybrid", kHybrid, 1024},
                                         {"hybrid_nf4", kHybrid, 1024, true}};

// Wide enough for blocks of NF4 and for the kernels on tensor cores.
std::string WideConfig(const GeneratorCase& c) {
  return "{" + std::string(c.family) + R"(, "vocab_size": 512, "hidden_size": 256, "head_dim": 64,
      "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
      "num_key_value_heads": 2, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
      "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false})";
}

std::vector<GenerationRequest> Requests(int count) {
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < count; ++i) {
    GenerationRequest request;
    const int length = i == 3 ? 700 : 1 + i * 37 % 90;
    for (int j = 0; j < length; ++j) request.prompt.push_back((i * 31 + j * j * 7 + 5) % 512);
    request.max_new_tokens = 4 + i % 5 * 6;
    request.adapter = i % 3 != 0;
    if (i % 4 == 1) {
      request.sampling = {.temperature = 0.8, .top_k = 20, .seed = 100u + static_cast<uint64_t>(i)};
    }
    request.log_probabilities = i % 4 == 2;
    requests.push_back(request);
  }
  return requests;
}

class GeneratorGpuTest : public GpuTest, public testing::WithParamInterface<GeneratorCase> {
 protected:
  GeneratorGpuTest() {
    WriteTinyModel(dir_ / "model", WideConfig(GetParam()));
    AdapterConfig config;
    config.r = 16;
    config.alpha = 16;
    config.target_modules = {"q_proj", "down_proj"};
    const auto noise = [](std::vector<int64_t> shape, uint64_t seed) {
      return at::randn(shape, at::detail::createCPUGenerator(seed), at::kFloat).mul(0.1);
    };
    const std::vector<LoraPair> pairs{
        {"model.layers.0.self_attn.q_proj", noise({16, 256}, 1),
         noise({GetParam().query_rows, 16}, 2)},
        {"model.layers.2.mlp.down_proj", noise({16, 512}, 3), noise({256, 16}, 4)}};
    WriteAdapter({.target = dir_ / "adapter"}, config, pairs, {});
  }

  Generator Open(at::Device device, at::ScalarType compute) const {
    return Generator({.model_dir = dir_ / "model",
                      .adapter_dir = dir_ / "adapter",
                      .device = device,
                      .compute = compute,
                      .nf4 = GetParam().nf4});
  }

  static Answers AnswersOf(Generator& generator, const std::vector<GenerationRequest>& requests,
                           const BatchOptions& options = {}) {
    const auto batch = generator.MakeBatch(options);
    for (const GenerationRequest& request : requests) batch->Add(request);
    Answers answers(requests.size());
    while (!batch->idle()) {
      for (GenerationAnswer& answer : batch->Step()) {
        answers[static_cast<size_t>(answer.request)] = answer;
      }
    }
    return answers;
  }

  TempDir dir_;
};

TEST_P(GeneratorGpuTest, AnswersHaveTheBitsOfEachAlone) {
  Generator generator = Open(at::Device(at::kCUDA, 0), at::kBFloat16);
  const std::vector<GenerationRequest> requests = Requests(kRequests);
  const Answers together =
      AnswersOf(generator, requests, {.cache_tokens = 65536, .most_requests = kRequests});
  const Answers few =
      AnswersOf(generator, requests, {.cache_tokens = 2048, .most_requests = 5, .step_tokens = 48});
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_FALSE(together[i].tokens.empty()) << i;
    EXPECT_EQ(few[i].tokens, together[i].tokens) << "request " << i;
    EXPECT_EQ(few[i].log_probabilities, together[i].log_probabilities) << "request " << i;
    if (i % 7 != 3) continue;
    const Answers alone = AnswersOf(generator, {requests[i]});
    EXPECT_EQ(alone[0].tokens, together[i].tokens) << "request " << i;
    EXPECT_EQ(alone[0].log_probabilities, together[i].log_probabilities) << "request " << i;
  }
}

TEST_P(GeneratorGpuTest, TokensAreThoseOfTheCpu) {
  Generator cpu = Open(at::kCPU, at::kFloat);
  Generator gpu = Open(at::Device(at::kCUDA, 0), at::kFloat);
  const std::vector<GenerationRequest> requests = Requests(9);
  const Answers expected = AnswersOf(cpu, requests), answers = AnswersOf(gpu, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i;
  }
}

// Beams take on each other's states, or pages.
TEST_P(GeneratorGpuTest, SearchesAreThoseOfTheCpu) {
  Generator cpu = Open(at::kCPU, at::kFloat);
  Generator gpu = Open(at::Device(at::kCUDA, 0), at::kFloat);
  std::vector<GenerationRequest> requests = Requests(3);
  for (GenerationRequest& request : requests) {
    request.sampling = {};
    request.log_probabilities = false;
    request.beams = {.beams = 4, .answers = 1};
  }
  const Answers expected = AnswersOf(cpu, requests), answers = AnswersOf(gpu, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, expected[i].tokens) << "request " << i;
    EXPECT_NEAR(answers[i].score, expected[i].score, 1e-3) << "request " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GeneratorGpuTest, testing::ValuesIn(kGenerators),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace sft::engine
