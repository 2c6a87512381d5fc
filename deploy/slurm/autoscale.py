#!/usr/bin/env python3
"""Asks Slurm for nodes when the service's queue wants them: docs/slurm.md.

    deploy/slurm/autoscale.py --gpu-type H100 --gpus 8 --max 16 --time 8:00:00 -- --gres=gpu:8 --exclusive --mem=0

Each node is a Slurm job of worker.sbatch, by whose name this program knows those that are its own: it keeps
nothing on disk and may be ended and started again at any time. Nodes give themselves back when they had no
job for --idle; what is still waiting in Slurm's queue is withdrawn when the service no longer wants it.

It needs sbatch, squeue and scancel, and sftctl logged in as a user who sees all projects (an admin). One
process serves one kind of nodes; start several for several kinds.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time

CALL_TIMEOUT_S = 60
# A job that has ended sooner than this without its node ever joining has failed.
LONGEST_PAUSE_S = 1800
NAME = re.compile(r"[A-Za-z0-9._-]+")


def seconds(text):
    """ "90s", "10m", "2h", "1d", or a number of seconds."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text}: not a time such as 10m")
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


def slurm_seconds(text):
    """A time limit as sbatch takes it: minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]."""
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3 or (dash and not days.isdigit()):
        raise argparse.ArgumentTypeError(f"{text}: not a time limit such as 60, 8:00:00 or 1-12")
    numbers = [int(part) for part in parts]
    if dash:
        hours, minutes, secs = numbers + [0] * (3 - len(numbers))
        return int(days) * 86400 + hours * 3600 + minutes * 60 + secs
    if len(numbers) == 3:
        return numbers[0] * 3600 + numbers[1] * 60 + numbers[2]
    return numbers[0] * 60 + (numbers[1] if len(numbers) == 2 else 0)


@dataclasses.dataclass
class Pool:
    """A kind of nodes: how many slots of which type each has, and how many there may be."""
    gpu_type: str
    gpus: int
    least: int
    most: int


@dataclasses.dataclass
class Wanted:
    """A waiting job: so many nodes at once, with so many slots of each."""
    job: str
    nodes: int
    gpus: int


@dataclasses.dataclass
class Allocation:
    """A Slurm job of ours. `base`: one of those that stay when there is nothing to do."""
    number: str
    state: str
    base: bool

    def waits(self):
        return self.state == "PENDING"

    def ends(self):
        return self.state not in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED")


@dataclasses.dataclass
class Plan:
    base: int = 0      # nodes to ask for that stay,
    more: int = 0      # and that leave when idle
    withdraw: list = dataclasses.field(default_factory=list)  # Slurm jobs
    beyond: list = dataclasses.field(default_factory=list)    # jobs of the service that no pool of this size can hold


def wanted_jobs(pool, jobs):
    """Of `sftctl list --json`, those that wait for nothing but slots of this type."""
    wanted = []
    for job in jobs:
        gpu_type, _, count = job["variant"].rpartition("-")
        if job["state"] != "PENDING" or gpu_type != pool.gpu_type or not (job["outlook"] or {}).get("lacks_slots"):
            continue
        gpus = pool.gpus if job["exclusive"] else int(count.removesuffix("x"))
        wanted.append(Wanted(job["job"], max(1, job["node_count"]), max(gpus, int(count.removesuffix("x")))))
    return wanted


def free_slots(pool, nodes):
    """Of `sftctl nodes --json`: free slots of each node that takes jobs."""
    free = []
    for node in nodes:
        if node["state"] != "UP" or node["unusable"]:
            continue
        slots = [slot for slot in node["slots"] if slot["gpu_type"] == pool.gpu_type and slot["healthy"]]
        free.append(sum(not slot["job"] for slot in slots))
    return free


def joined(nodes):
    """The Slurm jobs whose nodes belong to the fleet."""
    found = set()
    for node in nodes:
        allocation = (node["lease"] or {}).get("allocation", "")
        if allocation.startswith("Slurm job "):
            found.add(allocation.removeprefix("Slurm job "))
    return found


