#!/usr/bin/env python3
"""LoRA r 16 of a mixture of experts on one GPU, on attention's linears and, with --adapters experts, on the stacks of
experts: by Unsloth, or by transformers and PEFT. Every token carries loss. Prints a line a step and a RESULT line in JSON;
exit 3 means out of memory. A run fails whose adapters did not all learn, or whose base is not what --base says.

    python3 peer_moe.py --engine unsloth --base packed --adapters experts --model DIR --rows FILE --seq 4096 --batch 1 \
        --accumulation 4 --checkpointing off --steps 6
"""

import argparse
import os

import peer_common

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
STACKS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
LEARNING_RATE = 1e-4


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=["unsloth", "peft"], required=True)
    parser.add_argument("--base", choices=["bf16", "packed"], default="bf16",
                        help="of experts in MXFP4: de-quantised when loaded, or kept (Unsloth alone can)")
    parser.add_argument("--adapters", choices=["experts", "attention"], default="experts")
    parser.add_argument("--compile", action="store_true", help="PEFT's model; Unsloth compiles what it can by itself")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu: to try the program")
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--seq", type=int, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--accumulation", type=int, required=True)
    parser.add_argument("--checkpointing", choices=["on", "off"], required=True)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    if options.engine == "peft" and options.base == "packed":
        parser.error("PEFT has no gradients through experts in MXFP4: take --base bf16")
    return options


def device_map(options):
    return {"": 0 if options.device == "cuda" else "cpu"}


def load_unsloth(options, torch):
    # Unsloth looks at this while it loads. Without it experts in MXFP4 stay so under adapters.
    os.environ["UNSLOTH_MXFP4_KEEP_PACKED"] = "1" if options.base == "packed" else "0"
    # It patches transformers, so it is imported before anything that imports that.
    from unsloth import FastLanguageModel
    model, _ = FastLanguageModel.from_pretrained(
        options.model, max_seq_length=options.seq, dtype=torch.bfloat16, load_in_4bit=False,
        load_in_16bit=options.base == "bf16", device_map=device_map(options))
    # Named outright: of gate_proj, up_proj and down_proj it makes these stacks on a GPU only.
    return FastLanguageModel.get_peft_model(
        model, r=16, lora_alpha=32, lora_dropout=0, bias="none", target_modules=ATTENTION,
        target_parameters=STACKS if options.adapters == "experts" else [],
        use_gradient_checkpointing="unsloth" if options.checkpointing == "on" else False, random_state=42)


def load_peft(options, torch):
    import peft
    import transformers
    config = transformers.AutoConfig.from_pretrained(options.model)
    stored = {}
    if getattr(config, "quantization_config", None):
        stored["quantization_config"] = transformers.Mxfp4Config(dequantize=True)
    # transformers has no SDPA with sinks.
    attention = "flex_attention" if config.model_type == "gpt_oss" else "sdpa"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.bfloat16, attn_implementation="eager" if options.device == "cpu" else attention,
        experts_implementation="grouped_mm", device_map=device_map(options), **stored)
    if options.checkpointing == "on":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    return peft.get_peft_model(model, peft.LoraConfig(
        r=16, lora_alpha=32, lora_dropout=0.0, target_modules=ATTENTION,
        target_parameters=STACKS if options.adapters == "experts" else None, task_type="CAUSAL_LM"))


def is_packed(model):
    """True if any stack of experts is in bytes."""
    return any(".experts." in name and not weight.is_floating_point() for name, weight in model.named_parameters())


def check_loaded(options, model):
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    of_experts = sum(weight.numel() for name, weight in trained.items() if ".experts." in name)
    print(f"adapters: {len(trained)} tensors, {sum(weight.numel() for weight in trained.values()) / 1e6:.1f} M "
          f"parameters, {of_experts / 1e6:.1f} M of them experts'", flush=True)
    if (of_experts > 0) != (options.adapters == "experts"):
        raise SystemExit(f"{of_experts} parameters of experts' adapters, with --adapters {options.adapters}")
    if is_packed(model) != (options.base == "packed"):
        raise SystemExit(f"the experts {'are' if is_packed(model) else 'are not'} in MXFP4, with --base {options.base}")
    return trained


def check_learned(trained):
    """B starts as zero: what is zero now has had no gradient."""
    idle = [name for name, weight in trained.items() if ".lora_B." in name and not weight.detach().any()]
    if idle:
        raise SystemExit(f"{len(idle)} adapters did not learn, the first is {idle[0]}")


def make_optimizer(options, torch, trained):
    if options.engine == "unsloth" and options.device == "cuda":
        import bitsandbytes
        return bitsandbytes.optim.AdamW8bit(trained.values(), lr=LEARNING_RATE)
    return torch.optim.AdamW(trained.values(), lr=LEARNING_RATE, weight_decay=0.0, fused=options.device == "cuda")


def train(options, torch):
    torch.manual_seed(42)
    model = (load_unsloth if options.engine == "unsloth" else load_peft)(options, torch)
    model.train()
    trained = check_loaded(options, model)
    optimizer = make_optimizer(options, torch, trained)
    forward = torch.compile(model) if options.compile else model
    source = peer_common.batches(peer_common.load_rows(options.rows, options.seq), options.batch)
    # Adapters of PEFT's are fp32; Unsloth casts by itself.
    autocast = options.engine == "peft" and options.device == "cuda"

    def step():
        total = 0.0
        for _ in range(options.accumulation):
            ids = torch.tensor(next(source), device=options.device)
            with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
                loss = forward(input_ids=ids, labels=ids, use_cache=False).loss / options.accumulation
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return float(total)

    synchronize = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    steps, first = peer_common.run_steps(options.steps, step, synchronize)
    check_learned(trained)
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
