"""What files of models have that differs from transformers' parameters at run time, experts aside (experts.py)."""

import torch

import hybrids


def checkpoint_name(name, model):
    """The name in a file, of a parameter's name at run time; the two differ in multimodal models."""
    if not hasattr(model.config, "text_config") or model.config.model_type in ("gemma4", "qwen3_5", "qwen3_5_moe"):
        return name
    for runtime, file in (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                          ("model.", "")):
        if name.startswith(runtime):
            return file + name.removeprefix(runtime)
    return name


def unused_weights(model):
    """Released files of Gemma 4's E models hold keys and values of the layers that share, too, which
    nothing reads; those of text-only models that transformers has saved do not."""
    if model.config.model_type == "glm4_moe":
        return layer_beyond(model.config)
    if model.config.model_type in ("qwen3_5", "qwen3_5_moe", "qwen3_next"):
        return hybrids.predictor(model)
    if model.config.model_type != "gemma4":
        return {}
    text = model.config.text_config
    prefix = f"model.language_model.layers.{text.num_hidden_layers - 1}.self_attn."
    return {f"{prefix}k_proj.weight": torch.ones(16, text.hidden_size, dtype=torch.bfloat16),
            f"{prefix}v_proj.weight": torch.ones(16, text.hidden_size, dtype=torch.bfloat16),
            f"{prefix}k_norm.weight": torch.ones(16, dtype=torch.bfloat16)}


def layer_beyond(config):
    """Files of GLM-4.5 hold a layer behind the last that predicts further tokens, here without some of its parts."""
    if config.num_nextn_predict_layers == 0:
        return {}
    hidden, size = config.hidden_size, config.moe_intermediate_size
    shapes = {"eh_proj.weight": (hidden, 2 * hidden), "enorm.weight": (hidden,), "hnorm.weight": (hidden,),
              "shared_head.norm.weight": (hidden,), "input_layernorm.weight": (hidden,),
              "self_attn.k_proj.weight": (config.num_key_value_heads * config.head_dim, hidden),
              "mlp.gate.weight": (config.n_routed_experts, hidden),
              "mlp.shared_experts.down_proj.weight": (hidden, size),
              "mlp.experts.0.gate_proj.weight": (size, hidden), "mlp.experts.0.down_proj.weight": (hidden, size)}
    generator = torch.Generator().manual_seed(config.num_hidden_layers)
    prefix = f"model.layers.{config.num_hidden_layers}."
    return {prefix + name: torch.rand(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
