#!/usr/bin/env python3
"""Trains SmolLM2 for a few steps on its base in NF4, merges the adapter through sft-rank, and holds the merged model,
loaded by transformers, against the base with the adapter, loaded by peft; prints what export.json says of both bases.
Then tiny models of every family of gguf.py, each with an adapter of peft's: merged, and against peft.

    merged.py --bin FOLDER [--model build/demo/model] [--only CASE...]

Needs deploy/requirements/parity.txt.
"""

import argparse
import json
import pathlib
import sys
import tempfile

import peft
import torch
import transformers
from safetensors.torch import load_file

import delivery
from gguf import FAMILIES, ROOT, adapter_of, long_text, run, tiny_model, tokenizer_of, with_adapter

TOLERANCE = 2e-4  # of the largest logit
TOKENS = 512


def export(program, model, adapter, folder, name="", **keys):
    folder.mkdir(parents=True)
    launch = folder / "launch.json"
    launch.write_text(json.dumps({
        "attempt_uid": "parity", "epoch": 1, "job_id": "parity", "job_json": json.dumps({
            "job": {"kind": "export", "model": "model", "adapter": str(adapter)},
            "compute": {"gpu_type": "CPU", "variant": "CPU-1x"}, "export": keys}),
        "world_size": 1, "first_rank": 0, "local_ranks": 1, "device": "cpu", "threads_per_rank": 2,
        "model_dir": str(model), "model_name": name or str(model), "adapter_dir": str(adapter), "val_file": "",
        "train_file": str(ROOT / "deploy/demo/train.jsonl"), "cache_dir": str(folder / "cache"),
        "attempt_dir": str(folder), "output_dir": str(folder / "output")}))
    run(program, "prepare", "--launch", launch)
    run(program, "export", "--launch", launch, "--rank", 0)
    output = folder / "output"
    if sorted(path.name for path in folder.glob("output*")) != ["output"]:
        sys.exit(f"merged: {folder} has more than the result")
    return output, json.loads((output / "export.json").read_text())


def logits(model, ids):
    with torch.no_grad():
        return model.eval()(torch.tensor([ids])).logits[0]


def differs(what, merged, adapted, ids):
    """Whether a merged model's logits are others than those of the base with its adapter."""
    merged, beside = logits(merged, ids), logits(adapted, ids)
    difference = ((merged - beside).abs().max() / beside.abs().max()).item()
    print(f"merged: {what}: transformers and peft differ by {difference:.2g} of the largest logit", flush=True)
    return difference > TOLERANCE


def check_family(program, name, folder):
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = tiny_model(name, folder / "model")
    adapter = adapter_of(model, folder / "adapter")
    output, _ = export(program, model, adapter, folder / "merged", "org/model", base="original", type="f32")
    ids = tokenizer_of(model)(long_text(), add_special_tokens=False).input_ids[:TOKENS]
    adapted = with_adapter(load(model, dtype=torch.float32), adapter)
    return differs(name, load(output, dtype=torch.float32), adapted, ids)


def check_model(program, model, folder):
    """SmolLM2, trained on its base in NF4."""
    delivery.TRAINING["qlora"], delivery.RATE["qlora"] = {"mode": "lora", "use_qlora": True}, 1e-3
    job = delivery.job
    delivery.job = lambda kind: {**job(kind), "lora": {"r": 16}, "quantization": {"bits": 4}}
    load = transformers.AutoModelForCausalLM.from_pretrained
    (folder / "train").mkdir()
    adapter = delivery.train(program, "qlora", model, folder / "train")
    ids = transformers.AutoTokenizer.from_pretrained(adapter)(long_text()).input_ids[:TOKENS]
    adapted = peft.PeftModel.from_pretrained(load(model, dtype=torch.float32), adapter)
    output, _ = export(program, model, adapter, folder / "original", base="original", type="f32", trained_on="nf4")
    if "lm_head.weight" in load_file(output / "model.safetensors"):
        sys.exit("merged: the tied head was written")
    failed = differs("SmolLM2", load(output, dtype=torch.float32), adapted, ids)
    for kind in ("f32", "bf16"):
        output, result = export(program, model, adapter, folder / kind, type=kind, trained_on="nf4")
        logits(load(output), ids)  # it loads in its own type
        for base, numbers in result["compared"].items():
            print(f"merged: {kind}, {base} base: {json.dumps(numbers)}", flush=True)
        print(f"merged: {kind}: the better base is {result['merged_into']}", flush=True)
        failed |= result["compared"]["nf4"]["largest_logit_difference"] > (1e-2 if kind == "f32" else 2.0)
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with sft-rank")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model")
    parser.add_argument("--only", nargs="+", default=["model", *FAMILIES], choices=["model", *FAMILIES])
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    program, failed = args.bin.resolve() / "sft-rank", False
    for name in args.only:
        with tempfile.TemporaryDirectory(prefix="sft-merged-") as temporary:
            folder = pathlib.Path(temporary)
            if name == "model":
                failed |= check_model(program, args.model.resolve(), folder)
            else:
                failed |= check_family(program, name, folder)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
