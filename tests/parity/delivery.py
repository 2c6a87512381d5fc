#!/usr/bin/env python3
"""Trains SmolLM2 for a few steps through sft-rank, with adapters, with embedding and norms beside
them, with DoRA's, with those on the model as bitsandbytes stores it in 4 bits, and whole; and a small mixture of
experts with adapters and whole. Holds the logits of what it delivers, loaded by peft and transformers, against
those of sft-rank.

    delivery.py --bin FOLDER [--model build/demo/model]

Run by run.sh; check_peft.py compares. Needs deploy/requirements/parity.txt.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from safetensors.torch import load_file, save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENS = ROOT / "tests/parity/goldens/series/tokens.safetensors"
LIMIT_S = 1800
# Rates at which a few steps move the logits by far more than the tolerance.
TRAINING = {"lora": {"mode": "lora"}, "whole": {"mode": "lora"}, "dora": {"mode": "lora"},
            "stored": {"mode": "lora", "use_qlora": True},
            "fft": {"mode": "full_finetune"},
            "experts": {"mode": "lora"}, "experts_fft": {"mode": "full_finetune"}}
RATE = {"lora": 1e-3, "whole": 1e-3, "dora": 1e-3, "stored": 1e-3, "fft": 1e-4, "experts": 1e-2, "experts_fft": 1e-3}
LORA = {"whole": {"modules_to_save": ["embed_tokens", "norm"], "ensure_weight_tying": True, "loraplus_lr_ratio": 4.0},
        "dora": {"use_dora": True, "use_rslora": True},
        "stored": {"use_dora": True}}


def job(kind):
    return {
        "job": {"model": "model", "data": "train.jsonl"},
        "compute": {"gpu_type": "CPU", "variant": "CPU-1x"},
        "training": TRAINING[kind],
        **({"lora": LORA[kind]} if kind in LORA else {}),
        "quantization": {"bits": 4 if kind == "stored" else 0},
        "hyperparameters": {
            "per_device_batch": 2, "global_batch": 2, "sequence_length": 64, "max_steps": 4,
            "learning_rate": RATE[kind], "parallelism": {"compute_type": "fp32"}},
        "data": {"loss_on": "all", "packing": True},
    }


def run(*command):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                            timeout=LIMIT_S)
    if result.returncode != 0:
        sys.exit(f"delivery: {command[0]} {command[1]} ended with {result.returncode}:\n"
                 f"{result.stdout[-1000:]}{result.stderr[-2000:]}")
    return result.stdout


def train(program, kind, model, folder):
    launch = folder / "launch.json"
    launch.write_text(json.dumps({
        "attempt_uid": "parity", "epoch": 1, "job_id": "parity", "job_json": json.dumps(job(kind)),
        "world_size": 1, "first_rank": 0, "local_ranks": 1, "device": "cpu", "threads_per_rank": 2,
        "model_dir": str(model), "model_name": str(model), "val_file": "",
        "train_file": str(ROOT / "deploy/demo/train.jsonl"), "cache_dir": str(folder / "cache"),
        "attempt_dir": str(folder), "output_dir": str(folder / "output")}))
    run(program, "prepare", "--launch", launch)
    run(program, "train", "--launch", launch, "--rank", 0)
    return folder / "output"


def store_in_4_bits(model, folder):
    """The model as a repository in 4 bits has it, with the tokenizer's files."""
    import torch
    import transformers

    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
        llm_int8_skip_modules=["lm_head", "model.layers.1.mlp", "model.layers.2.self_attn.k_proj"])
    transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.bfloat16, quantization_config=quantization,
        device_map="cpu").save_pretrained(folder)
    for file in model.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def write_mixture(model, folder):
    """A random mixture of experts as transformers writes it, its second layer without any, with the tokenizer's
    files."""
    import torch
    import transformers

    torch.manual_seed(0)
    vocabulary = json.loads((model / "config.json").read_text())["vocab_size"]
    config = transformers.Qwen3MoeConfig(
        vocab_size=vocabulary, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, moe_intermediate_size=48, num_experts=6, num_experts_per_tok=2,
        norm_topk_prob=True, mlp_only_layers=[1], max_position_embeddings=256, initializer_range=0.1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for file in model.glob("*token*"):
        shutil.copy(file, folder)
    return folder


def check(program, kind, model, folder):
    if kind == "stored":
        model = store_in_4_bits(model, folder / "stored")
    elif kind.startswith("experts"):
        model = write_mixture(model, folder / "mixture")
    output = train(program, kind, model, folder)
    tokens, logits = folder / "tokens.safetensors", folder / "logits.safetensors"
    save_file({"input_ids": load_file(TOKENS)["input_ids"][0].contiguous()}, tokens)
    whole = TRAINING[kind]["mode"] == "full_finetune"
    what = ["--model", output] if whole else ["--model", model, "--adapter", output]
    run(program, "logits", *what, "--tokens", tokens, "--out", logits)
    print(f"delivery: {kind}: " + run(
        sys.executable, ROOT / "tests/parity/check_peft.py", *what, "--tokens", tokens, "--logits",
        logits).strip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with sft-rank")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model")
    parser.add_argument("--only", choices=sorted(TRAINING), nargs="+", default=list(TRAINING))
    args = parser.parse_args()
    for kind in args.only:
        with tempfile.TemporaryDirectory(prefix="sft-delivery-") as folder:
            check(args.bin.resolve() / "sft-rank", kind, args.model.resolve(), pathlib.Path(folder))


if __name__ == "__main__":
    main()
