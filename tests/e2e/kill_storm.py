"""Kills server, worker and ranks at random moments under load, and counts what became of the jobs.

    python3 tests/e2e/kill_storm.py --server-kills 200 --worker-kills 100 --rank-kills 100

All the while `--submits` jobs a second are submitted (submit_load.cc), each with a request id that is
repeated until it is acknowledged, and `--gangs` long jobs run. Afterwards: no acknowledged job is lost,
no request id has two jobs, no slot was held by two attempts (in the database, and by the processes that
were seen), and every gang ended SUCCEEDED (or, under kills of ranks, for want of progress). The submitted
jobs wait for a GPU of a second node that one of them holds. With `--engine` the gangs are real ranks (CPU
slots) that train the model of --model, by default a tiny one, on the rows of --data; otherwise the stand-in
of fake_training.cc. `--bin` is a build folder. Prints JSON; exits with 1 when something is wrong.

With `--young-kills` processes of all kinds die within their first three seconds, and what died is started
again; with `--damages` a random file of the server or of node-a is damaged every `--damage-pause` seconds
(storm_faults.py), and the database of a stopped server. Then every gang must end within `--settle` seconds or
say what it waits for, and none may fail as its user's fault.
"""

import argparse
import collections
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time

import harness
from storm_faults import Damage, YoungKiller
from tiny_model import write_tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
RANK = {True: "sft-rank train --launch ", False: "sft-fake-rank train --launch "}  # with the engine?


