"""Mixtures of experts of make_random_model.py: their tensors by the names of published files, and config.json."""

# With matrices that deviate by 0.02 throughout, attention adds to the tokens' embeddings something larger that is nearly
# the same for all of them, and each router sends all tokens to the same experts. So embeddings are larger here, and
# attention picks few tokens.
DEVIATION = 0.02
DEVIATIONS = (("embed_tokens.weight", 1.0), ("q_proj.weight", 0.03), ("k_proj.weight", 0.03))
QUERY_NORM = 4.0


def deviation_of(name):
    """Of a matrix's or stack's values."""
    return next((deviation for end, deviation in DEVIATIONS if name.endswith(end)), DEVIATION)


def norm_of(name):
    return QUERY_NORM if name.endswith("q_norm.weight") else 1.0


def gpt_oss_experts(shape, prefix):
    experts, hidden, inner = shape.experts, shape.hidden, shape.intermediate
    yield prefix + "router.weight", (experts, hidden)
    yield prefix + "router.bias", (experts,)
    for name, outputs, inputs in (("gate_up_proj", 2 * inner, hidden), ("down_proj", hidden, inner)):
        stack = f"{prefix}experts.{name}"
        if shape.mxfp4:
            yield stack + "_blocks", (experts, outputs, inputs // 32, 16)
            yield stack + "_scales", (experts, outputs, inputs // 32)
        else:
            yield stack, (experts, inputs, outputs)
        yield stack + "_bias", (experts, outputs)


def gated_layer(prefix, hidden, inner):
    yield prefix + "gate_proj.weight", (inner, hidden)
    yield prefix + "up_proj.weight", (inner, hidden)
    yield prefix + "down_proj.weight", (hidden, inner)


def moe_feed_forward(shape, layer, prefix):
    if shape.family == "gpt_oss":
        yield from gpt_oss_experts(shape, prefix)
        return
    if layer < shape.dense_layers:
        yield from gated_layer(prefix, shape.hidden, shape.dense_intermediate)
        return
    yield prefix + "gate.weight", (shape.experts, shape.hidden)
    if shape.family == "glm4_moe":
        yield prefix + "gate.e_score_correction_bias", (shape.experts,)
        yield from gated_layer(prefix + "shared_experts.", shape.hidden, shape.intermediate)
    for expert in range(shape.experts):
        yield from gated_layer(f"{prefix}experts.{expert}.", shape.hidden, shape.intermediate)


def shapes(shape):
    """Name and shape of every tensor, in file order."""
    query, key = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (shape.hidden,)
        for name, outputs, inputs in (("q_proj", query, shape.hidden), ("k_proj", key, shape.hidden),
                                      ("v_proj", key, shape.hidden), ("o_proj", shape.hidden, query)):
            yield f"{prefix}self_attn.{name}.weight", (outputs, inputs)
            if shape.family == "gpt_oss" or shape.family == "glm4_moe" and name != "o_proj":
                yield f"{prefix}self_attn.{name}.bias", (outputs,)
        if shape.family == "gpt_oss":
            yield prefix + "self_attn.sinks", (shape.heads,)
        else:
            yield prefix + "self_attn.q_norm.weight", (shape.head_size,)
            yield prefix + "self_attn.k_norm.weight", (shape.head_size,)
        yield prefix + "post_attention_layernorm.weight", (shape.hidden,)
        yield from moe_feed_forward(shape, layer, prefix + "mlp.")
    yield "model.norm.weight", (shape.hidden,)
    yield "lm_head.weight", (shape.vocabulary, shape.hidden)


def config(shape):
    common = {"model_type": shape.family, "torch_dtype": "bfloat16", "hidden_act": "silu", "hidden_size": shape.hidden,
              "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
              "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads, "head_dim": shape.head_size,
              "vocab_size": shape.vocabulary, "tie_word_embeddings": False, "num_experts_per_tok": shape.chosen,
              "attention_dropout": 0.0, "initializer_range": 0.02, "output_router_logits": False, "use_cache": True,
              "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0}
    return common | {"gpt_oss": gpt_oss_config, "qwen3_moe": qwen3_moe_config, "glm4_moe": glm4_moe_config}[
        shape.family](shape)


def gpt_oss_config(shape):
    kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(shape.layers)]
    own = {"architectures": ["GptOssForCausalLM"], "attention_bias": True, "experts_per_token": shape.chosen,
              "num_local_experts": shape.experts, "layer_types": kinds, "sliding_window": 128, "swiglu_limit": 7.0,
              "initial_context_length": 4096, "max_position_embeddings": 131072, "rope_theta": 150000,
              "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
                               "truncate": False, "original_max_position_embeddings": 4096},
              "rms_norm_eps": 1e-5, "router_aux_loss_coef": 0.9}
    if shape.mxfp4:
        own["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": [
            "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    return own


def qwen3_moe_config(shape):
    return {"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "decoder_sparse_step": 1,
            "intermediate_size": 8 * shape.intermediate, "moe_intermediate_size": shape.intermediate,
            "mlp_only_layers": [], "num_experts": shape.experts, "norm_topk_prob": True, "rms_norm_eps": 1e-6,
            "rope_theta": 1e6, "rope_scaling": None, "router_aux_loss_coef": 0.001, "sliding_window": None,
            "use_sliding_window": False, "max_position_embeddings": 40960}


def glm4_moe_config(shape):
    return {"architectures": ["Glm4MoeForCausalLM"], "attention_bias": True, "use_qk_norm": True,
            "intermediate_size": shape.dense_intermediate, "moe_intermediate_size": shape.intermediate,
            "first_k_dense_replace": shape.dense_layers, "n_routed_experts": shape.experts, "n_shared_experts": 1,
            "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
            "partial_rotary_factor": 0.5, "rope_theta": 1e6, "rope_scaling": None, "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072}
