#!/usr/bin/env python3
"""Full fine-tuning with transformers' model, FSDP2 and optionally torch.compile, one process a GPU under
torchrun; weights are drawn on the GPUs. Prints a line a step and a RESULT line in JSON on rank 0; exit 3
means out of memory.

    python3 -m torch.distributed.run --standalone --nproc-per-node 4 peer_fft.py --model DIR --rows FILE \
        --seq 4096 --batch 2 --accumulation 2 --checkpointing off --compile --weights fp32 --steps 10
"""

import argparse
import os

import torch
import torch.distributed
import transformers
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing, checkpoint_wrapper)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import peer_common


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder with config.json")
    parser.add_argument("--rows", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--checkpointing", choices=["on", "off"], required=True)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--weights", choices=["fp32", "bf16"], required=True)
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def make_model(options):
    """Sharded by decoder block, computing in bf16, reducing in fp32; parameters in the master type."""
    config = transformers.AutoConfig.from_pretrained(options.model)
    config._attn_implementation = "sdpa"
    dtype = torch.float32 if options.weights == "fp32" else torch.bfloat16
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    decoder = model.model
    if options.checkpointing == "on":
        kind = type(decoder.layers[0])
        apply_activation_checkpointing(model, checkpoint_wrapper_fn=checkpoint_wrapper,
                                       check_fn=lambda module: isinstance(module, kind))
    if options.compile:
        for index, layer in enumerate(decoder.layers):
            decoder.layers[index] = torch.compile(layer)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in decoder.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device="cuda")
    for weight in model.parameters():
        if weight.dim() == 1:
            torch.nn.init.ones_(weight)
        else:
            torch.nn.init.normal_(weight, 0.0, 0.02)
    # to_empty left the buffers without values.
    decoder.rotary_emb = type(decoder.rotary_emb)(config=config).to("cuda")
    model.train()
    return model


def train(options, rank, world):
    torch.manual_seed(42)
    model = make_model(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
    rows = peer_common.load_rows(options.rows, options.seq)[rank::world]
    source = peer_common.batches(rows, options.batch)

    def step():
        total = 0.0
        for micro in range(options.accumulation):
            model.set_requires_gradient_sync(micro + 1 == options.accumulation)
            ids = torch.tensor(next(source), device="cuda")
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss / options.accumulation
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    steps, first = peer_common.run_steps(options.steps, step, torch.cuda.synchronize)
    if rank == 0:
        peer_common.print_run(torch, steps, first)


def main():
    options = parse()
    rank, world = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        train(options, rank, world)
    except torch.OutOfMemoryError as error:
        # Without taking the group down: that waits for ranks which still compute.
        peer_common.print_result(status="oom", error=str(error).split("\n")[0][:300])
        os._exit(peer_common.OUT_OF_MEMORY)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
