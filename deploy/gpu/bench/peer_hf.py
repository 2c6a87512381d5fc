#!/usr/bin/env python3
"""Full fine-tuning, or LoRA through PEFT, with transformers' model and torch.compile on one GPU, as
TrainingArguments(bf16=True, torch_compile=True) runs it. Prints a line a step and a RESULT line in JSON;
exit 3 means out of memory.

    python3 peer_hf.py --model DIR --rows FILE --seq 1024 --batch 16 --accumulation 1 \
        --checkpointing off --method full --steps 10
"""

import argparse

import torch
import transformers

import peer_common


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--checkpointing", choices=["on", "off"], required=True)
    parser.add_argument("--method", choices=["full", "lora"], required=True)
    parser.add_argument("--steps", type=int, default=10)
    return parser.parse_args()


def load_model(options):
    """Full fine-tuning keeps fp32 weights and computes in bf16; the base of an adapter is bf16."""
    full = options.method == "full"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.float32 if full else torch.bfloat16, attn_implementation="sdpa",
        device_map={"": 0})
    if options.checkpointing == "on":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if not full:
        import peft
        model.enable_input_require_grads()
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
    model.train()
    return model


def train(options):
    torch.manual_seed(42)
    torch.backends.cuda.matmul.allow_tf32 = True
    model = load_model(options)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.0, fused=True)
    compiled = torch.compile(model)
    source = peer_common.batches(peer_common.load_rows(options.rows, options.seq), options.batch)

    def step():
        total = 0.0
        for _ in range(options.accumulation):
            ids = torch.tensor(next(source), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = compiled(input_ids=ids, labels=ids, use_cache=False).loss / options.accumulation
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    steps, first = peer_common.run_steps(options.steps, step, torch.cuda.synchronize)
    peer_common.print_run(torch, steps, first)


def main():
    options = parse()
    try:
        train(options)
    except torch.OutOfMemoryError as error:
        peer_common.out_of_memory(error)


if __name__ == "__main__":
    main()
