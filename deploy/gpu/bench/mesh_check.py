#!/usr/bin/env python3
"""Trains over every mesh of two and four ranks and compares each step with one rank's. The ranks may share one GPU.

    python3 deploy/gpu/bench/mesh_check.py --bin DIR --out DIR [--only "context 2,pipeline 4"] [--methods lora,full]
    python3 deploy/gpu/bench/mesh_check.py --bin DIR --out DIR --cpu      # the script itself, over Gloo

On GPUs: Qwen3-0.6B's shape with random weights, bf16, the ranks spread over the GPUs that there are. Losses and norms of
the gradient of STEPS steps have to be those of one rank: the same bits for a pipeline alone with a frozen table (a
trained one is the head too, and its gradient is summed in two parts), else within LOSS and NORM relative. A sum that is
left out changes the norm by far more. OUT gets a line a run in mesh.jsonl, and log.txt.
Exit 1 when a run differs, fails or is refused.
"""

import argparse
import json
import math
import sys

import data
import machine
import ours
import rows as table

STEPS, ROWS, TOKENS = 5, 8, 512
LOSS, NORM = 1e-3, 2e-2
BUDGET_GB = 17  # four ranks share a GPU of 80 GB

PARALLEL = "hyperparameters.parallelism."


def sizes(**axes):
    return {f"{PARALLEL}{axis}_parallel_size": size for axis, size in axes.items()}


def nodes(count, ranks):
    return {"compute.nodes": count, "compute.gpus_per_node": ranks // count}


SHARD = {table.KEY_SHARDING: "full_shard"}
MESHES = {
    "replicate 2": (2, {}),
    "shard 2": (2, SHARD),
    "pipeline 2": (2, sizes(pipeline=2)),
    "pipeline 2 of two pieces": (2, sizes(pipeline=2, virtual_pipeline=2)),
    "context 2": (2, sizes(context=2)),
    "pipeline 4": (4, sizes(pipeline=4)),
    "context 4": (4, sizes(context=4)),
    "pipeline 2 x replicate 2": (4, sizes(pipeline=2)),
    "pipeline 2 x shard 2": (4, {**sizes(pipeline=2), **SHARD}),
    "context 2 over nodes": (2, {**sizes(context=2), **nodes(2, 2)}),
    "context 4 over two nodes": (4, {**sizes(context=4), **nodes(2, 4)}),
    "context 2 x replicate 2": (4, sizes(context=2)),
    "context 2 x shard 2": (4, {**sizes(context=2), **SHARD}),
    "tensor 2": (2, sizes(tensor=2)),
    "tensor 4": (4, sizes(tensor=4)),
    "tensor 2 x replicate 2": (4, sizes(tensor=2)),
    "tensor 2 x shard 2": (4, {**sizes(tensor=2), **SHARD}),
}
METHODS = {"lora": ("lora", {}), "qlora": ("qlora", {}), "int8": ("qlora", {"quantization.bits": 8}), "full": ("full", {})}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.split("\n")[2:]))
    parser.add_argument("--bin", required=True, help="folder with sft-rank (its plugin in ../lib), or a bundle")
    parser.add_argument("--out", required=True, help="folder for mesh.jsonl and log.txt; lines are appended")
    parser.add_argument("--only", default="", help="meshes, comma-separated: " + ", ".join(MESHES))
    parser.add_argument("--methods", default=",".join(METHODS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--work", help="model and run folders (default: a new folder, then removed)")
    parser.add_argument("--limit", type=float, default=120, help="seconds of one run")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds after which no run begins")
    options = parser.parse_args()
    vars(options).update(peer_packages=None, keep=False, profile=False, share_gpus=True)
    return options


def names(text, known, what):
    chosen = [word.strip() for word in text.split(",") if word.strip()] or list(known)
    for word in chosen:
        if word not in known:
            raise SystemExit(f"mesh_check: there is no {what} \"{word}\"; there are: {', '.join(known)}")
    return chosen


def train(context, row, name, ranks, keys):
    plan = {"gpus": ranks, "steps": STEPS, "tokens": ROWS * TOKENS, "row_count": STEPS * ROWS,
            "row_tokens": STEPS * ROWS * TOKENS, "rows": context.work / "rows.jsonl"}
    budget = {} if row.device == "cpu" else {table.KEY_BUDGET: BUDGET_GB}
    record = ours.run(row, table.Ours(name, 1, job={**budget, **keys}), context, plan, {})
    record["machine"] = context.machine
    with open(context.out / "mesh.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(record).replace(f"{context.work}/", "") + "\n")
    return record


def series(record, key):
    return [ours.number(step[key]) for step in record["steps"]]


def largest(left, right):
    return max(abs(a - b) / abs(b) for a, b in zip(left, right))


def verdict(record, alone, exact):
    """Whether a run is that of one rank, and a sentence about it."""
    if record["status"] != "ok":
        return False, f"{record['status']}: {record['error'][:160]}"
    if len(record["steps"]) != STEPS:
        return False, f"{len(record['steps'])} of {STEPS} steps"
    loss = largest(series(record, "loss"), series(alone, "loss"))
    norm = largest(series(record, "grad_norm"), series(alone, "grad_norm"))
    if exact:
        return loss == norm == 0, f"loss off by {loss:.1e}, norm by {norm:.1e}, of none"
    return loss <= LOSS and norm <= NORM, f"loss off by {loss:.1e} of {LOSS:.0e}, norm by {norm:.1e} of {NORM:.0e}"


def check_method(context, method, model, device, meshes):
    mode, keys = METHODS[method]
    row = table.Row(f"mesh-{method}", model, mode, TOKENS, ROWS * TOKENS, 1, (), device=device)
    alone = train(context, row, "one rank", 1, keys)
    if alone["status"] != "ok" or len(alone["steps"]) != STEPS:
        context.say(f"{method}: one rank {alone['status']}: {alone['error'][:160]}")
        return len(meshes)
    context.say(f"{method}: one rank, losses {' '.join(f'{loss:.6f}' for loss in series(alone, 'loss'))}")
    wrong = 0
    for name in meshes:
        if context.left() <= 0:
            context.say(f"{method}, {name}: not run, {context.options.stop_after:.0f} s have passed")
            wrong += 1
            continue
        ranks, axes = MESHES[name]
        record = train(context, row, name, ranks, {**keys, **axes})
        exact = name.startswith("pipeline") and " x " not in name and mode != "full"
        held, words = verdict(record, alone, exact)
        context.say(f"{method}, {name}: {'ok' if held else 'WRONG'}; {words}")
        wrong += not held
    return wrong


def main():
    options = parse()
    meshes = names(options.only, MESHES, "mesh")
    methods = names(options.methods, METHODS, "method")
    device, model = ("cpu", "gemma3-tiny") if options.cpu else ("cuda", "qwen3-0.6b")
    context = machine.Context(options, wanted_cuda=not options.cpu)
    if not options.cpu and not context.machine["gpus"]:
        raise SystemExit("mesh_check: no GPU here; --cpu tries the script")
    context.make_model(model)
    data.write_rows(context.work / "rows.jsonl", [TOKENS] * STEPS * ROWS, seed=1)
    context.say(f"{len(context.machine['gpus'])} GPUs: {', '.join(sorted(set(context.machine['gpus']))) or 'CPU'}")
    wrong = sum(check_method(context, method, model, device, meshes) for method in methods)
    context.say("every mesh trains as one rank" if not wrong else f"{wrong} runs do NOT train as one rank")
    context.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
