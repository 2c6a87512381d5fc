#!/usr/bin/env python3
"""Makes the parity goldens from torch, transformers and peft; README.md says what is in each file.

    make_goldens.py --out FOLDER          makes them anew in FOLDER
    make_goldens.py --out FOLDER --check  and compares them with tests/parity/goldens

The goldens of bitsandbytes' CUDA kernels (nf4_cuda) come from deploy/gpu/make_nf4_goldens.py.
Needs deploy/requirements/parity.txt.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # everything is on this machine

import torch
from safetensors.torch import load_file

import families
import generation
import int8_goldens
import nf4_goldens
import preferences
import schedules
import series
import stored
import variants

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests/parity/goldens"
PARTS = ["families", "generation", "variants", "stored", "nf4", "int8", "schedules", "series", "preferences"]
# Another machine's processor or library rounds differently: tensors may differ by so much of their
# norm, and losses by so much of themselves (the series amplify over twenty steps). Norms of gradients
# part first: between two machines full fine-tuning's losses were 7.2e-5 apart at step 14 and its norms,
# at a constant rate, 3.1e-3 at step 8; LoRA's 1.1e-5 and 7.3e-5.
TENSOR_TOLERANCE = 1e-5
SERIES_TOLERANCE = 1e-4
NORM_TOLERANCE = 5e-3
# Logarithms of probabilities are kept with five decimals, so that the last one may be rounded otherwise.
LOG_PROBABILITY_TOLERANCE = 2e-5


def tensor_differences(name, made, kept):
    made, kept = load_file(made), load_file(kept)
    if made.keys() != kept.keys():
        yield f"{name}: other tensors: {sorted(made.keys() ^ kept.keys())}"
        return
    for key in sorted(made):
        a, b = made[key], kept[key]
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{name}: {key}: {a.dtype} {list(a.shape)} against {b.dtype} {list(b.shape)}"
        elif a.dtype != torch.float32:
            if not torch.equal(a, b):
                yield f"{name}: {key}: {(a != b).sum()} of {a.numel()} values differ"
        elif (a - b).norm() > TENSOR_TOLERANCE * b.norm():
            yield f"{name}: {key}: differs by {(a - b).norm() / b.norm():.1e} of its norm"


def number_differences(name, made, kept, tolerance, absolute=0.0):
    """Compares two JSON values; numbers may differ by the relative or the absolute tolerance."""
    if isinstance(kept, dict) and isinstance(made, dict) and made.keys() == kept.keys():
        for key in kept:
            yield from number_differences(f"{name}: {key}", made[key], kept[key], tolerance, absolute)
    elif isinstance(kept, list) and isinstance(made, list) and len(made) == len(kept):
        for i, pair in enumerate(zip(made, kept)):
            yield from number_differences(f"{name}[{i}]", *pair, tolerance, absolute)
    elif isinstance(kept, float) and isinstance(made, float):
        if not abs(made - kept) <= max(tolerance * abs(kept), absolute):
            yield f"{name}: {made} against {kept}"
    elif made != kept:
        yield f"{name}: {made} against {kept}"


def series_differences(name, made, kept):
    norms = "grad_norm"
    for part, tolerance in (({norms}, NORM_TOLERANCE), (made.keys() - {norms}, SERIES_TOLERANCE)):
        yield from number_differences(name, *({key: side[key] for key in side.keys() & part} for side in (made, kept)),
                                      tolerance)
    if made.keys() != kept.keys():
        yield f"{name}: other keys: {sorted(made.keys() ^ kept.keys())}"


def differences(out, parts):
    """What is not as in tests/parity/goldens, for each kept file of the parts made."""
    for part in parts:
        for kept in sorted((GOLDENS / part).rglob("*")):
            name = kept.relative_to(GOLDENS)
            made = out / name
            if kept.is_dir():
                continue
            if not made.exists():
                yield f"{name}: not made"
            elif kept.suffix == ".safetensors":
                yield from tensor_differences(name, made, kept)
            elif part == "series" or kept.name == "steps.json":
                yield from series_differences(str(name), json.loads(made.read_text()),
                                              json.loads(kept.read_text()))
            elif part == "schedules":
                yield from number_differences(str(name), json.loads(made.read_text()),
                                              json.loads(kept.read_text()), 1e-12)
            elif part == "generation":
                yield from number_differences(str(name), json.loads(made.read_text()),
                                              json.loads(kept.read_text()), 0.0, LOG_PROBABILITY_TOLERANCE)
            elif made.read_bytes() != kept.read_bytes():
                yield f"{name}: differs"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to make them in")
    parser.add_argument("--check", action="store_true", help="compare with tests/parity/goldens")
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "build/demo/model",
                        help="SmolLM2-135M-Instruct (default: build/demo/model)")
    parser.add_argument("--only", choices=PARTS, nargs="+", help="make these parts alone")
    args = parser.parse_args()
    parts = args.only or PARTS
    if "series" in parts and not (args.model / "config.json").exists():
        sys.exit(f"make_goldens: {args.model} holds no model: run deploy/demo/make_model.sh")
    out = args.out.resolve()
    if out == GOLDENS:
        sys.exit("make_goldens: make them in another folder, look at them, then copy them")
    for part in parts:
        shutil.rmtree(out / part, ignore_errors=True)
    torch.manual_seed(0)
    if "nf4" in parts:
        nf4_goldens.make(out / "nf4", GOLDENS)
    if "int8" in parts:
        int8_goldens.make(out / "int8", GOLDENS)
    if "schedules" in parts:
        schedules.make(out / "schedules")
    if "families" in parts:
        families.make(out / "families")
    if "generation" in parts:
        generation.make(out / "generation", GOLDENS)
    if "variants" in parts:
        variants.make(out / "variants", GOLDENS)
    if "preferences" in parts:
        preferences.make(out / "preferences", GOLDENS)
    if "stored" in parts:
        stored.make(out / "stored")
    if "series" in parts:
        torch.set_num_threads(min(4, os.cpu_count()))
        series.make(out / "series", GOLDENS, args.model, ROOT / "deploy/demo/train.jsonl")
    if args.check:
        found = list(differences(out, parts))
        for difference in found:
            print(f"make_goldens: {difference}", file=sys.stderr)
        sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
