"""Models with gated DeltaNets among their layers: tiny ones, with documents of more than one chunk of 64 tokens."""

import torch

# Of rows, and of the documents of the packed row: chunks that are cut, and one token beyond a chunk.
LENGTHS = {"qwen3_5_tied": 80}
DOCUMENTS = {"qwen3_5_tied": [65, 5, 1, 80], "qwen3_next": [65, 5, 1, 12]}
# Seeds with which the gradients of decays, sums that mostly cancel, are more than rounding.
SEEDS = {"qwen3_5_tied": "qwen3_5_tied 5", "qwen3_5_multimodal_tied": "qwen3_5_multimodal_tied 3",
         "qwen3_5_moe": "qwen3_5_moe 1", "qwen3_5_moe_multimodal_tied": "qwen3_5_moe_multimodal_tied 0",
         "qwen3_next": "qwen3_next 0", "qwen3_next_biases_tied": "qwen3_next_biases_tied 3"}
# Those with experts: the expert of the first layer with some that no token goes to, and adapters of some linears
# (experts.py). Of the names gate_proj, up_proj and down_proj peft makes both stacks in qwen3_next alone.
UNCHOSEN = {"qwen3_5_moe": 2, "qwen3_5_moe_multimodal_tied": 4, "qwen3_next": 0, "qwen3_next_biases_tied": 3}
SOME = {"qwen3_5_moe": (["q_proj", "in_proj_qkv", "shared_expert_gate"], ["mlp.experts.down_proj"]),
        "qwen3_next": (["q_proj", "in_proj_qkvz", "gate_proj", "up_proj", "down_proj"], []),
        "qwen3_next_biases_tied": (["in_proj_ba", "out_proj"], ["mlp.experts.gate_up_proj"])}
# Files with stacks of experts, as released; transformers would save single ones.
IN_STACKS = {"qwen3_5_moe_multimodal_tied"}
BIAS_CASES = {"qwen3_5_biases_untied": ("all", ["q_proj", "in_proj_z", "out_proj"])}


def cases(shape):
    """The cases, of these sizes where they have none of their own."""
    # Heads of the first tokens are small, and a norm of small rows magnifies rounding: with an epsilon of 1e-5 the
    # reference itself is 1.4e-5 from its gradients in fp64.
    text = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **shape, "num_hidden_layers": 4,
            "max_position_embeddings": 128, "head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-2}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
             "linear_value_head_dim": 6}
    vision = {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2,
              "patch_size": 4, "out_hidden_size": shape["hidden_size"], "num_position_embeddings": 16}
    images = {"image_token_id": 1, "video_token_id": 1, "vision_start_token_id": 1, "vision_end_token_id": 2,
              "torch_dtype": "bfloat16"}
    # Sizes of experts differ from each other and from a dense layer's.
    moe = {**text, **heads, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text",
           "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
           "shared_expert_intermediate_size": 40}
    del moe["intermediate_size"]
    following = {**text, **heads, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
                 "moe_intermediate_size": 24, "shared_expert_intermediate_size": 16}
    return {
        "qwen3_5_moe": {**moe, "tie_word_embeddings": False},
        "qwen3_5_moe_multimodal_tied": {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe",
            "text_config": {**moe, "num_hidden_layers": 2, "num_experts": 5, "num_experts_per_tok": 3,
                            "tie_word_embeddings": True, "layer_types": ["linear_attention", "full_attention"]},
            "tie_word_embeddings": True, "vision_config": {**vision, "model_type": "qwen3_5_moe_vision"}, **images},
        # One layer is dense.
        "qwen3_next": {**following, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
                       "decoder_sparse_step": 1, "mlp_only_layers": [1], "rope_theta": 10000000.0,
                       "tie_word_embeddings": False},
        # Every other layer is, weights of experts add up to less than 1, and a key head serves one value head.
        "qwen3_next_biases_tied": {
            **following, "num_hidden_layers": 4, "attention_bias": True, "num_experts": 5, "num_experts_per_tok": 3,
            "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [], "linear_num_key_heads": 3,
            "linear_num_value_heads": 3, "layer_types": ["linear_attention", "full_attention"] * 2,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5},
            "tie_word_embeddings": True},
        "qwen3_5_tied": {**text, **heads, "full_attention_interval": 4, "tie_word_embeddings": True,
                         "rope_parameters": {"rope_theta": 10000000.0, "rope_type": "default",
                                             "mrope_interleaved": True, "mrope_section": [11, 11, 10],
                                             "partial_rotary_factor": 0.25}},
        # Whole heads are rotated, and each key head serves one value head.
        "qwen3_5_biases_untied": {
            **text, "num_hidden_layers": 3, "attention_bias": True, "partial_rotary_factor": 1.0, "rope_theta": 10000.0,
            "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 8,
            "linear_value_head_dim": 8, "layer_types": ["full_attention", "linear_attention", "full_attention"],
            "tie_word_embeddings": False},
        "qwen3_5_multimodal_tied": {
            "architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
            "text_config": {**text, **heads, "tie_word_embeddings": True, "layer_types": [
                "linear_attention", "full_attention"] * 2}, "tie_word_embeddings": True,
            "vision_config": vision, **images},
    }


def is_exact(name):
    """Files hold these in fp32 beside weights in bfloat16."""
    return name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))


def value_of(name, noise, value):
    """The value of a parameter: `value`, or another for what is a DeltaNet's own. Decays are slow and fast."""
    if name.endswith("A_log"):
        return noise - 1.5
    if name.endswith("conv1d.weight"):
        return noise * 0.5
    return value


def centred_norms(name, model):
    """True for norms by 1 + weight, whose weights lie around 0."""
    return model.config.model_type.startswith(("qwen3_5", "qwen3_next")) and "linear_attn" not in name


def predictor(model):
    """Released files hold what predicts the token after the next, here without some of its parts."""
    hidden = model.config.get_text_config().hidden_size
    return {"mtp.fc.weight": torch.ones(hidden, 2 * hidden, dtype=torch.bfloat16),
            "mtp.norm.weight": torch.zeros(hidden, dtype=torch.bfloat16),
            "mtp.layers.0.self_attn.q_norm.weight": torch.zeros(16, dtype=torch.bfloat16)}
