#!/usr/bin/env python3
"""Runs sft-rank and the peer on the same machine, one after the other, and prints the ratios.

    python3 deploy/gpu/bench/bench.py --bin DIR --rows qlora-8b-seq2048 --out DIR \\
        [--peer-packages DIR_OR_TARBALL] [--peer all|best|none|TEXT] [--steps 10] [--learn] [--work DIR]
    python3 deploy/gpu/bench/bench.py --list
    python3 deploy/gpu/bench/bench.py --report OUT/raw.jsonl

Each row writes a model of the real size with random weights and full rows of the demo's text, then runs
the plain path for one step (rows of one, everything recomputed, bf16), our settings, and the peer's, each
in processes of its own. A run of ours that is not correct has no ratio. OUT gets raw.jsonl (a line a run,
written at once), log.txt (what each process printed) and table.md. Exit 1 when a run of ours is not correct or a
peer failed by anything but memory. --work needs room for the largest
model: 16 GB for 8B, 65 GB for 32B, 141 GB for 70B. docs/benchmarks says how to read the result.
"""

import argparse
import dataclasses
import json
import math
import sys

import chat_rows
import data
import machine
import ours
import peers
import report
import rows as table

LEARN_STEPS = 30


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0],
                                     formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="\n".join(__doc__.split("\n")[2:]))
    parser.add_argument("--bin", help="folder with sft-rank (its plugin in ../lib), or a bundle")
    parser.add_argument("--out", help="folder for raw.jsonl, log.txt and table.md; raw lines are appended")
    parser.add_argument("--rows", default="", help="names from --list, comma-separated")
    parser.add_argument("--settings", default="", help="only these settings of ours, comma-separated")
    parser.add_argument("--steps", type=int, default=10, help="optimizer steps of each run")
    parser.add_argument("--learn", action="store_true", help=f"{LEARN_STEPS} steps of ours; the loss has to fall")
    parser.add_argument("--peer", default="all", metavar="all|best|none|TEXT",
                        help="best: without the default settings, unless a goal of the row names them; "
                             "TEXT: the settings with that in their name")
    parser.add_argument("--peer-packages", help="folder or tarball of pack_peer.sh")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON",
                        help="key of the resolved job for all runs of ours but the plain one")
    parser.add_argument("--plain-set", action="append", default=[], metavar="KEY=JSON",
                        help="key of the resolved job for the plain path alone")
    parser.add_argument("--no-plain", action="store_true",
                        help="leave out the plain path, for rows that take it longer than a machine can be had: what is "
                             "measured then is speed and memory, and its loss is compared with nothing")
    parser.add_argument("--batch", type=int, help="rows of one rank in one micro-step, for ours")
    parser.add_argument("--profile", action="store_true",
                        help="write where step 4 of ours spends its time to OUT/profile-*.txt")
    parser.add_argument("--work", help="models and run folders (default: a new folder, then removed)")
    parser.add_argument("--keep", action="store_true", help="leave models and the work folder")
    parser.add_argument("--demo-model", default=machine.ROOT / "build/demo/model")
    parser.add_argument("--limit", type=float, default=280, help="seconds of one run")
    parser.add_argument("--stop-after", type=float, default=math.inf,
                        help="seconds after which no run begins; the one in hand is ended")
    parser.add_argument("--list", action="store_true", help="print the rows")
    parser.add_argument("--report", metavar="RAW", help="print the tables of a raw.jsonl")
    return parser.parse_args()


def overrides(words):
    result = {}
    for word in words:
        key, separator, text = word.partition("=")
        if not separator:
            raise SystemExit(f"bench: \"{word}\" is not KEY=JSON")
        try:
            result[key] = json.loads(text)
        except json.JSONDecodeError:
            result[key] = text
    return result


