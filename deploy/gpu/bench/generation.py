#!/usr/bin/env python3
"""Measures generation: sft_gpu_generation_speed beside transformers' batched generate, one after the other.

    python3 deploy/gpu/bench/generation.py --tests DIR --model DIR --out DIR [--cases 1x512+256,64x1792+256] \\
        [--weights bf16,nf4] [--peer on|off]

--tests holds sft_gpu_generation_speed (pack_tests.sh); --model is a folder of make_random_model.py. A case is
BATCHxPROMPT+NEW. Every case's first answer must be the same whatever the batch: a run where it is not has no
figure. OUT/generation.jsonl gets a line a run; the table says tokens/s while answers are made, over all, and how
often transformers' that is.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import time


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.split("\n")[2:]))
    parser.add_argument("--tests", help="folder with sft_gpu_generation_speed")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", help="folder for generation.jsonl")
    parser.add_argument("--cases", default="1x512+256,64x1792+256")
    parser.add_argument("--weights", default="bf16", help="of ours: bf16, nf4, or both by comma")
    parser.add_argument("--peer", choices=["on", "off"], default="on")
    parser.add_argument("--limit", type=float, default=200, help="seconds of one run")
    parser.add_argument("--run-peer", metavar="CASE", help=argparse.SUPPRESS)
    return parser.parse_args()


def read_case(text):
    match = re.fullmatch(r"(\d+)x(\d+)\+(\d+)", text)
    if not match:
        raise SystemExit(f"generation: the case \"{text}\" is not BATCHxPROMPT+NEW, as 64x1792+256")
    return tuple(map(int, match.groups()))


def run_peer(options):
    """transformers' generate on prompts of one length, so that nothing is padded."""
    import torch
    import transformers

    batch, prompt, new = read_case(options.run_peer)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.bfloat16, attn_implementation="sdpa", device_map={"": 0}).eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size, (batch, prompt), generator=generator).cuda()

    def seconds(count):
        torch.cuda.synchronize()
        start = time.monotonic()
        made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                              min_new_tokens=count, pad_token_id=0)
        torch.cuda.synchronize()
        assert made.shape == (batch, prompt + count)
        return time.monotonic() - start

    with torch.inference_mode():
        seconds(4)
        prompts, everything = seconds(1), seconds(new)
    print("RESULT", json.dumps({
        "batch": batch, "prompt": prompt, "new": new, "prompt_seconds": prompts,
        "decode_tokens_per_second": batch * (new - 1) / (everything - prompts),
        "tokens_per_second": batch * new / everything, "torch": torch.__version__,
        "transformers": transformers.__version__}))


def call(command, limit):
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines()
             if line.startswith(("{", "RESULT"))]
    if done.returncode != 0 or not lines:
        return {"error": (done.stderr or done.stdout)[:3000]}
    return json.loads(lines[-1])


def measure(options, case, weights):
    batch, prompt, new = read_case(case)
    if weights == "peer":
        return call([sys.executable, __file__, "--model", options.model, "--run-peer", case], options.limit)
    return call([str(pathlib.Path(options.tests) / "sft_gpu_generation_speed"), "--model", options.model,
                 "--weights", weights, "--batch", str(batch), "--prompt", str(prompt), "--new", str(new)],
                options.limit)


def main():
    options = parse()
    if options.run_peer:
        run_peer(options)
        return
    out = pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    hashes, wrong = {}, False
    print(f"{'case':>16} {'weights':>8} {'prompts s':>10} {'decode tok/s':>13} {'all tok/s':>10} {'times peer':>11}")
    for case in options.cases.split(","):
        peer = None
        for weights in (["peer"] if options.peer == "on" else []) + options.weights.split(","):
            result = {"case": case, "weights": weights} | measure(options, case, weights)
            with open(out / "generation.jsonl", "a") as file:
                file.write(json.dumps(result) + "\n")
            if "error" in result:
                wrong = True
                print(f"{case:>16} {weights:>8} failed: {result['error'][:400]}")
                continue
            if weights == "peer":
                peer = result
            else:
                key = (weights, case.split("x")[1])
                same = hashes.setdefault(key, result["hash"]) == result["hash"]
                wrong |= not same
                if not same:
                    print(f"{case:>16} {weights:>8} wrong: the first answer differs from that of another batch")
                    continue
            ratio = f"{result['tokens_per_second'] / peer['tokens_per_second']:.2f}" if peer else ""
            print(f"{case:>16} {weights:>8} {result['prompt_seconds']:10.3f} "
                  f"{result['decode_tokens_per_second']:13.1f} {result['tokens_per_second']:10.1f} {ratio:>11}",
                  flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
