"""What files of models have that differs from transformers' parameters at run time, experts aside (experts.py)."""

import torch


def checkpoint_name(name, model):
    """The name in a file, of a parameter's name at run time; the two differ in multimodal models."""
    if not hasattr(model.config, "text_config") or model.config.model_type == "gemma4":
        return name
    for runtime, file in (("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head."),
                          ("model.", "")):
        if name.startswith(runtime):
            return file + name.removeprefix(runtime)
    return name


def unused_weights(model):
    """Released files of Gemma 4's E models hold keys and values of the layers that share, too, which
    nothing reads; those of text-only models that transformers has saved do not."""
    if model.config.model_type != "gemma4":
        return {}
    text = model.config.text_config
    prefix = f"model.language_model.layers.{text.num_hidden_layers - 1}.self_attn."
    return {f"{prefix}k_proj.weight": torch.ones(16, text.hidden_size, dtype=torch.bfloat16),
            f"{prefix}v_proj.weight": torch.ones(16, text.hidden_size, dtype=torch.bfloat16),
            f"{prefix}k_norm.weight": torch.ones(16, dtype=torch.bfloat16)}