class Storm(harness.ServiceCase):
    """The harness's processes without its test runner."""

    def runTest(self):
        pass

    def __init__(self, options):
        super().__init__()
        self.options = options
        self.random = random.Random(options.seed)
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sft-storm-"))
        self.port = harness.free_port()
        self.processes, self.disks = {}, []
        self.counts = collections.Counter()
        self.seen_together = set()
        self.damage = Damage(options.seed)
        self.problems = []
        self.excused = {}  # gangs that a damage ended or keeps waiting, and how they say so
        self.stop = threading.Event()

    def begin(self):
        harness.write_model(self.dir / "models/tiny")
        if self.options.engine and not self.options.models:
            write_tiny_model(self.dir / "models/small")
        self.serve()
        self.work()
        self.work_for_load()
        for node in ("node-a", "node-b"):
            harness.wait_until(node, lambda: f'"{node}"' in self.sftctl("nodes", "--json").stdout)

    def serve(self):
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}",
                   "--http", "off", "--data-dir", self.dir / "server", "--restart-delay", "0s")

    def work(self):
        slots = 2 * self.options.gangs
        place = ["--cpu-slots", slots] if self.options.engine else ["--simulate-gpus", f"H100:{slots}",
                                                                   "--cpu-slots", 0]
        self.start_node("node-a", *place, stand_in=not self.options.engine)

    def work_for_load(self):
        # The one GPU of this node is for the submitted jobs; the first of them keeps it.
        self.start_node("node-b", "--simulate-gpus", "A100:1", "--cpu-slots", 0, stand_in=True)

    def start_node(self, node, *place, stand_in):
        rank = ["--rank-binary", harness.BUILD / "tests/sft-fake-rank"] if stand_in else []
        # Ranks take all the CPU there is: the server goes first.
        self.start(node, "nice", "-n", 10, harness.BUILD / "bin/sft-worker", "--dev",
                   "--server", f"127.0.0.1:{self.port}", "--data-dir", self.dir / node, "--node", node, "--models",
                   self.options.models or self.dir / "models", "--grace", 2, *place, *rank)

    def gang_file(self, name):
        steps = self.options.steps
        if not self.options.engine:
            mode = f"train steps={steps} pace=100 save=5"
            return self.write_job(mode, ranks=2, name=name, compute="max_restarts = 10000",
                                  tables="[checkpoint]\nsave_total_limit = 2")
        path = self.dir / f"{name}.toml"
        path.write_text(f"""
[job]
model = "{self.options.model}"
data = "{pathlib.Path(self.options.data).resolve()}"
[compute]
gpu_type = "CPU"
gpu_count = 2
max_restarts = 10000
[training]
mode = "lora"
[hyperparameters]
max_steps = {steps}
per_device_batch = 1
gradient_accumulation_steps = 1
sequence_length = 64
[checkpoint]
save_strategy = "steps"
save_steps = {self.options.save_steps}
save_total_limit = 2
""")
        return path

    def start_gangs(self):
        return [json.loads(self.sftctl("submit", self.gang_file(f"gang-{i}"), "--json").stdout)["job"]
                for i in range(self.options.gangs)]

    # ---- load ----

    def start_load(self):
        job_file = self.write_job("wait", ranks=1, name="load")
        job_file.write_text(job_file.read_text().replace("H100", "A100"))
        self.sftctl("submit", job_file)  # with its data; this one gets the GPU
        self.acknowledged = open(self.dir / "acknowledged", "wb")
        self.loaded_at = time.monotonic()
        self.submitter = subprocess.Popen(
            [harness.BUILD / "tests/sft-submit-load", str(self.port), job_file, job_file.with_suffix(".jsonl"),
             str(self.options.submits)], stdin=subprocess.PIPE, stdout=self.acknowledged)
        self.processes["submitter"] = self.submitter
        threading.Thread(target=self.watch_processes, daemon=True).start()

    def end_load(self):
        """What the server acknowledged: request id -> job."""
        self.submitter.stdin.close()
        code = self.submitter.wait(timeout=120)
        self.counts["load_seconds"] = round(time.monotonic() - self.loaded_at)
        self.stop.set()
        lines = [line.split() for line in (self.dir / "acknowledged").read_text().splitlines()]
        self.counts["acknowledged"] = len(lines)
        self.counts["submits_repeated"] = sum(int(repeats) for _, _, repeats in lines)
        self.counts["submits_per_second"] = round(len(lines) / self.counts["load_seconds"], 1)
        return {request: job for request, job, _ in lines}, code

    def watch_processes(self):
        """Notes which attempts have ranks at the same time."""
        launch = re.compile(re.escape(str(self.dir)) + r"/node-a/attempts/([^/]+)/")
        while not self.stop.wait(0.2):
            commands = map(harness.command_of, harness.processes_with(RANK[self.options.engine] + str(self.dir)))
            uids = sorted({found[1] for found in map(launch.search, commands) if found})
            self.seen_together.update(itertools.combinations(uids, 2))

    # ---- kills ----

    def kill_server(self):
        time.sleep(self.random.uniform(0.2, 1.5))
        self.kill("server")
        self.serve()
        self.counts["server_kills"] += 1

    def kill_worker(self):
        time.sleep(self.random.uniform(0.2, 1.5))
        self.kill("node-a")
        self.work()
        self.counts["worker_kills"] += 1

    def kill_rank(self):
        time.sleep(self.random.uniform(0.5, self.options.rank_pause))
        ranks = harness.processes_with(RANK[self.options.engine] + str(self.dir / "node-a"))
        if ranks:
            try:
                os.kill(self.random.choice(ranks), signal.SIGKILL)
                self.counts["rank_kills"] += 1
            except ProcessLookupError:
                pass

    def revive(self):
        """Starts server and workers again where they have died."""
        time.sleep(0.2)
        for name, start in (("server", self.serve), ("node-a", self.work), ("node-b", self.work_for_load)):
            if self.processes[name].poll() is not None:
                start()

    def make_young(self):
        """Now and then server or worker are started again, so that there are young ones."""
        for _ in range(10):
            self.revive()
        self.kill(self.random.choice(("server", "node-a")))

    def damage_one(self):
        end = time.monotonic() + self.options.damage_pause
        while time.monotonic() < end:
            self.revive()
        if self.counts["damages"] % 5 == 4:
            self.kill("server")
            self.problems += self.damage.database(self.dir / "server")
            self.counts["damaged_databases"] += 1
            self.serve()
        elif not self.damage.one([self.dir / "server", self.dir / "node-a"]):
            return
        self.counts["damages"] += 1

    def storm(self, kind, kill, count):
        """So many kills under running gangs; new gangs take the place of those that ended."""
        gangs, ended = self.start_gangs(), []
        begin = time.monotonic()
        while self.counts[kind] < count and time.monotonic() - begin < self.options.limit:
            kill()
            for job in [job for job in gangs if self.state(job) in ("SUCCEEDED", "FAILED", "CANCELLED")]:
                gangs.remove(job)
                ended.append(job)
                gangs += self.one_gang()
        self.counts[kind + "_seconds"] = round(time.monotonic() - begin)
        return gangs + ended

    def one_gang(self):
        result = self.sftctl("submit", self.gang_file("gang-more"), "--json")
        return [json.loads(result.stdout)["job"]] if result.returncode == 0 else []

    def state(self, job):
        result = self.sftctl("status", job, "--json")
        return json.loads(result.stdout)["state"] if result.returncode == 0 else "?"

    # ---- verdict ----

    def database(self):
        return sqlite3.connect(f"file:{self.dir}/server/server.db?mode=ro", uri=True)

    def double_slots(self):
        """Pairs of attempts that held one slot at the same time. The UNIQUE index makes two live rows
        impossible; this looks at the times of all rows, and at the processes that were seen."""
        with self.database() as db:
            found = db.execute(
                "SELECT a.attempt_uid, b.attempt_uid FROM allocations a JOIN allocations b ON a.node = b.node AND "
                "a.slot = b.slot AND a.id < b.id AND b.created_us < coalesce(a.freed_us, 9e18) AND a.created_us < "
                "coalesce(b.freed_us, 9e18)").fetchall()
            slots = collections.defaultdict(set)
            for uid, node, slot in db.execute("SELECT attempt_uid, node, slot FROM allocations"):
                slots[uid].add((node, slot))
        return found + [pair for pair in self.seen_together if slots[pair[0]] & slots[pair[1]]]

    def check_load(self, submitted, code):
        problems = [] if code == 0 else [f"sft-submit-load ended with {code}"]
        with self.database() as db:
            jobs = dict(db.execute("SELECT request_id, id FROM jobs WHERE display_name LIKE 'load-%'"))
            twice = db.execute("SELECT request_id, count(*) FROM jobs WHERE request_id IS NOT NULL "
                               "GROUP BY 1 HAVING count(*) > 1").fetchall()
        self.counts["load_jobs_stored"] = len(jobs)
        problems += [f"job {job} of request {request} was acknowledged, stored is {jobs.get(request)}"
                     for request, job in submitted.items() if jobs.get(request) != job]
        problems += [f"request {request} has {count} jobs" for request, count in twice]
        if self.counts["submits_per_second"] < 0.98 * self.options.submits:
            problems.append(f"only {self.counts['submits_per_second']} submits a second were acknowledged")
        return problems

    def check_gangs(self, gangs):
        problems = [f"attempts {a} and {b} had one slot at the same time" for a, b in self.double_slots()]
        self.counts["gangs"] = len(gangs)
        for job in gangs:
            status = json.loads(self.sftctl("status", job, "--json").stdout)
            self.counts["gang_" + status["state"]] += 1
            self.counts["gang_attempts"] += status["attempt"]
            # Killed three times in a row before its first new step: then this is the right verdict.
            code = status["verdict"]["code"]
            right = code == "no_progress" and (self.options.rank_kills or self.options.young_kills)
            if status["state"] != "SUCCEEDED" and not right and job not in self.excused:
                problems.append(f"gang {job}: {status['state']} {status['reason']} {status['verdict']}")
        return problems

    def check_damaged(self, gangs):
        """What was damaged may end a job, if it is named and not called its user's fault; what waits says why."""
        for job in gangs:
            status = json.loads(self.sftctl("status", job, "--json").stdout)
            verdict = status["verdict"]
            if status["state"] == "FAILED" and verdict["domain"] != "user":
                self.excused[job] = f"{verdict['code']}: {verdict['message']}"
            elif status["state"] not in ("SUCCEEDED", "FAILED", "CANCELLED") and status["reason"]:
                self.excused[job] = f"{status['state']}: {status['reason']}"

    def wait_for(self, gangs):
        end = time.monotonic() + self.options.settle
        for job in gangs:
            left = max(1, round(end - time.monotonic()))
            self.sftctl("wait", job, "--timeout", f"{left}s", timeout=left + 60)

    def run(self):
        """What went wrong."""
        self.start_load()
        gangs = []
        for kind, kill, count in (("server_kills", self.kill_server, self.options.server_kills),
                                  ("worker_kills", self.kill_worker, self.options.worker_kills),
                                  ("rank_kills", self.kill_rank, self.options.rank_kills)):
            if count:
                begun = self.storm(kind, kill, count)
                self.wait_for(begun)
                print(kind, json.dumps(self.counts), file=sys.stderr)
                gangs += begun
        if self.options.young_kills:
            killer = YoungKiller(self.dir, self.options.seed, self.counts)
            killer.start()
            begun = self.storm("young_kills", self.make_young, self.options.young_kills)
            killer.disarm()
            self.revive()
            self.wait_for(begun)
            print("young_kills", json.dumps(self.counts), file=sys.stderr)
            gangs += begun
        if self.options.damages:
            begun = self.storm("damages", self.damage_one, self.options.damages)
            self.wait_for(begun)
            self.check_damaged(begun)
            print("damages", json.dumps(self.damage.done), json.dumps(self.excused), file=sys.stderr)
            gangs += begun
        problems = self.problems + self.check_load(*self.end_load())
        return problems + self.check_gangs(gangs)

    def clean(self, keep):
        """Ends what was started; with `keep` the folder stays, for a person to look at."""
        self.stop.set()
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in harness.processes_with(str(self.dir)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if keep:
            print(f"kept: {self.dir}", file=sys.stderr)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="build folder (default: SFT_BUILD_DIR, then build/release)")
    parser.add_argument("--server-kills", type=int, default=200)
    parser.add_argument("--worker-kills", type=int, default=100)
    parser.add_argument("--rank-kills", type=int, default=100)
    parser.add_argument("--young-kills", type=int, default=100)
    parser.add_argument("--damages", type=int, default=10)
    parser.add_argument("--damage-pause", type=float, default=60, help="seconds between two damaged files")
    parser.add_argument("--settle", type=int, default=900, help="seconds until every gang ended or says why it waits")
    parser.add_argument("--submits", type=float, default=20, help="a second, all the while")
    parser.add_argument("--gangs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150, help="of a gang")
    parser.add_argument("--rank-pause", type=float, default=8, help="most seconds between two kills of ranks")
    parser.add_argument("--save-steps", type=int, default=100, help="of a gang of real ranks")
    parser.add_argument("--limit", type=int, default=3600, help="seconds for each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--models")
    parser.add_argument("--model", default="small")
    parser.add_argument("--data", default=ROOT / "deploy/demo/train.jsonl")
    options = parser.parse_args()
    if options.bin:
        harness.BUILD = pathlib.Path(options.bin).resolve()
    storm, problems = Storm(options), ["it did not end"]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started goes with it
    try:
        storm.begin()
        problems = storm.run()
        print(json.dumps({**storm.counts, "problems": problems}, indent=1))
    finally:
        storm.clean(keep=bool(problems))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
