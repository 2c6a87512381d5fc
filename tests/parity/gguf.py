#!/usr/bin/env python3
"""Exports models through sft-rank and holds what llama.cpp and transformers make of the files against each other:
the probabilities after hundreds of tokens of a long text, and the tokens of mixed texts. A greedy answer would not
see a wrong rope, cut or special token.

    gguf.py --bin FOLDER [--model build/demo/model] [--only CASE...]

Needs deploy/requirements/parity.txt, and llama.cpp as deploy/bootstrap --parity installs it where there is Node.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import peft
import safetensors.torch
import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMA_CPP = pathlib.Path(os.environ.get("SFT_DEPS_DIR", ROOT / "build/deps")) / "llama_cpp"
SKIPPED, LIMIT_S = 77, 1800
POSITIONS = 64  # at which probabilities are compared
# Mean and largest difference of the logarithm of a probability, over tokens more likely than LEAST, of all models.
TOLERANCE = {"f32": (1e-3, 1e-2), "bf16": (2e-2, 0.3), "q8_0": (0.2, 2.5)}  # it rounds activations, too
LEAST = 1e-5
TEXTS = ["Hello world", " leading space", "tabs\tand\nnewlines\n\n\n", "1234567890 3.14 1,000", "don't I'll WE'RE",
         "naïve café Übergröße", "東京タワーは高い。", "한국어 텍스트", "مرحبا بالعالم", "🙂🙃 👩‍👩‍👧", "def f(x):\n    return x ** 2\n",
         "<|im_start|>user\nhi<|im_end|>", "a  b   c    d", "\u00a0nbsp", "x=1;y=2;z=x+y", "ALLCAPS CamelCase snake_case", "a\n\n\n\n\nb \n \n", ""]
LLAMA3_CUT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
              r"\s+(?!\S)|\s+")
WORDS_BY_CASE = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                 r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
                 r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TINY = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 640, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
        "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.08}
GEMMA4 = {"head_dim": 32, "global_head_dim": 64, "sliding_window": 64, "final_logit_softcapping": 3.0, "pad_token_id": 0,
          "bos_token_id": 2, "tie_word_embeddings": True, "rope_parameters": {
              "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
              "full_attention": {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}}}
# Families with what is theirs: the class of the configuration, more of it, and how text is cut.
FAMILIES = {
    "llama3": ("LlamaConfig", {"head_dim": 32, "rope_theta": 50000.0, "tie_word_embeddings": True, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128}}, "llama-bpe"),
    "llama_biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True, "rope_scaling": {
        "rope_type": "linear", "factor": 4.0}}, "smollm"),
    "mistral": ("MistralConfig", {"sliding_window": None}, "gpt-2"),
    "mistral3": ("MistralConfig", {"sliding_window": None, "head_dim": 32}, "gpt-2"),
    "qwen2": ("Qwen2Config", {"rope_theta": 1000000.0}, "qwen2"),
    "qwen3": ("Qwen3Config", {"head_dim": 32, "rope_theta": 1000000.0}, "qwen2"),
    "qwen3_moe": ("Qwen3MoeConfig", {"head_dim": 32, "rope_theta": 1000000.0, "num_experts": 6, "num_experts_per_tok": 2,
                                     "moe_intermediate_size": 96, "norm_topk_prob": True}, "qwen2"),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}, "gpt-2"),
    # Longer than the window. Released models have borders of yarn's ramp that llama.cpp rounds, so here they are rounded.
    "gpt_oss": ("GptOssConfig", {
        "num_hidden_layers": 4, "head_dim": 32, "num_local_experts": 6, "num_experts_per_tok": 2, "sliding_window": 64,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "tie_word_embeddings": False, "pad_token_id": None,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 8.0, "truncate": True,
                            "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}}, "gpt-4o"),
    "mistral_pieces": ("MistralConfig", {"sliding_window": None}, "pieces"),
    "granite": ("GraniteConfig", {"embedding_multiplier": 12.0, "attention_multiplier": 0.05, "residual_multiplier": 0.22,
                                  "logits_scaling": 2.0, "attention_bias": True, "tie_word_embeddings": True}, "smollm"),
    "granite4": ("GraniteMoeHybridConfig", {
        "embedding_multiplier": 12.0, "attention_multiplier": 0.05, "residual_multiplier": 0.22, "logits_scaling": 2.0,
        "shared_intermediate_size": 160, "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention"] * 3,
        "position_embedding_type": "rope", "rope_theta": 50000.0, "tie_word_embeddings": True, "pad_token_id": None}, "dbrx"),
    # The same without positions.
    "granite4_nope": ("GraniteMoeHybridConfig", {
        "embedding_multiplier": 6.0, "attention_multiplier": 0.1, "residual_multiplier": 0.4, "logits_scaling": 3.0,
        "shared_intermediate_size": 96, "num_local_experts": 0, "num_experts_per_tok": 0, "layer_types": ["attention"] * 3,
        "position_embedding_type": "nope", "tie_word_embeddings": False, "pad_token_id": None}, "dbrx"),
    # Longer than the positions behind which queries grow.
    "ministral3": ("Ministral3Config", {"head_dim": 32, "sliding_window": None, "pad_token_id": None, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1000000.0, "factor": 8.0, "original_max_position_embeddings": 128, "mscale": 1.0,
        "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "llama_4_scaling_beta": 0.1}}, "qwen2"),
    "smollm3": ("SmolLM3Config", {"num_hidden_layers": 5, "rope_theta": 5000000.0, "no_rope_layer_interval": 4,
                                  "pad_token_id": None}, "llama-bpe"),
    "olmo2": ("Olmo2Config", {"rope_theta": 500000.0, "pad_token_id": None}, "dbrx"),
    # Longer than the window and than the positions that its rope was made for.
    "olmo3": ("Olmo3Config", {
        "num_hidden_layers": 5, "pad_token_id": None, "sliding_window": 64, "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 500000.0, "factor": 8.0, "attention_factor": 1.3,
                               "original_max_position_embeddings": 128, "beta_fast": 32.0, "beta_slow": 1.0}}}, "dbrx"),
    "phi3": ("Phi3Config", {"pad_token_id": None, "sliding_window": None}, "pieces"),
    # Longer than the frequencies were made for: others count then.
    "phi4_mini": ("Phi3Config", {
        "partial_rotary_factor": 0.75, "pad_token_id": None, "original_max_position_embeddings": 256,
        "tie_word_embeddings": True, "sliding_window": None, "rope_scaling": {
            "type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5, 2.0, 3.0],
            "long_factor": [1.0, 2.0, 4.0, 8.0, 12.0, 16.0]}}, "gpt-4o"),
    "gemma3": ("Gemma3TextConfig", {
        "num_hidden_layers": 8, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 64, "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "pad_token_id": 0,
        "bos_token_id": 2, "tie_word_embeddings": True}, "gemma"),
    # As the 31B: full layers with heads of their own size, whose keys are their values.
    "gemma4": ("Gemma4TextConfig", {
        **GEMMA4, "num_hidden_layers": 6, "layer_types": (["sliding_attention"] * 2 + ["full_attention"]) * 2,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0}, "gemma4"),
    # As E2B: the last four layers use the keys of the two before, with wider feed-forward layers; all have inputs of their own.
    "gemma4_e": ("Gemma4TextConfig", {
        **GEMMA4, "num_hidden_layers": 8, "layer_types": ["sliding_attention", "full_attention"] * 4,
        "num_kv_shared_layers": 4, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": 640}, "gemma4"),
    # As 26B: experts beside each feed-forward layer.
    "gemma4_moe": ("Gemma4TextConfig", {
        **GEMMA4, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0,
        "enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 96}, "gemma4"),
    "gpt2": ("GPT2Config", {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 1024, "n_inner": None}, "gpt-2"),
}


# So that no rounding of q8_0 gives many tokens other experts.
ROUTERS, ROUTER_SCALE = ("mlp.gate.weight", "mlp.router.weight", "router.proj.weight"), 4


def long_text():
    """Prose, code, numbers and other scripts."""
    rows = (ROOT / "deploy/demo/train.jsonl").read_text().splitlines()[:12]
    code = (ROOT / "tests/e2e/tiny_model.py").read_text()[:1200]
    return "\n".join([*rows[:6], code, " ".join(TEXTS), *rows[6:]])


def byte_tokenizer(cut, folder):
    """Byte-level BPE learnt from this repository's texts, cut as a family's is."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(ignore_merges=cut == "llama-bpe"))
    split = {"llama-bpe": LLAMA3_CUT, "dbrx": LLAMA3_CUT, "gpt-4o": WORDS_BY_CASE, "qwen2": LLAMA3_CUT.replace(r"\p{N}{1,3}", r"\p{N}")}
    if cut in split:
        parts = [pre_tokenizers.Split(Regex(split[cut]), "isolated"),
                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    elif cut == "smollm":
        parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        parts = []
    tokenizer.pre_tokenizer = (pre_tokenizers.Sequence(parts) if parts
                               else pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<s>", "<|im_end|>", "<|im_start|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([long_text()], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"}))


def piece_tokenizer(kind, folder):
    """A SentencePiece model learnt from the same texts, as Gemma's or Llama's."""
    import sentencepiece

    (folder / "text").write_text(long_text())
    own = {"add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "pad_piece": "<pad>",
           "eos_piece": "<eos>", "bos_piece": "<bos>",
           "user_defined_symbols": ["<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "\t", "▁▁", "▁▁▁"]}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), vocab_size=630, model_type="bpe",
        byte_fallback=True, split_digits=True, remove_extra_whitespaces=False, character_coverage=0.99,
        normalization_rule_name="identity", allow_whitespace_only_pieces=True, minloglevel=2,
        **(own if kind.startswith("gemma") else {}))
    named = {"tokenizer_class": "GemmaTokenizer", "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"}
    if kind == "pieces":  # as in the tokenizer.json of Llama 2
        from tokenizers import normalizers

        model = transformers.LlamaTokenizer.from_pretrained(folder)
        model.backend_tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        model.backend_tokenizer.pre_tokenizer = None
        model.backend_tokenizer.save(str(folder / "tokenizer.json"))
        named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    if kind == "gemma4":  # which has a tokenizer.json alone
        model = transformers.GemmaTokenizer.from_pretrained(folder)
        model.backend_tokenizer.save(str(folder / "tokenizer.json"))
        named["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps({
        **named, "unk_token": "<unk>", "add_bos_token": True,
        "chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"}))


def tiny_model(name, folder):
    kind, more, cut = FAMILIES[name]
    torch.manual_seed(11)
    config = getattr(transformers, kind)(**({**TINY, **more} if name != "gpt2" else {
        **more, "vocab_size": 640, "bos_token_id": 0, "eos_token_id": 1, "initializer_range": 0.08}))
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key.endswith("bias"):
                value.normal_(0, 0.1)
            elif key.endswith("sinks"):
                value.normal_(0, 1)
            elif key.endswith(ROUTERS):
                value.mul_(ROUTER_SCALE)
            elif "norm" in key or "ln_" in key or key.endswith("_scale") or key.endswith("router.scale"):
                value.normal_(0 if name == "gemma3" else 1, 0.1)  # Gemma's are one more
                if name.startswith("gemma4") and "k_norm" in key:
                    value.mul_(0.2)  # scores have no scale of their own: the norms have learnt it
        for key, value in model.named_buffers():
            if key.endswith("layer_scalar"):
                value.fill_(0.8)
    model.to(torch.bfloat16).save_pretrained(folder)
    if cut in ("pieces", "gemma", "gemma4"):
        piece_tokenizer(cut, folder)
    else:
        byte_tokenizer(cut, folder)
    return folder


# Decoders that are written as a part of a multimodal model: its names, and how it names their tensors.
WRAPPED = {"mistral3": ("Mistral3ForConditionalGeneration", "mistral3", "pixtral", "language_model."),
           "gemma4_e": ("Gemma4ForConditionalGeneration", "gemma4", "gemma4_vision", "model.language_model.")}


def wrapped(name, model, folder):
    """The same weights as the multimodal model keeps those of its decoder."""
    architecture, kind, vision, prefix = WRAPPED[name]
    shutil.copytree(model, folder)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({
        "architectures": [architecture], "model_type": kind, "text_config": config, "vision_config": {"model_type": vision},
        "tie_word_embeddings": config["tie_word_embeddings"]}))
    weights = safetensors.torch.load_file(model / "model.safetensors")
    safetensors.torch.save_file(
        {prefix + (name.removeprefix("model.") if prefix.startswith("model.") else name): value for name, value in weights.items()},
        folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=LIMIT_S,
                            check=False, **options)
    if result.returncode != 0:
        sys.exit(f"gguf: {command[0]} {command[1]} ended with {result.returncode}:\n"
                 f"{result.stdout[-1000:]}{result.stderr[-2000:]}")
    return result.stdout


def export(program, model, kind, folder, adapter=None):
    """The folder that a job of kind "export" delivers."""
    folder.mkdir(parents=True)
    launch = folder / "launch.json"
    launch.write_text(json.dumps({
        "attempt_uid": "parity", "epoch": 1, "job_id": "parity", "job_json": json.dumps({
            "job": {"kind": "export", "model": "model", "adapter": str(adapter or "")},
            "compute": {"gpu_type": "CPU", "variant": "CPU-1x"}, "export": {"form": "gguf", "type": kind}}),
        "world_size": 1, "first_rank": 0, "local_ranks": 1, "device": "cpu", "threads_per_rank": 2,
        "model_dir": str(model), "model_name": "org/model", "adapter_dir": str(adapter or ""), "val_file": "",
        "train_file": str(ROOT / "deploy/demo/train.jsonl") if adapter else "", "cache_dir": str(folder / "cache"),
        "attempt_dir": str(folder), "output_dir": str(folder / "output")}))
    run(program, "prepare", "--launch", launch)
    run(program, "export", "--launch", launch, "--rank", 0)
    return folder / "output"


def tokenizer_of(model):
    if (model / "tokenizer.json").exists():
        return transformers.PreTrainedTokenizerFast.from_pretrained(model)
    named = json.loads((model / "tokenizer_config.json").read_text())["tokenizer_class"]
    return getattr(transformers, named).from_pretrained(model)


def is_mixture(model):
    return any("experts" in name for name, _ in model.named_modules())


def with_adapter(base, adapter):
    """The base with peft's adapter. Of a mixture with the adapter merged: what its rounding is apart would choose other
    experts for some token."""
    adapted = peft.PeftModel.from_pretrained(base, adapter)
    return (adapted.merge_and_unload() if is_mixture(base) else adapted).eval()


def adapter_of(model, folder):
    """PEFT's, on every linear of the layers, with second factors that are not zero. Of a mixture on
    attention alone: all-linear would take the router."""
    base = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"] if is_mixture(base) else "all-linear"
    adapted = peft.get_peft_model(base, peft.LoraConfig(r=4, lora_alpha=8, target_modules=targets, task_type="CAUSAL_LM",
                                                      exclude_modules=["per_layer_model_projection"]))
    torch.manual_seed(11)
    for name, value in adapted.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(value, std=0.05)
    adapted.peft_config["default"].base_model_name_or_path = "org/model"
    adapted.save_pretrained(folder)
    return folder


def compare(name, model, gguf, kind, tokens, adapter=None):
    positions = sorted({*range(0, tokens, max(1, tokens // POSITIONS)), tokens - 1})
    tokenizer = tokenizer_of(model)
    ids = tokenizer(long_text(), add_special_tokens=False).input_ids[:tokens]
    if len(ids) < tokens:
        sys.exit(f"gguf: the text has {len(ids)} tokens only")
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    if adapter:
        reference = with_adapter(reference, adapter)
    with torch.no_grad():
        want = reference(torch.tensor([ids])).logits[0, positions].log_softmax(-1)
    out = gguf.parent / "probabilities"
    said = json.loads(run("node", ROOT / "tests/parity/gguf.mjs", env={**os.environ, "SFT_LLAMA_CPP": str(LLAMA_CPP)},
                          input=json.dumps({"model": str(gguf), "tokens": ids, "positions": positions, "texts": TEXTS,
                                            "out": str(out)})).splitlines()[-1])
    got = torch.frombuffer(bytearray(out.read_bytes()), dtype=torch.float32).view(len(positions), said["vocab"])
    compared = want.exp() > LEAST
    difference = (got[:, :want.shape[1]].clamp_min(1e-30).log() - want).abs()[compared]
    mean, largest = difference.mean().item(), difference.max().item()
    print(f"gguf: {name} {kind}{' with an adapter' if adapter else ''}: {tokens} tokens, log probabilities differ by {mean:.2g} on average, "
          f"{largest:.2g} at most, of {difference.numel()}", flush=True)
    failed = mean > TOLERANCE[kind][0] or largest > TOLERANCE[kind][1]
    for text, theirs in zip(TEXTS, said["texts"]):
        ours = tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids
        if ours != theirs:
            print(f"gguf: {name}: {text!r} is {ours}, llama.cpp has {theirs}")
            failed = True
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with sft-rank")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model")
    parser.add_argument("--only", nargs="+", default=["model", *FAMILIES], choices=["model", *FAMILIES])
    args = parser.parse_args()
    if not (LLAMA_CPP / "node_modules/node-llama-cpp").exists() or shutil.which("node") is None:
        print(f"gguf: skipped: {LLAMA_CPP} has no node-llama-cpp (deploy/bootstrap --parity, with Node 20 or later)")
        sys.exit(SKIPPED)
    transformers.logging.set_verbosity_error()
    program, failed = args.bin.resolve() / "sft-rank", False
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="sft-gguf-") as temporary:
            folder = pathlib.Path(temporary)
            model = args.model.resolve() if name == "model" else tiny_model(name, folder / "model")
            exported = wrapped(name, model, folder / "whole") if name in WRAPPED else model
            for kind in ("bf16", "q8_0") if name == "model" else ("f32", "q8_0"):
                made = export(program, exported, kind, folder / kind)
                failed |= compare(name, model, made / f"model-{kind}.gguf", kind, 1000 if name == "model" else 600)
            if name != "model" and name not in WRAPPED:
                adapter = adapter_of(model, folder / "adapter")
                made = export(program, model, "f32", folder / "merged", adapter)
                failed |= compare(name, model, made / "model-f32.gguf", "f32", 600, adapter)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