def plan(pool, wanted, nodes, allocations):
    """What to ask Slurm for and what to withdraw, so that the waiting jobs have room.

    Jobs are put, the largest first, into what is free, then into nodes that are on their way, then into
    nodes to ask for.
    """
    live = [each for each in allocations if not each.ends()]
    coming = [each for each in live if each.number not in joined(nodes)]
    # Those that run come first, those of Slurm's queue that are to be withdrawn last.
    coming.sort(key=lambda each: (each.waits(), not each.base, int(each.number)))
    room = free_slots(pool, nodes)
    first_coming = len(room)
    room += [pool.gpus] * len(coming)
    result = Plan(base=max(0, min(pool.least - sum(each.base for each in live), pool.most - len(live))))
    room += [pool.gpus] * result.base
    asked = len(live) + result.base
    used = set()
    for job in sorted(wanted, key=lambda each: (-each.gpus, -each.nodes)):
        if job.gpus > pool.gpus or job.nodes > pool.most:
            result.beyond.append(job.job)
            continue
        places = [i for i, free in enumerate(room) if free >= job.gpus][:job.nodes]
        lacking = job.nodes - len(places)
        if asked + lacking > pool.most:
            continue  # some of the nodes that there are become free first
        places += range(len(room), len(room) + lacking)
        room += [pool.gpus] * lacking
        asked += lacking
        result.more += lacking
        for place in places:
            room[place] -= job.gpus
        used.update(places)
    for i, allocation in enumerate(coming):
        if allocation.waits() and not allocation.base and first_coming + i not in used:
            result.withdraw.append(allocation.number)
    return result


class Failed(Exception):
    """A program did not answer; what it would have said is not known."""


def call(command, **more):
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False, **more)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{command[0]}: {error}") from error
    if result.returncode != 0:
        raise Failed(f"{' '.join(command[:2])} ended with {result.returncode}: {result.stderr.strip()}")
    return result.stdout


def say(text):
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}", flush=True)


