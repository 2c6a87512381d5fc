#pragma once

#include "common/plan/model_config.h"

// Shapes of published models, for the tests of this folder.

namespace sft::plan {

inline ModelShape SmolLm2() {  // SmolLM2-135M-Instruct
  return {.family = "llama",
          .hidden = 576,
          .layers = 30,
          .heads = 9,
          .kv_heads = 3,
          .head_dim = 64,
          .intermediate = 1536,
          .vocab = 49152,
          .tied_head = true};
}

inline ModelShape Qwen3Of600M() {
  return {.family = "qwen3",
          .hidden = 1024,
          .layers = 28,
          .heads = 16,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 3072,
          .vocab = 151936,
          .tied_head = true,
          .qk_norm = QkNorm::kHeads};
}

inline ModelShape Qwen3Of1700M() {
  ModelShape shape = Qwen3Of600M();
  shape.hidden = 2048;
  shape.intermediate = 6144;
  return shape;
}

inline ModelShape Qwen3Of8B() {
  return {.family = "qwen3",
          .hidden = 4096,
          .layers = 36,
          .heads = 32,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 12288,
          .vocab = 151936,
          .qk_norm = QkNorm::kHeads};
}

inline ModelShape Qwen3Of32B() {
  return {.family = "qwen3",
          .hidden = 5120,
          .layers = 64,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 25600,
          .vocab = 151936,
          .qk_norm = QkNorm::kHeads};
}

inline ModelShape LlamaOf70B() {
  return {.family = "llama",
          .hidden = 8192,
          .layers = 80,
          .heads = 64,
          .kv_heads = 8,
          .head_dim = 128,
          .intermediate = 28672,
          .vocab = 128256};
}

}  // namespace sft::plan
