"""Tiny random models of every family, and what transformers and peft compute with them.

One case is one Hugging Face directory with a feature or two that only some checkpoints use. Weights
are drawn from a seed and rounded to bfloat16, so that the stored model is exact and small; all
arithmetic is float32. tests/parity/README.md lists the files of a case.
"""

import copy
import json
import zlib

import peft
import torch
import transformers
from safetensors.torch import save_file

import experts
import family_steps
import hybrids
from file_names import checkpoint_name, unused_weights
from losses import causal_loss

VOCAB = 128
ROWS, LENGTH = 2, 24
# Documents of the packed row: one shorter than the windows, one longer, and one of a single token,
# which has no target at all.
DOCUMENTS = [11, 24, 1, 12]
LORA_RANK, LORA_ALPHA = 4, 8

SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "factor": 2.0}


def llama(**changes):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE, **changes}


def qwen2(**changes):
    return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **SHAPE, **changes}


def qwen3(**changes):
    return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **SHAPE, **changes}


def mistral(**changes):
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral", **SHAPE, **changes}


def granite(**changes):
    return {"architectures": ["GraniteForCausalLM"], "model_type": "granite", **SHAPE,
            "embedding_multiplier": 12.0, "attention_multiplier": 0.0625,
            "residual_multiplier": 0.22, "logits_scaling": 8.0, **changes}


def granite4(**changes):
    """The dense models of Granite 4.0, whose config.json has keys of Mamba layers and experts too."""
    values = granite(**changes) | {"architectures": ["GraniteMoeHybridForCausalLM"],
                                   "model_type": "granitemoehybrid"}
    return values | {"intermediate_size": 40, "shared_intermediate_size": 48, "num_local_experts": 0,
                     "num_experts_per_tok": 0, "layer_types": ["attention"] * 2, "mamba_n_heads": 4,
                     "mamba_d_head": 16, "mamba_d_state": 16}


def smollm3(**changes):
    return {"architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", **SHAPE,
            "num_hidden_layers": 4, **changes}


GEMMA3 = {"num_hidden_layers": 4, "head_dim": 16, "hidden_activation": "gelu_pytorch_tanh",
          "query_pre_attn_scalar": 24, "sliding_window": 8, "pad_token_id": 0}


def gemma3(**changes):
    return {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **SHAPE, **GEMMA3,
            **changes}


# Heads of sliding and full layers differ in size; the cap is one that logits of these weights meet.
GEMMA4 = {"num_hidden_layers": 4, "head_dim": 8, "global_head_dim": 16, "sliding_window": 8,
          "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "pad_token_id": 0,
          "layer_types": ["sliding_attention", "full_attention"] * 2}


def gemma4(**changes):
    return {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", **SHAPE, **GEMMA4,
            **changes}


GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 24}
GEMMA4_IMAGES = {"audio_config": None,
                 "vision_config": {"model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16,
                                   "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
                                   "head_dim": 8, "patch_size": 4, "position_embedding_size": 16},
                 "image_token_id": 1, "boi_token_id": 1, "eoi_token_id": 2, "video_token_id": 1,
                 "audio_token_id": 1, "torch_dtype": "bfloat16"}