class Autoscaler:
    def __init__(self, options):
        self.options = options
        self.pool = Pool(options.gpu_type, options.gpus, options.min, options.max)
        self.name = options.name or f"sft-{options.gpu_type}-{options.gpus}"
        self.submitted = set()  # Slurm jobs of this process whose nodes have not joined
        self.failures = 0
        self.not_before = 0.0
        self.told = set()

    def sftctl(self, *arguments):
        command = [self.options.sftctl, *arguments]
        if self.options.server:
            command[1:1] = ["--server", self.options.server]
        return json.loads(call(command))

    def allocations(self):
        lines = call(["squeue", "--noheader", "--array", "--user", str(os.getuid()), "--name",
                      f"{self.name},{self.name}-base", "--format", "%i|%T|%j"]).splitlines()
        return [Allocation(number, state, name.endswith("-base"))
                for number, state, name in (line.strip().split("|") for line in lines if line.strip())]

    def submit(self, base):
        exported = f"ALL,SFT_LEAVE_LEAD={self.options.lead}s,SFT_LEAVE_IDLE={'' if base else self.options.idle}"
        script = str(pathlib.Path(__file__).resolve().with_name("worker.sbatch"))
        answer = call(["sbatch", "--parsable", f"--job-name={self.name}{'-base' if base else ''}",
                       f"--time={self.options.time}", f"--export={exported}", *self.options.sbatch, script])
        number = answer.strip().split(";")[0]
        self.submitted.add(number)
        say(f"asked Slurm for {'a node that stays' if base else 'a node'}: job {number}")

    def note_failures(self, allocations, nodes):
        """A node that never joined is most likely to fail again: pauses grow until one joins."""
        here = joined(nodes)
        if self.submitted & here:
            self.failures = 0
        self.submitted -= here
        gone = self.submitted - {each.number for each in allocations}
        self.submitted -= gone
        if not gone:
            return
        self.failures += 1
        pause = min(LONGEST_PAUSE_S, self.options.interval * 2 ** self.failures)
        self.not_before = time.monotonic() + pause
        say(f"Slurm job {', '.join(sorted(gone, key=int))} ended before its node joined: the end of its log "
            f"(sft-worker-JOB.log) says why. No more are asked for in the next {pause} s")

    def step(self):
        # Nodes before Slurm's jobs: one that joins in between counts twice at worst, and not never.
        jobs = self.sftctl("list", "--state", "PENDING", "--limit", "5000", "--json")
        nodes = self.sftctl("nodes", "--json")
        allocations = self.allocations()
        self.note_failures(allocations, nodes)
        decided = plan(self.pool, wanted_jobs(self.pool, jobs), nodes, allocations)
        for job in set(decided.beyond) - self.told:
            say(f"{job} needs more than {self.pool.most} nodes with {self.pool.gpus} x {self.pool.gpu_type}: "
                "nothing is asked for it")
        self.told = set(decided.beyond)
        for number in decided.withdraw:
            call(["scancel", "--state=PENDING", number])
            self.submitted.discard(number)
            say(f"withdrew Slurm job {number}: nothing waits for it any more")
        if time.monotonic() < self.not_before:
            return
        for i in range(decided.base + decided.more):
            self.submit(base=i < decided.base)

    def run(self):
        while True:
            try:
                self.step()
            except (Failed, ValueError, KeyError) as error:
                # Silence is no answer: nothing is decided by it.
                say(f"nothing is changed this time: {error}")
                if self.options.once:
                    return 1
            if self.options.once:
                return 0
            time.sleep(self.options.interval)


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu-type", required=True, help="type of slots, as `sftctl nodes` shows it")
    parser.add_argument("--gpus", type=int, required=True, help="slots that a node will have")
    parser.add_argument("--min", type=int, default=0, help="nodes that stay when there is nothing to do [0]")
    parser.add_argument("--max", type=int, required=True, help="most nodes at once")
    parser.add_argument("--time", required=True, help="time limit of a node, as sbatch --time takes it")
    parser.add_argument("--idle", type=seconds, default=600, help="a node leaves when it had no job for so long [10m]")
    parser.add_argument("--lead", type=seconds, default=300,
                        help="so long before its end a node's jobs are asked for checkpoints [5m]")
    parser.add_argument("--interval", type=seconds, default=30, help="how often the queue is looked at [30s]")
    parser.add_argument("--name", help="name of the Slurm jobs [sft-TYPE-GPUS]: two kinds of nodes need two")
    parser.add_argument("--server", help="the service [as sftctl is logged in]")
    parser.add_argument("--sftctl", default="sftctl", help="the program [sftctl]")
    parser.add_argument("--once", action="store_true", help="look once and exit: for cron")
    parser.add_argument("sbatch", nargs="*", metavar="SBATCH OPTIONS", help="behind --: what a node needs")
    options = parser.parse_args(arguments)
    if options.gpus < 1 or options.max < 1 or not 0 <= options.min <= options.max:
        parser.error("--gpus and --max are at least 1, and --min is from 0 to --max")
    if options.name and not NAME.fullmatch(options.name):
        parser.error(f"--name {options.name}: letters, digits, dots, dashes and underscores alone")
    if options.interval < 10 and not options.once:
        parser.error("--interval: Slurm's controller is not to be asked more often than every 10 s")
    if options.lead < 1 or options.idle < 1:
        parser.error("--lead and --idle are at least 1 s")
    try:
        allowed = slurm_seconds(options.time)
    except argparse.ArgumentTypeError as error:
        parser.error(f"--time {error}")
    # As sft-worker decides (worker/daemon/lease.cc).
    least = 2 * options.lead + 30
    if allowed < least:
        parser.error(f"--time {options.time} is {allowed} s: too short for a job to begin and to write its checkpoint, for "
                     f"each of which --lead keeps {options.lead} s. Give at least --time {-(-least // 60)}, or a shorter --lead")
    return options


if __name__ == "__main__":
    try:
        sys.exit(Autoscaler(parse(sys.argv[1:])).run())
    except KeyboardInterrupt:
        sys.exit(130)
