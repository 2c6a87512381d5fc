"""What the peers' programs share: the rows as token ids, the steps' figures, the result line."""

import itertools
import json
import math
import sys
import time

OUT_OF_MEMORY = 3  # exit code


END, PAD = 2, 0  # tokens of the random models: <|im_end|>, and one that no row has


def load_rows(path, seq, full=True):
    """Token ids of the benchmark's rows, all of them of `seq` tokens if `full`. The random models' tokenizer has one
    token a byte, after three special ones, and a row ends with <|im_end|>, as sft-rank encodes it."""
    rows = []
    with open(path, encoding="ascii") as file:
        for line in file:
            ids = [3 + byte for byte in json.loads(line)["text"].encode()] + [END]
            if len(ids) > seq or full and len(ids) != seq:
                raise SystemExit(f"{path}: a row of {len(ids)} tokens, not {seq}")
            rows.append(ids)
    return rows


def batches(rows, batch):
    """[batch, seq] lists without end."""
    endless = itertools.cycle(rows)
    while True:
        yield [next(endless) for _ in range(batch)]


def run_steps(count, step, synchronize):
    """Runs step() -> loss `count` times; figures of each, and when the first had ended."""
    steps, first = [], None
    for number in range(1, count + 1):
        synchronize()
        begin = time.perf_counter()
        loss = step()
        synchronize()
        seconds = time.perf_counter() - begin
        first = first or time.time()
        steps.append({"step": number, "loss": loss, "seconds": round(seconds, 4)})
        print(f"step {number}/{count} loss {loss:.4f} {seconds:.3f} s", flush=True)
        if not math.isfinite(loss):
            raise SystemExit(f"the loss of step {number} is {loss}")
    return steps, first


def print_result(**figures):
    print("RESULT " + json.dumps(figures), flush=True)


def print_run(torch, steps, first):
    """The result of a run that went through, with the most memory it took."""
    print_result(status="ok", steps=steps, first_step_at=first,
                 reserved_gb=torch.cuda.max_memory_reserved() / 1e9,
                 allocated_gb=torch.cuda.max_memory_allocated() / 1e9)


def out_of_memory(error):
    """The last thing of a process whose setting does not fit: a result, not a failure."""
    print_result(status="oom", error=str(error).split("\n")[0][:300])
    sys.exit(OUT_OF_MEMORY)
