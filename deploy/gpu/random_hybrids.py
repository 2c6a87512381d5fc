"""Models with gated DeltaNets of make_random_model.py: their tensors by the names of published files, and config.json."""

import math

import random_experts

CONVOLUTION = 4


def is_full(shape, layer):
    return layer % shape.interval == shape.interval - 1


def delta_net(shape, prefix):
    keys, values = shape.delta_key_heads * shape.delta_size, shape.delta_value_heads * shape.delta_size
    yield prefix + "A_log", (shape.delta_value_heads,)
    yield prefix + "conv1d.weight", (2 * keys + values, 1, CONVOLUTION)
    yield prefix + "dt_bias", (shape.delta_value_heads,)
    for name, outputs in (("a", shape.delta_value_heads), ("b", shape.delta_value_heads), ("qkv", 2 * keys + values),
                          ("z", values)):
        yield f"{prefix}in_proj_{name}.weight", (outputs, shape.hidden)
    yield prefix + "norm.weight", (shape.delta_size,)
    yield prefix + "out_proj.weight", (shape.hidden, values)


def attention(shape, prefix):
    query, key = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    yield prefix + "q_proj.weight", (2 * query, shape.hidden)  # and the gate of its output
    yield prefix + "k_proj.weight", (key, shape.hidden)
    yield prefix + "v_proj.weight", (key, shape.hidden)
    yield prefix + "o_proj.weight", (shape.hidden, query)
    yield prefix + "q_norm.weight", (shape.head_size,)
    yield prefix + "k_norm.weight", (shape.head_size,)


def shapes(shape):
    """Name and shape of every tensor, in file order."""
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (shape.hidden,)
        if is_full(shape, layer):
            yield from attention(shape, prefix + "self_attn.")
        else:
            yield from delta_net(shape, prefix + "linear_attn.")
        yield prefix + "post_attention_layernorm.weight", (shape.hidden,)
        yield from random_experts.gated_layer(prefix + "mlp.", shape.hidden, shape.intermediate)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocabulary, shape.hidden)


def is_exact(name):
    """Published files hold these in fp32 beside weights in bf16."""
    return name.endswith(("linear_attn.A_log", "linear_attn.norm.weight"))


def vector_of(name):
    """The value of all of a vector's elements. Norms multiply by 1 + weight, but for those of DeltaNets. A state falls
    by half in a few tokens, as with the values that these models are begun with."""
    if name.endswith("A_log"):
        return math.log(0.2)
    if name.endswith(("dt_bias", "linear_attn.norm.weight")):
        return 1.0
    return 0.0


def deviation_of(name):
    """Of a matrix's values."""
    return 0.3 if name.endswith("conv1d.weight") else 0.02


def config(shape):
    kinds = ["full_attention" if is_full(shape, layer) else "linear_attention" for layer in range(shape.layers)]
    return {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "torch_dtype": "bfloat16",
            "hidden_act": "silu", "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.key_heads, "head_dim": shape.head_size, "vocab_size": shape.vocabulary,
            "layer_types": kinds, "full_attention_interval": shape.interval, "attn_output_gate": True,
            "linear_conv_kernel_dim": CONVOLUTION, "linear_num_key_heads": shape.delta_key_heads,
            "linear_num_value_heads": shape.delta_value_heads, "linear_key_head_dim": shape.delta_size,
            "linear_value_head_dim": shape.delta_size, "rms_norm_eps": 1e-6, "attention_bias": False,
            "attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "mamba_ssm_dtype": "float32",
            "rope_parameters": {"rope_theta": 1e7, "rope_type": "default", "mrope_interleaved": True,
                                "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25},
            "max_position_embeddings": 262144, "tie_word_embeddings": shape.tied, "bos_token_id": None,
            "eos_token_id": 2, "pad_token_id": 0}
