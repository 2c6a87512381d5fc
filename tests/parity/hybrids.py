"""Models with gated DeltaNets among their layers: tiny ones, with documents of more than one chunk of 64 tokens."""

import torch

# Of rows, and of the documents of the packed row: chunks that are cut, and one token beyond a chunk.
LENGTHS = {"qwen3_5_tied": 80}
DOCUMENTS = {"qwen3_5_tied": [65, 5, 1, 80]}
# Seeds with which the gradients of decays, sums that mostly cancel, are more than rounding.
SEEDS = {"qwen3_5_tied": "qwen3_5_tied 5", "qwen3_5_multimodal_tied": "qwen3_5_multimodal_tied 3"}
BIAS_CASES = {"qwen3_5_biases_untied": ("all", ["q_proj", "in_proj_z", "out_proj"])}


def cases(shape):
    """The cases, of these sizes where they have none of their own."""
    # Heads of the first tokens are small, and a norm of small rows magnifies rounding: with an epsilon of 1e-5 the
    # reference itself is 1.4e-5 from its gradients in fp64.
    text = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", **shape, "num_hidden_layers": 4,
            "max_position_embeddings": 128, "head_dim": 16, "linear_conv_kernel_dim": 4, "rms_norm_eps": 1e-2}
    heads = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
             "linear_value_head_dim": 6}
    return {
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
            "vision_config": {"model_type": "qwen3_5_vision", "depth": 1, "hidden_size": 16, "intermediate_size": 16,
                              "num_heads": 2, "patch_size": 4, "out_hidden_size": shape["hidden_size"],
                              "num_position_embeddings": 16},
            "image_token_id": 1, "video_token_id": 1, "vision_start_token_id": 1, "vision_end_token_id": 2,
            "torch_dtype": "bfloat16"},
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
    return "qwen3_5" in model.config.model_type and "linear_attn" not in name


def predictor(model):
    """Released files hold what predicts the token after the next, here without some of its parts."""
    hidden = model.config.text_config.hidden_size
    return {"mtp.fc.weight": torch.ones(hidden, 2 * hidden, dtype=torch.bfloat16),
            "mtp.norm.weight": torch.zeros(hidden, dtype=torch.bfloat16),
            "mtp.layers.0.self_attn.q_norm.weight": torch.zeros(16, dtype=torch.bfloat16)}
