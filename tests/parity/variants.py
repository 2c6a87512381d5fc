"""Variants of LoRA, and noise on embeddings: what transformers and peft compute with the tiny models of
families.py.

A case names one of those models; tests/parity/README.md lists its files.
"""


import peft
import torch
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file
from transformers.integrations.neftune import neftune_post_forward_hook

import families

# LoRA+: five steps from the bias adapter of the model, A, B and biases trained.
LORAPLUS = {"loraplus": "qwen2_sliding_untied"}
STEPS, RATE, RATIO, DECAY = 5, 1e-3, 8.0, 0.1
# NEFTune: one forward of each model that treats what its embedding gives in another way.
NEFTUNE = {"neftune_plain": "qwen3_tied", "neftune_scaled_before": "gemma3_tied",
           "neftune_scaled_after": "granite_tied", "neftune_positions": "gpt2_untied",
           "neftune_layer_inputs": "gemma4_e_tied"}
ALPHA, JOB_SEED, NOISE_MODULE = 5.0, 42, 1 << 42
WORDS = (1 << 64) - 1
# Adapters of all linears of a model, or of those named, with options of peft's LoraConfig.
ADAPTERS = {
    "whole_untied": ("llama_biases_rope_linear_untied",
                     {"modules_to_save": ["embed_tokens", "lm_head"], "target_modules": ["q_proj", "down_proj"]}),
    "whole_norms": ("qwen3_tied", {"modules_to_save": ["norm"]}),
    "whole_one_norm": ("qwen3_tied", {"modules_to_save": ["k_norm"], "target_modules": ["q_proj"]}),
    "whole_tied": ("llama_rope_llama3_tied",
                   {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    "whole_positions": ("gpt2_untied", {"modules_to_save": ["wpe", "ln_f", "lm_head"], "bias": "lora_only"}),
    "dora": ("llama_biases_rope_linear_untied", {"use_dora": True}),
    "dora_some": ("qwen2_sliding_untied",
                  {"use_dora": True, "use_rslora": True, "target_modules": ["q_proj", "v_proj", "up_proj"]}),
    "dora_merged": ("phi3_untied", {"use_dora": True}),
    "dora_transposed": ("gpt2_tied", {"use_dora": True, "bias": "all"}),
    "dora_post_norms": ("gemma3_tied", {"use_dora": True}),
    "dora_and_whole": ("qwen3_sliding_rope_yarn_untied",
                       {"use_dora": True, "modules_to_save": ["embed_tokens", "lm_head", "norm"]}),
    "ranks": ("qwen3_tied", {
        "rank_pattern": {"q_proj": 2, "^model.layers.1.self_attn.v_proj": 3, "layers.0.mlp.(up|down)_proj": 6, "v_proj": 1},
        "alpha_pattern": {"(q|o)_proj": 10, "k_proj": 50}}),
    "ranks_fused": ("phi3_untied", {"use_rslora": True, "rank_pattern": {"qkv_proj": 2}, "alpha_pattern": {"down_proj": 1.5}}),
    "ranks_dora": ("llama_biases_rope_linear_untied", {
        "use_dora": True, "rank_pattern": {r"layers\.[01]\..*(k|gate)_proj": 2}, "alpha_pattern": {"self_attn.k_proj": 7}}),
    "whole_multimodal": ("gemma3_multimodal_tied",
                         {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
}


def mix_seed(a, b):
    """The engine's MixSeed."""
    z = (a * 0x9E3779B97F4A7C15 + b + 0x9E3779B97F4A7C15) & WORDS
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORDS
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORDS
    return z ^ (z >> 31)


def rows_of(folder, case):
    rows = load_file(folder / case / "rows.safetensors")
    return rows["input_ids"], rows["labels"]


def load(case, folder):
    return families.auto_class(case).from_pretrained(
        folder / case, dtype=torch.float32, attn_implementation="eager").train()


def loraplus(case, folder, out):
    model = load(case, folder)
    wrapped = peft.PeftModel.from_pretrained(model, folder / case / "bias_adapter", is_trainable=True)
    input_ids, labels = rows_of(folder, case)
    optimizer = create_loraplus_optimizer(
        wrapped, torch.optim.AdamW, lr=RATE, loraplus_lr_ratio=RATIO, betas=(0.9, 0.999), eps=1e-8,
        loraplus_weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        losses.append(families.forward_backward(wrapped, input_ids, labels)[1])
        optimizer.step()
    trained = {n.replace(".default.", ".").replace(".base_layer.", "."): p.detach()
               for n, p in wrapped.named_parameters() if p.requires_grad}
    save_file({"losses": torch.stack(losses), **trained}, out)


def neftune(case, folder, out):
    """With transformers' own hook; its generator is seeded as the engine seeds that of step 0."""
    model = load(case, folder)
    embedding = model.get_input_embeddings()
    embedding.neftune_noise_alpha = ALPHA
    embedding.register_forward_hook(neftune_post_forward_hook)
    torch.manual_seed(mix_seed(mix_seed(JOB_SEED, mix_seed(0, 0)), NOISE_MODULE))
    _, loss = families.forward_backward(model, *rows_of(folder, case))
    gradient = {f"grad.{n}": p.grad for n, p in model.named_parameters() if p is embedding.weight}
    save_file({"loss": loss, **gradient}, out)


def away_from_start(name, parameter, generator):
    """Values at which a mistake would show: all start at the base's forward."""
    noise = families.noise_of(parameter.shape, generator)
    if "modules_to_save" in name or "magnitude" in name:
        return parameter * (1 + 0.2 * noise)
    return noise * 0.5 * parameter.shape[-1] ** -0.5


def adapter(name, case, options, folder, out):
    """As families.lora_files: peft's files, and what it computes with them on the model's rows."""
    model = load(case, folder)
    options = {"target_modules": families.linears_of(model), **options}
    wrapped = peft.get_peft_model(model, peft.LoraConfig(
        r=families.LORA_RANK, lora_alpha=families.LORA_ALPHA, lora_dropout=0.0, task_type="CAUSAL_LM",
        fan_in_fan_out=model.config.model_type == "gpt2", **options))
    trained = {n: p for n, p in wrapped.named_parameters() if p.requires_grad}
    generator = families.seeded(name)
    with torch.no_grad():
        for n, parameter in trained.items():
            parameter.copy_(away_from_start(n, parameter, generator))
    logits, loss = families.forward_backward(wrapped, *rows_of(folder, case))
    families.save_adapter(wrapped, out / "adapter")
    names = {n: n.replace(".modules_to_save.", ".").replace("_vector.default.weight", "_vector")
             .replace(".default.", ".").replace(".base_layer.", ".") for n in trained}
    save_file({"logits": logits, "loss": loss,
               **families.gradients((names[n], p) for n, p in trained.items())}, out / "lora.safetensors")


def make(out, goldens):
    torch.set_num_threads(1)
    out.mkdir(parents=True, exist_ok=True)
    for made, cases in ((loraplus, LORAPLUS), (neftune, NEFTUNE)):
        for name, case in cases.items():
            made(case, goldens / "families", out / f"{name}.safetensors")
            print(f"variants/{name}")
    for name, (case, options) in ADAPTERS.items():
        (out / name).mkdir(exist_ok=True)
        adapter(name, case, options, goldens / "families", out / name)
        print(f"variants/{name}")