class RowRun:
    """All runs of one row, in order: plain path, ours, peers, ours within each peer's memory."""

    def __init__(self, row, context):
        self.row, self.context, self.options = row, context, context.options
        self.set = overrides(context.options.set)
        self.plain_set = overrides(context.options.plain_set)
        self.plain_records = {}
        self.peer_records = []

    def plan(self, gpus, steps, tokens=None):
        """What to train and on which rows; the rows are written once a plan."""
        tokens = (tokens or self.row.tokens) * gpus // self.row.gpus
        count, seq = steps * tokens // self.row.seq, self.row.seq
        seed = count * 1000003 + seq
        lengths = chat_rows.lengths_for(steps * tokens, seq, seed) if self.row.chat_lengths else [seq] * count
        kind = "chat" if self.row.chat_lengths else "rows"
        plan = {"gpus": gpus, "steps": steps, "tokens": tokens, "row_count": len(lengths),
                "row_tokens": sum(lengths), "rows": self.context.work / f"{kind}-{seq}-{count}.jsonl"}
        if self.row.validation:
            plan["rows"] = data.DEMO / "train.jsonl"
        elif not plan["rows"].exists():
            data.write_rows(plan["rows"], lengths, seed)
        return plan

    def record(self, record):
        record["machine"] = self.context.machine
        with open(self.context.out / "raw.jsonl", "a", encoding="utf-8") as file:
            # Where the work folder was says nothing about the run.
            file.write(json.dumps(record).replace(f"{self.context.work}/", "") + "\n")
        rate = report.measured(record, "tokens_per_second", "{:,.0f} tok/s")
        memory = report.measured(record, "reserved_gb", "{:.1f} GB")
        first = report.measured(record, "first_step_s", "first step after {:.1f} s")
        self.context.say(f"{self.row.name} / {record['setting']}: {rate}, {memory}, {first}; {report.outcome(record)}")
        return record

    def plain(self, plan):
        """One step of the plain path on the same rows: of the options only those that decide what is
        computed stay. Kept by the number of GPUs and rows, since those change the step."""
        key = plan["gpus"], plan["row_count"], plan["tokens"]
        if key not in self.plain_records:
            fast = (table.KEY_MATMUL, table.KEY_BUDGET, table.KEY_OFFLOAD)
            job = {name: value for name, value in self.row.ours[0].job.items() if name not in fast}
            setting = table.Ours("plain path, one step", 1, checkpointing=True, job=job)
            record = ours.run(self.row, setting, self.context, {**plan, "steps": 1}, self.plain_set)
            self.plain_records[key] = self.record({**record, "side": "plain"})
        return self.plain_records[key]

    def run_ours(self, setting, within=None):
        if self.options.batch:
            setting = dataclasses.replace(setting, batch=self.options.batch)
        steps = self.row.steps or self.options.steps
        learn = self.options.learn and not self.row.validation and within is None
        if learn and not self.row.learn_tokens:
            steps = max(steps, LEARN_STEPS)
        gpus = setting.gpus or self.row.gpus
        plan = self.plan(gpus, steps)
        self.context.say(f"{self.row.name} / {setting.name}: {steps} steps of {plan['tokens']} tokens on {gpus} GPUs")
        record = ours.run(self.row, setting, self.context, plan, self.set)
        apart = learn and self.row.learn_tokens
        plain = None if apart or self.options.no_plain else self.plain(plan)
        checked = ours.check(record, self.row, plan, plain, setting.tolerance,
                             learn and not apart) if record["status"] == "ok" else []
        if checked and apart:
            checked += self.learn_apart(setting, gpus)
        record["checks"] = checked
        if within is not None:
            record["within_memory_of"] = within
        self.record(record)

    def learn_apart(self, setting, gpus):
        """The plain path's loss and the learning check on smaller steps than those measured."""
        plan = self.plan(gpus, LEARN_STEPS, self.row.learn_tokens)
        batch = min(setting.batch, plan["tokens"] // self.row.seq // gpus)
        small = dataclasses.replace(setting, name=f"{setting.name}, learning", batch=batch)
        record = ours.run(self.row, small, self.context, plan, self.set)
        plain = None if self.options.no_plain else self.plain(plan)
        checks = ours.check(record, self.row, plan, plain, setting.tolerance, True)
        record["checks"] = checks
        self.record({**record, "side": "learning"})
        if record["status"] != "ok":
            return [{"name": "learning", "ok": False, "detail": f"{record['status']}: {record['error'][:200]}"}]
        return checks

    def run_peers(self):
        needs_default = any(goal.kind == "default_peer" for goal in self.row.goals)
        for peer in self.row.peers:
            chosen = {"all": True, "none": False, "best": needs_default or not peer.default}
            if not chosen.get(self.options.peer, self.options.peer in peer.name) or self.out_of_time(peer.name):
                continue
            plan = self.plan(self.row.gpus, self.options.steps)
            # Rows that differ in our options alone have the same peers: each runs once.
            key = self.row.model, self.row.seq, self.row.tokens, self.row.gpus, peer
            if key not in self.context.peer_records:
                self.context.say(f"{self.row.name} / {peer.name}: {plan['steps']} steps of {plan['tokens']} tokens")
                self.context.peer_records[key] = peers.run(self.row, peer, self.context, plan)
            record = {**self.context.peer_records[key], "row": self.row.name}
            self.peer_records.append(self.record(record))

    def run_within_memory(self):
        if not any(goal.kind == "each_peer_memory" for goal in self.row.goals):
            return
        for peer in self.peer_records:
            if peer["status"] != "ok":
                continue
            budget = math.floor(peer["reserved_gb"] * 10) / 10
            name = f"within {budget:.1f} GB"
            if not self.out_of_time(name):
                base = self.row.ours[0]
                job = {**base.job, table.KEY_BUDGET: budget}
                self.run_ours(dataclasses.replace(base, name=name, job=job), within=peer["setting"])

    def out_of_time(self, name):
        if self.context.left() > 0:
            return False
        self.context.say(f"{self.row.name} / {name}: not run, --stop-after has passed")
        return True

    def run(self):
        wanted = [name for name in self.options.settings.split(",") if name]
        self.context.make_model(self.row.model)
        for setting in self.row.ours:
            if (not wanted or setting.name in wanted) and not self.out_of_time(setting.name):
                self.run_ours(setting)
        self.run_peers()
        self.run_within_memory()


def run_rows(options):
    if not (options.bin and options.out):
        raise SystemExit("bench: --bin and --out are needed (see --help)")
    chosen = table.find_rows(options.rows)
    context = machine.Context(options, any(row.device == "cuda" for row in chosen))
    context.say(f"{len(context.machine['gpus'])} GPUs: {context.machine['gpus'][:1]}, {context.machine['sft_rank']}, "
                f"{context.machine['versions']}")
    short = [row.name for row in chosen if row.device == "cuda" and row.gpus > len(context.machine["gpus"])]
    if short:
        raise SystemExit(f"bench: {', '.join(short)}: this machine has {len(context.machine['gpus'])} GPUs")
    try:
        for index, row in enumerate(chosen):
            context.drop_models(keep={later.model for later in chosen[index:]})
            RowRun(row, context).run()
    finally:
        context.close()
    raw = context.out / "raw.jsonl"
    records = report.load(raw) if raw.exists() else []
    text = report.markdown(records)
    (context.out / "table.md").write_text(text)
    print(text)
    mine = [record for record in records if record["side"] == "ours"]
    broken = [record for record in records if record["side"] == "peer" and record["status"] not in ("ok", "oom")]
    return 0 if mine and all(report.correct(record) for record in mine) and not broken else 1


def main():
    options = parse()
    if options.list:
        for row in table.ROWS:
            goals = ", ".join(f"{goal.kind} {goal.target:g}" for goal in row.goals)
            print(f"{row.name}: {row.model} {row.mode}, sequence {row.seq}, {row.tokens} tokens a step, "
                  f"{row.gpus} GPUs; {len(row.ours)} + {len(row.peers)} settings; {goals}")
        return 0
    if options.report:
        print(report.markdown(report.load(options.report)), end="")
        return 0
    return run_rows(options)


if __name__ == "__main__":
    sys.exit(main())
