#!/usr/bin/env python3
"""Trains SmolLM2 for a few steps on its base in NF4, merges the adapter through sft-rank, and holds the merged model,
loaded by transformers, against the base with the adapter, loaded by peft; prints what export.json says of both bases.

    merged.py --bin FOLDER [--model build/demo/model]

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
from gguf import ROOT, long_text, run

TOLERANCE = 2e-4  # of the largest logit
TOKENS = 512


def export(program, model, adapter, folder, **keys):
    folder.mkdir(parents=True)
    launch = folder / "launch.json"
    launch.write_text(json.dumps({
        "attempt_uid": "parity", "epoch": 1, "job_id": "parity", "job_json": json.dumps({
            "job": {"kind": "export", "model": "model", "adapter": str(adapter)},
            "compute": {"gpu_type": "CPU", "variant": "CPU-1x"}, "export": {"trained_on": "nf4", **keys}}),
        "world_size": 1, "first_rank": 0, "local_ranks": 1, "device": "cpu", "threads_per_rank": 2,
        "model_dir": str(model), "model_name": str(model), "adapter_dir": str(adapter), "val_file": "",
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with sft-rank")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    delivery.TRAINING["qlora"], delivery.RATE["qlora"] = {"mode": "lora", "use_qlora": True}, 1e-3
    job = delivery.job
    delivery.job = lambda kind: {**job(kind), "lora": {"r": 16}, "quantization": {"bits": 4}}
    program, model = args.bin.resolve() / "sft-rank", args.model.resolve()
    load = transformers.AutoModelForCausalLM.from_pretrained
    with tempfile.TemporaryDirectory(prefix="sft-merged-") as temporary:
        folder = pathlib.Path(temporary)
        (folder / "train").mkdir()
        adapter = delivery.train(program, "qlora", model, folder / "train")
        ids = transformers.AutoTokenizer.from_pretrained(adapter)(long_text()).input_ids[:TOKENS]
        beside = logits(peft.PeftModel.from_pretrained(load(model, dtype=torch.float32), adapter), ids)
        output, _ = export(program, model, adapter, folder / "original", base="original", type="f32")
        if "lm_head.weight" in load_file(output / "model.safetensors"):
            sys.exit("merged: the tied head was written")
        merged = logits(load(output, dtype=torch.float32), ids)
        difference = ((merged - beside).abs().max() / beside.abs().max()).item()
        print(f"merged: transformers and peft differ by {difference:.2g} of the largest logit", flush=True)
        failed = difference > TOLERANCE
        for kind in ("f32", "bf16"):
            output, result = export(program, model, adapter, folder / kind, type=kind)
            logits(load(output), ids)  # it loads in its own type
            for base, numbers in result["compared"].items():
                print(f"merged: {kind}, {base} base: {json.dumps(numbers)}", flush=True)
            print(f"merged: {kind}: the better base is {result['merged_into']}", flush=True)
            failed |= result["compared"]["nf4"]["largest_logit_difference"] > (1e-2 if kind == "f32" else 2.0)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