# The last three layers attend to keys and values of layers 1 and 2.
GEMMA4_E = {"num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
            "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "final_logit_softcapping": 3.0,
            "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB}


def olmo2(**changes):
    return {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", **SHAPE,
            "pad_token_id": None, **changes}


def olmo3(**changes):
    return {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", **SHAPE,
            "num_hidden_layers": 4, "pad_token_id": None, "sliding_window": 8, **changes}


# Positions beyond 8 are those that scale queries.
MINISTRAL3 = {"head_dim": 16, "pad_token_id": None,
              "rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0,
                                  "original_max_position_embeddings": 8, "mscale": 1.0,
                                  "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.5}}


# As Ministral 8B, whose file says "mistral" beside its layer_types (model_config_test.cc).
def ministral(**changes):
    return {"architectures": ["MinistralForCausalLM"], "model_type": "ministral", **SHAPE,
            "num_hidden_layers": 4, "sliding_window": 8, **changes}


def ministral3(**changes):
    return {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3", **SHAPE,
            **MINISTRAL3, **changes}


def phi3(**changes):
    return {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **SHAPE, "pad_token_id": None,
            "sliding_window": None, **changes}


# Documents of more than 16 tokens turn at the long factors.
LONGROPE = {"type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1.5, 4.0]}
def gpt2(**changes):
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 2,
            "n_head": 4, "n_positions": 32, "vocab_size": VOCAB, "activation_function": "gelu_new",
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "torch_dtype": "bfloat16",
            "bos_token_id": 1, "eos_token_id": 2, **changes}


VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}

# Both spellings of the rotary settings are in use: rope_theta with rope_scaling (most published
# checkpoints) and rope_parameters (what transformers 5 writes).
CASES = {
    "llama_rope_llama3_tied": llama(
        head_dim=16, rope_theta=10000.0, rope_scaling=LLAMA3, tie_word_embeddings=True),
    "llama_biases_rope_linear_untied": llama(
        attention_bias=True, mlp_bias=True, rope_theta=10000.0, rope_scaling=LINEAR,
        tie_word_embeddings=False),
    "qwen2_sliding_untied": qwen2(
        rope_theta=1000000.0, use_sliding_window=True, sliding_window=8, max_window_layers=1,
        tie_word_embeddings=False),
    "qwen2_rope_yarn_tied": qwen2(
        rope_parameters={"rope_theta": 10000.0, **YARN}, use_sliding_window=False,
        layer_types=["full_attention", "full_attention"], tie_word_embeddings=True),
    "qwen3_tied": qwen3(
        head_dim=16, rope_theta=1000000.0, tie_word_embeddings=True),
    "qwen3_sliding_rope_yarn_untied": qwen3(
        head_dim=16, rope_parameters={"rope_theta": 10000.0, **YARN}, attention_bias=True,
        use_sliding_window=True, sliding_window=8, max_window_layers=0,
        layer_types=["sliding_attention", "full_attention"], tie_word_embeddings=False),
    "mistral_sliding_untied": mistral(
        head_dim=16, sliding_window=8, rope_theta=10000.0, tie_word_embeddings=False),
    "mistral_rope_linear_tied": mistral(
        sliding_window=None, rope_parameters={"rope_theta": 10000.0, **LINEAR},
        tie_word_embeddings=True),
    "granite_tied": granite(rope_theta=10000.0, tie_word_embeddings=True),
    "granite_biases_untied": granite(
        attention_bias=True, mlp_bias=True, head_dim=8, attention_multiplier=0.3,
        residual_multiplier=1.5, rope_parameters={"rope_theta": 5000000.0, "rope_type": "default"},
        tie_word_embeddings=False),
    "granite4_tied": granite4(
        position_embedding_type="rope", rope_theta=10000.0, tie_word_embeddings=True),
    # No positions, so no biases: see smollm3_sliding_untied.
    "granite4_nope_untied": granite4(position_embedding_type="nope", tie_word_embeddings=False),
    "smollm3_tied": smollm3(
        no_rope_layers=None, no_rope_layer_interval=2, pad_token_id=None,
        rope_parameters={"rope_theta": 5000000.0, "rope_type": "default"},
        tie_word_embeddings=True),
    # No biases of attention: without positions a key's bias moves all scores of a query alike, so its
    # gradient is zero, and rounding all that could be compared.
    "smollm3_sliding_untied": smollm3(
        no_rope_layers=[1, 0, 0, 1], mlp_bias=True, use_sliding_window=True,
        sliding_window=8, pad_token_id=None, rope_theta=10000.0, tie_word_embeddings=False),
    # The base beside the scaling is the one that counts.
    "gemma3_tied": gemma3(
        sliding_window_pattern=2, rope_theta=1000000.0, rope_local_base_freq=10000.0,
        rope_scaling={**LINEAR, "rope_theta": 10000.0}, tie_word_embeddings=True),
    "gemma3_biases_untied": gemma3(
        attention_bias=True, tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
        rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 50000.0},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}),
    # The text part of a model that sees images too.
    "gemma3_multimodal_tied": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
        "text_config": gemma3(sliding_window_pattern=2), "tie_word_embeddings": True,
        "vision_config": {"model_type": "siglip_vision_model", **VISION}, "mm_tokens_per_image": 4,
        "image_token_index": 1, "boi_token_index": 1, "eoi_token_index": 2,
        "torch_dtype": "bfloat16"},
    "gemma4_tied": gemma4(
        attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=3.0),
    # As transformers 5.17 writes the sizes of full layers, whose values have a projection here.
    "gemma4_biases_untied": gemma4(
        attention_bias=True, tie_word_embeddings=False,
        per_layer_config={str(layer): {"head_dim": 16, "num_key_value_heads": 4}
                          for layer in (1, 3)},
        rope_parameters={"full_attention": {"rope_type": "proportional", "rope_theta": 50000.0,
                                            "partial_rotary_factor": 0.5},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0}}),
    "gemma4_e_tied": gemma4(**GEMMA4_E),
    # Layers without inputs of their own share keys, and keys are values where there are keys.
    "gemma4_shared_untied": gemma4(**GEMMA4_E | {
        "hidden_size_per_layer_input": 0, "use_double_wide_mlp": False,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "tie_word_embeddings": False}),
    "gemma4_multimodal_tied": {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "text_config": gemma4(**GEMMA4_E | {"use_double_wide_mlp": False}),
        "tie_word_embeddings": True, **GEMMA4_IMAGES},
    # As the 26B, whose layers have experts beside their feed-forward layer.
    "gemma4_moe_tied": gemma4(
        **GEMMA4_MOE, attention_k_eq_v=True, num_global_key_value_heads=1, final_logit_softcapping=3.0),
    # The last layers attend to keys of others, and their dense part is wider; no released model has this.
    "gemma4_moe_multimodal_tied": {
        "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
        "text_config": gemma4(**GEMMA4_MOE | {
            "num_experts": 5, "top_k_experts": 3, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
        "tie_word_embeddings": True, **GEMMA4_IMAGES},
    "olmo2_untied": olmo2(rope_theta=500000.0, tie_word_embeddings=False),
    "olmo2_biases_tied": olmo2(
        attention_bias=True, num_key_value_heads=4, tie_word_embeddings=True,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "default"}),
    "olmo3_untied": olmo3(
        tie_word_embeddings=False,
        rope_parameters={"full_attention": {"rope_theta": 500000.0, **YARN},
                         "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0}}),
    "olmo3_tied": olmo3(
        rope_theta=40000.0, rope_scaling=YARN, tie_word_embeddings=True,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
    "phi3_untied": phi3(rope_theta=10000.0, sliding_window=8, tie_word_embeddings=False),
    "phi3_longrope_partial_tied": phi3(
        rope_theta=10000.0, partial_rotary_factor=0.5, rope_scaling=LONGROPE,
        original_max_position_embeddings=16, tie_word_embeddings=True),
    "gpt2_tied": gpt2(n_inner=48, tie_word_embeddings=True),
    "gpt2_untied": gpt2(n_inner=None, tie_word_embeddings=False, scale_attn_weights=False),
    "ministral_untied": ministral(
        head_dim=16, rope_theta=10000.0, tie_word_embeddings=False,
        layer_types=["full_attention", "sliding_attention", "sliding_attention", "full_attention"]),
    # Of an odd part of each head an element more turns.
    "phi3_odd_part_untied": phi3(
        hidden_size=40, rope_theta=10000.0, partial_rotary_factor=0.5, tie_word_embeddings=False),
    "ministral3_untied": ministral3(tie_word_embeddings=False),
    "mistral3_multimodal_untied": {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": ministral3(tie_word_embeddings=False), "tie_word_embeddings": False,
        "vision_config": {"model_type": "pixtral", "head_dim": 8, **VISION},
        "image_token_index": 1, "spatial_merge_size": 2, "torch_dtype": "bfloat16"},
    **experts.cases(SHAPE),
    **hybrids.cases(SHAPE),
}
EAGER = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
# One of each family; the packed files are as large as the models.
PACKED_CASES = {"llama_rope_llama3_tied", "qwen2_sliding_untied", "qwen3_tied",
                "mistral_sliding_untied", "granite_tied", "granite4_tied", "smollm3_sliding_untied", "gemma3_tied",
                "gemma4_tied", "gemma4_e_tied", "gemma4_moe_tied", "olmo2_untied", "olmo3_untied", "ministral3_untied",
                "phi3_longrope_partial_tied",
                "gpt2_tied", "qwen3_moe", "glm4_moe", "mixtral", "gpt_oss", "qwen3_5_tied", "qwen3_5_moe", "qwen3_next"}
# Adapters that train biases too: which of them, and beside which linears.
BIAS_CASES = {"qwen2_sliding_untied": ("lora_only", ["q_proj", "v_proj", "down_proj"]),
              "llama_biases_rope_linear_untied": ("all", ["q_proj", "gate_proj", "up_proj", "down_proj"]),
              "gpt2_tied": ("all", ["c_attn", "c_fc"]),
              "gpt_oss": ("all", ["q_proj", "o_proj"]), **hybrids.BIAS_CASES}
# Written as two files with an index, as large checkpoints are.
SHARDED_CASE = "qwen3_sliding_rope_yarn_untied"


def seeded(name):
    """A generator of this case's own, so that adding a case leaves the others as they are."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def noise_of(shape, generator):
    """Uniform, of variance 1. Not normal: torch draws that with the processor's own log and cos."""
    return (torch.rand(shape, generator=generator) - 0.5) * 12**0.5


def randomize(model, generator):
    """Every parameter away from the values at which a mistake could hide (zero, one)."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = noise_of(parameter.shape, generator)
            if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight")):
                centred = "gemma3" in model.config.model_type or hybrids.centred_norms(name, model)
                value = (0 if centred else 1) + 0.3 * noise
                # Of Gemma 4's, these two kinds have the scale of the scores in them, and the third is
                # of rows that are small. With weights around 1 the reference itself is 3e-5 from its
                # gradients in fp64.
                if "gemma4" in model.config.model_type and name.endswith(
                        ("q_norm.weight", "k_norm.weight", "per_layer_input_norm.weight")):
                    value *= 0.4
            elif name.endswith("sinks"):
                value = noise
            elif name.endswith(("router.scale", "router.per_expert_scale")):
                value = 1 + 0.3 * noise
            elif name.endswith("bias"):
                value = 0.3 * noise
            elif "embed_tokens" in name or "wte" in name or "wpe" in name:
                value = 0.5 * noise
            elif parameter.dim() < 2:
                value = 0.3 * noise
            else:
                value = noise * parameter.shape[experts.fan_in_dimension(name, model)] ** -0.5
            value = hybrids.value_of(name, noise, value)
            parameter.copy_(value if hybrids.is_exact(name) else value.to(torch.bfloat16))
        for name, buffer in model.named_buffers():
            if name.endswith("layer_scalar"):
                buffer.copy_((1 + 0.3 * noise_of(buffer.shape, generator)).to(torch.bfloat16))
            elif name.endswith("e_score_correction_bias"):
                buffer.copy_(0.2 * noise_of(buffer.shape, generator))


def stored_tensors(model):
    """Parameters and stored constants by name, a tied head once, as checkpoints have them."""
    tensors = dict(model.named_parameters())
    stored = model.state_dict()
    tensors |= {n: b for n, b in model.named_buffers() if n in stored}
    return tensors


def auto_class(name):
    """Multimodal models have a class of their own, which for some is the only one."""
    multimodal = "text_config" in CASES[name]
    return transformers.AutoModelForImageTextToText if multimodal else transformers.AutoModelForCausalLM


def build(name):
    """The model of a case, in float32, and its case's generator."""
    generator = seeded(experts.SEEDS.get(name, name))
    values = copy.deepcopy(CASES[name])  # transformers writes into it
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = auto_class(name).from_config(config, **EAGER)
    randomize(model, generator)
    with torch.no_grad():
        experts.prepare(name, model)
    return model.train(), generator


def save_weights(weights, folder, shards):
    names = sorted(weights)
    if shards == 1:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        return
    where = {name: f"model-{1 + i * shards // len(names):05}-of-{shards:05}.safetensors"
             for i, name in enumerate(names)}
    for file in sorted(set(where.values())):
        save_file({name: weights[name] for name in names if where[name] == file}, folder / file,
                  metadata={"format": "pt"})
    size = sum(w.numel() * w.element_size() for w in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def type_in_files(name):
    return torch.float32 if hybrids.is_exact(name) else experts.type_in_files(name)


def save_model(name, model, folder):
    (folder / "config.json").write_text(json.dumps(CASES[name], indent=2) + "\n")
    weights = {checkpoint_name(n, model): p.detach().to(type_in_files(n)).contiguous()
               for n, p in stored_tensors(model).items()}
    weights |= unused_weights(model)
    save_weights(experts.in_files(weights, model), folder, 2 if name == SHARDED_CASE else 1)


def random_tokens(shape, generator):
    return torch.randint(3, VOCAB, shape, generator=generator)


def gradients(module_parameters):
    # A vision tower has none.
    return {f"grad.{n}": p.grad.detach().clone() for n, p in module_parameters if p.grad is not None}


def forward_backward(model, input_ids, labels):
    model.zero_grad(set_to_none=True)
    logits = model(input_ids=input_ids).logits
    loss = causal_loss(logits, labels)
    loss.backward()
    return logits.detach(), loss.detach()


def rows_file(model, generator, path, length):
    """Two rows; the second begins with masked labels, so that counts differ between rows."""
    input_ids = random_tokens((ROWS, length), generator)
    labels = input_ids.clone()
    labels[1, :9] = -100
    logits, loss = forward_backward(model, input_ids, labels)
    save_file({"input_ids": input_ids, "labels": labels, "logits": logits, "loss": loss,
               **gradients(model.named_parameters())}, path)
    return input_ids, labels


def packed_file(model, generator, path, lengths):
    """Documents computed one by one, to be compared with one packed row of them."""
    documents = [random_tokens((1, length), generator) for length in lengths]
    targets = sum(length - 1 for length in lengths)
    model.zero_grad(set_to_none=True)
    total = torch.zeros(())
    for document in documents:
        if document.shape[1] > 1:
            logits = model(input_ids=document).logits
            loss = causal_loss(logits, document, reduction="sum") / targets
            loss.backward()
            total += loss.detach()
    labels = [torch.cat([torch.tensor([-100]), d[0, 1:]]) for d in documents]
    save_file({
        "document_lengths": torch.tensor(lengths),
        "input_ids": torch.cat(documents, dim=1)[0],
        "labels": torch.cat(labels),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "loss": total,
        **gradients(model.named_parameters()),
    }, path)


def save_adapter(wrapped, folder):
    """peft's own files, but with the modules in one order (it keeps them as a set)."""
    wrapped.save_pretrained(folder)
    (folder / "README.md").unlink()
    config = json.loads((folder / "adapter_config.json").read_text())
    if isinstance(config["target_modules"], list):
        config["target_modules"].sort()
    config["base_model_name_or_path"] = None
    if config["modules_to_save"]:
        config["modules_to_save"].sort()
    if config["target_parameters"]:
        config["target_parameters"].sort()
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")


def linears_of(model):
    """The last names of the linears of the decoder's blocks; a router is none."""
    names = {n.rpartition(".")[2] for n, m in model.named_modules() if ("layers." in n or ".h." in n)
             and "vision" not in n and not n.endswith("router.proj")
             and isinstance(m, (torch.nn.Linear, transformers.pytorch_utils.Conv1D))}
    return sorted(names)


def targets_of(model):
    """All linears of the decoder's blocks. Gemma 4's vision tower has modules of the same names that
    PEFT cannot adapt, so that a pattern is needed."""
    names = linears_of(model)
    if experts.parameters_of(model):
        names = [name for name in names if name not in experts.OF_PARAMETERS]
    if model.config.model_type != "gemma4":
        return names
    return r".*language_model\..*\.(" + "|".join(names) + ")"


def lora_files(model, generator, input_ids, labels, folder, name="lora", bias="none",
               targets=None, parameters=None, rank=LORA_RANK):
    """A PEFT adapter with B away from zero, and its gradients on the same rows."""
    if targets is None:
        targets, parameters = targets_of(model), experts.parameters_of(model)
    config = peft.LoraConfig(r=rank, lora_alpha=LORA_ALPHA,
                             target_modules=targets, target_parameters=parameters,
                             fan_in_fan_out=model.config.model_type == "gpt2",
                             lora_dropout=0.0, bias=bias, task_type="CAUSAL_LM")
    wrapped = peft.get_peft_model(model, config)
    trained = {n: p for n, p in wrapped.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in trained.values():
            noise = noise_of(parameter.shape, generator)
            parameter.copy_(noise * 0.5 * parameter.shape[-1] ** -0.5)
    save_adapter(wrapped, folder / ("adapter" if name == "lora" else f"{name}_adapter"))
    adapted_file(wrapped, input_ids, labels, folder / f"{name}.safetensors")
    return wrapped


def adapted_file(wrapped, input_ids, labels, path):
    """What a model with an adapter computes, and the gradients of all that is trained."""
    trained = [n for n, p in wrapped.named_parameters() if p.requires_grad]
    logits, loss = forward_backward(wrapped, input_ids, labels)
    # Without peft's own name for the adapter, and biases where the model has them.
    names = {n: n.replace(".default.", ".") for n in trained}
    names |= {n: n.replace(".base_layer.", ".") for n in trained if "lora_" not in n}
    save_file({"logits": logits, "loss": loss,
               **gradients((names[n], p) for n, p in wrapped.named_parameters() if n in names)}, path)


def make_case(name, folder):
    folder.mkdir(parents=True)
    model, generator = build(name)
    save_model(name, model, folder)
    rank = experts.RANKS.get(name, LORA_RANK)
    with experts.Choices() as choices:
        input_ids, labels = rows_file(model, generator, folder / "rows.safetensors",
                                      hybrids.LENGTHS.get(name, LENGTH))
        if name in PACKED_CASES:
            packed_file(model, generator, folder / "packed.safetensors", hybrids.DOCUMENTS.get(name, DOCUMENTS))
        lora_files(model, generator, input_ids, labels, folder, rank=rank)
        family_steps.make(lambda: build(name)[0], linears_of(build(name)[0]), input_ids, labels, folder)
        if name in BIAS_CASES:
            bias, targets = BIAS_CASES[name]
            lora_files(build(name)[0], seeded(f"{name} bias"), input_ids, labels, folder, "bias", bias,
                       targets)
        if name in experts.SOME:
            lora_files(build(name)[0], seeded(f"{name} some"), input_ids, labels, folder, "some", "none",
                       *experts.SOME[name], rank=rank)
    experts.check_choices(name, model, choices)


def check_loads(name, folder):
    """The files written are the model computed with: transformers reads them back to equal logits."""
    import safetensors.torch

    model = auto_class(name).from_pretrained(folder, **EAGER)
    expected = safetensors.torch.load_file(folder / "rows.safetensors")
    logits = model(input_ids=expected["input_ids"]).logits.detach()
    if not torch.equal(logits, expected["logits"]):
        raise AssertionError(f"{name}: the saved model does not give the saved logits")
    experts.check_files(name, model, folder)


def make(out):
    torch.set_num_threads(1)
    for name in CASES:
        make_case(name, out / name)
        check_loads(name, out / name)
        print(f"families/{name}")
