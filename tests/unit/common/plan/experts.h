#pragma once

#include <gtest/gtest.h>

#include <string>

#include "common/plan/model_config.h"

// Published mixtures of experts, for the tests of this folder.

namespace sft::plan {

inline constexpr char kQwen3Of30B[] = R"({"architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": false, "attention_dropout": 0.0, "decoder_sparse_step": 1, "head_dim": 128,
    "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 6144,
    "max_position_embeddings": 40960, "max_window_layers": 48, "mlp_only_layers": [],
    "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 48, "num_key_value_heads": 4, "output_router_logits": false,
    "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_sliding_window": false, "vocab_size": 151936})";

inline constexpr char kMixtral8x7B[] = R"({"architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0, "hidden_act": "silu", "hidden_size": 4096,
    "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mixtral",
    "num_attention_heads": 32, "num_experts_per_tok": 2, "num_hidden_layers": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02,
    "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "vocab_size": 32000})";

// The decoder of Gemma 4 26B-A4B: as config.json of the whole has it, without other parts' keys.
inline constexpr char kGemma4Of26B[] = R"({"architectures": ["Gemma4ForConditionalGeneration"],
    "model_type": "gemma4", "tie_word_embeddings": true, "text_config": {
    "model_type": "gemma4_text", "attention_bias": false, "attention_k_eq_v": true,
    "enable_moe_block": true, "final_logit_softcapping": 30.0, "global_head_dim": 512,
    "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2816,
    "hidden_size_per_layer_input": 0, "intermediate_size": 2112,
    "max_position_embeddings": 262144, "moe_intermediate_size": 704, "num_attention_heads": 16,
    "num_experts": 128, "num_global_key_value_heads": 2, "num_hidden_layers": 30,
    "num_key_value_heads": 8, "num_kv_shared_layers": 0, "rms_norm_eps": 1e-06,
    "sliding_window": 1024, "top_k_experts": 8, "vocab_size": 262144}})";

inline ModelConfig ParsedModel(const std::string& config) {
  const auto model = ParseModelConfig(config);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.value_or(ModelConfig());
}

// A model of four layers with 8 experts, of which a token goes to 2.
inline std::string TinyExperts(const std::string& more = "") {
  return R"({"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 96,
             "moe_intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
             "num_hidden_layers": 4, "num_experts": 8, "num_experts_per_tok": 2,
             "vocab_size": 128)" +
         more + "}";
}

}  // namespace sft::plan
