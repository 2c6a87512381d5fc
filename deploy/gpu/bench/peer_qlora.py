#!/usr/bin/env python3
"""LoRA or QLoRA with Unsloth on one GPU: r 16 on all linears of a base in NF4 or, with --base bf16, as it is, 8-bit AdamW,
every token carries loss. Prints a line a step and a RESULT line in JSON; exit 3 means out of memory. With
--layout, rows of different lengths (chat_rows.py): a step's loss is the mean over all its tokens that carry loss.

    python3 peer_qlora.py --model DIR --rows FILE --seq 2048 --batch 4 --accumulation 2 \
        --checkpointing off --steps 10
"""

import argparse
import json
import os
import pathlib

import chat_rows
import peer_common

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
DELTA_NET = ["in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--checkpointing", choices=["on", "off"], required=True)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--base", choices=["nf4", "bf16"], default="nf4")
    parser.add_argument("--layout", choices=["full", "packed", "padded", "grouped"], default="full")
    return parser.parse_args()


def linears_of(folder):
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    return LINEARS + (DELTA_NET if "linear_attention" in config.get("layer_types", []) else [])


def load_model(options, torch):
    # Unsloth patches transformers, so it is imported before anything that imports that.
    from unsloth import FastLanguageModel
    model, _ = FastLanguageModel.from_pretrained(
        options.model, max_seq_length=options.seq, load_in_4bit=options.base == "nf4",
        load_in_16bit=options.base == "bf16", dtype=torch.bfloat16, device_map={"": 0})
    checkpointing = "unsloth" if options.checkpointing == "on" else False
    model = FastLanguageModel.get_peft_model(
        model, r=16, lora_alpha=32, lora_dropout=0, bias="none", target_modules=linears_of(options.model),
        use_gradient_checkpointing=checkpointing, random_state=42)
    model.train()
    return model


def update(optimizer, losses):
    """One optimizer step over the micro-batches' losses, each computed as it is asked for; their sum."""
    total = 0.0
    for loss in losses:
        loss.backward()
        total += loss.detach()
    optimizer.step()
    optimizer.zero_grad()
    return float(total)


def full_step(options, torch, model, optimizer):
    """step() of rows that are all as long as the sequence."""
    source = peer_common.batches(peer_common.load_rows(options.rows, options.seq), options.batch)

    def loss():
        ids = torch.tensor(next(source), device="cuda")
        return model(input_ids=ids, labels=ids).loss / options.accumulation

    return lambda: update(optimizer, (loss() for _ in range(options.accumulation)))


def inputs_of(batch, torch):
    """What the peer's own collators hand to its forward, for rows that are packed or padded."""
    inputs = {"input_ids": torch.tensor(batch["ids"], device="cuda"),
              "labels": torch.tensor(batch["labels"], device="cuda")}
    if "lengths" in batch:
        return inputs | {"position_ids": torch.tensor(batch["positions"], device="cuda"),
                         "packed_seq_lengths": torch.tensor(batch["lengths"], dtype=torch.int32)}
    return inputs | {"attention_mask": torch.tensor(batch["attention"], device="cuda")}


def layout_step(options, torch, model, optimizer, loss_tokens):
    """step() of rows of different lengths; adds the tokens that carry loss to `loss_tokens`."""
    rows = peer_common.load_rows(options.rows, options.seq, full=False)
    source = chat_rows.micro_batches(options.layout, rows, options.seq, options.batch, peer_common.PAD)

    def step():
        batches = [next(source) for _ in range(options.accumulation)]
        loss_tokens.append(sum(batch["loss_tokens"] for batch in batches))
        count = torch.tensor(loss_tokens[-1], device="cuda")
        return update(optimizer, (model(**inputs_of(batch, torch), num_items_in_batch=count).loss for batch in batches))

    return step


def train(options, torch):
    model = load_model(options, torch)
    import bitsandbytes
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    loss_tokens = []
    if options.layout == "full":
        step = full_step(options, torch, model, optimizer)
    else:
        step = layout_step(options, torch, model, optimizer, loss_tokens)
    steps, first = peer_common.run_steps(options.steps, step, torch.cuda.synchronize)
    for figures, count in zip(steps, loss_tokens):
        figures["loss_tokens"] = count
    peer_common.print_run(torch, steps, first)


def main():
    options = parse()
    os.environ |= {"HF_HUB_OFFLINE": "1", "UNSLOTH_DISABLE_STATISTICS": "1", "TOKENIZERS_PARALLELISM": "false"}
    import torch
    try:
        train(options, torch)
    except torch.OutOfMemoryError as error:
        peer_common.out_of_memory(error)


if __name__ == "__main__":
    main()
