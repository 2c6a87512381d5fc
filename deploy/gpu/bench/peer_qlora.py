#!/usr/bin/env python3
"""QLoRA with Unsloth on one GPU: LoRA r 16 on all seven linears of an NF4 base, 8-bit AdamW, every
token carries loss. Prints a line a step and a RESULT line in JSON; exit 3 means out of memory.

    python3 peer_qlora.py --model DIR --rows FILE --seq 2048 --batch 4 --accumulation 2 \
        --checkpointing off --steps 10
"""

import argparse
import os

import peer_common

LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--checkpointing", choices=["on", "off"], required=True)
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def load_model(options, torch):
    # Unsloth patches transformers, so it is imported before anything that imports that.
    from unsloth import FastLanguageModel
    model, _ = FastLanguageModel.from_pretrained(options.model, max_seq_length=options.seq, load_in_4bit=True,
                                                 dtype=torch.bfloat16, device_map={"": 0})
    checkpointing = "unsloth" if options.checkpointing == "on" else False
    model = FastLanguageModel.get_peft_model(
        model, r=16, lora_alpha=32, lora_dropout=0, bias="none", target_modules=LINEARS,
        use_gradient_checkpointing=checkpointing, random_state=42)
    model.train()
    return model


def train(options, torch):
    model = load_model(options, torch)
    import bitsandbytes
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=1e-4)
    source = peer_common.batches(peer_common.load_rows(options.rows, options.seq), options.batch)

    def step():
        total = 0.0
        for _ in range(options.accumulation):
            ids = torch.tensor(next(source), device="cuda")
            loss = model(input_ids=ids, labels=ids).loss / options.accumulation
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    steps, first = peer_common.run_steps(options.steps, step, torch.cuda.synchronize)
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
