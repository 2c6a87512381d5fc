"""Kills server, worker and ranks at random moments under load, and counts what became of the jobs.

    python3 tests/e2e/kill_storm.py --server-kills 200 --worker-kills 100 --rank-kills 100

While the server is killed, `--submits` jobs a second are submitted, each with a request id that is
repeated until it is acknowledged, and `--gangs` long jobs run. Afterwards: no acknowledged job is lost,
no request id has two jobs, no slot was held twice, and every gang ended SUCCEEDED. With `--engine` the
gangs are real ranks (CPU slots) training the model of --model on the rows of --data; otherwise the
stand-in of fake_training.cc. `--bin` is a build folder. Prints JSON; exits with 1 when something is
wrong.
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import uuid

import harness


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
        self.submitted = {}
        self.waiting = []
        self.stop = threading.Event()

    def begin(self):
        if not self.options.engine:
            harness.write_model(self.dir / "models/tiny")
        self.serve()
        self.work()

    def serve(self):
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}",
                   "--http", "off", "--data-dir", self.dir / "server", "--restart-delay", "0s")

    def work(self):
        # The one CPU slot (of the engine: GPU) is for the jobs of the load, which all wait for it.
        place = (["--simulate-gpus", "H100:1", "--cpu-slots", 8] if self.options.engine else
                 ["--simulate-gpus", "H100:8", "--cpu-slots", 1,
                  "--rank-binary", harness.BUILD / "tests/sft-fake-rank"])
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "node-a", "--node", "node-a", "--models",
                   self.options.models or self.dir / "models", "--grace", 2, *map(str, place))

    def ready(self):
        harness.wait_until("the node", lambda: '"UP"' in self.sftctl("nodes", "--json").stdout)

    def load_file(self):
        """A job of the slot type that only the load uses; the first one holds the slot."""
        if self.options.engine:
            text = self.gang_file("load", 1000000).read_text()
            text = text.replace('"CPU"', '"H100"').replace("gpu_count = 2", "gpu_count = 1")
        else:
            text = self.write_job("wait", ranks=1, name="load").read_text().replace("H100", "CPU")
        (self.dir / "load.toml").write_text(text)
        return self.dir / "load.toml"

    def gang_file(self, name, steps):
        if self.options.engine:
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
save_steps = 5
save_total_limit = 2
""")
            return path
        mode = f"train steps={steps} pace=100 save=5"
        return self.write_job(mode, ranks=2, name=name, compute="max_restarts = 10000",
                              tables="[checkpoint]\nsave_total_limit = 2")

    def start_gangs(self, steps):
        return [json.loads(self.sftctl("submit", self.gang_file(f"gang-{i}", steps), "--json").stdout)["job"]
                for i in range(self.options.gangs)]

    # ---- load ----

    def submit_one(self, job_file, number):
        """A request id is repeated until the server acknowledges it."""
        request = str(uuid.UUID(int=self.random.getrandbits(128)))
        while not self.stop.is_set():
            result = self.sftctl("submit", job_file, "--request-id", request, "--json", "--name", f"load-{number}")
            if result.returncode == 0:
                self.submitted[request] = json.loads(result.stdout)["job"]
                self.keep_queue_short(self.submitted[request])
                return
            self.counts["submits_repeated"] += 1
            time.sleep(0.05)

    def keep_queue_short(self, job):
        """The scheduler looks at the oldest 1000 waiting jobs: the gangs have to be among them."""
        self.waiting.append(job)
        if len(self.waiting) > 700:
            self.sftctl("cancel", self.waiting.pop(1))  # the first one holds the slot

    def load(self):
        job_file = self.load_file()
        number, begin = 0, time.monotonic()
        threads = []
        while not self.stop.is_set():
            if number < (time.monotonic() - begin) * self.options.submits and len(threads) < 60:
                number += 1
                threads.append(threading.Thread(target=self.submit_one, args=(job_file, number)))
                threads[-1].start()
            threads = [thread for thread in threads if thread.is_alive()]
            time.sleep(0.005)
        for thread in threads:
            thread.join()
        self.counts["submits_per_second"] = round(len(self.submitted) / (time.monotonic() - begin), 1)

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
        time.sleep(self.random.uniform(0.5, 1.5))
        name = "sft-rank train --launch " if self.options.engine else "sft-fake-rank train --launch "
        ranks = harness.processes_with(name + str(self.dir))
        if ranks:
            try:
                os.kill(self.random.choice(ranks), signal.SIGKILL)
                self.counts["rank_kills"] += 1
            except ProcessLookupError:
                pass

    def storm(self, kind, kill, count, steps):
        """So many kills under running gangs; new gangs take the place of those that ended."""
        gangs, ended = self.start_gangs(steps), []
        begin = time.monotonic()
        while self.counts[kind] < count and time.monotonic() - begin < self.options.limit:
            kill()
            states = {job: self.state(job) for job in gangs}
            for job, state in list(states.items()):
                if state in ("SUCCEEDED", "FAILED", "CANCELLED"):
                    gangs.remove(job)
                    ended.append(job)
                    gangs += self.one_gang(steps)
        self.counts[kind + "_seconds"] = round(time.monotonic() - begin)
        return gangs + ended

    def one_gang(self, steps):
        result = self.sftctl("submit", self.gang_file("gang-more", steps), "--json")
        return [json.loads(result.stdout)["job"]] if result.returncode == 0 else []

    def state(self, job):
        result = self.sftctl("status", job, "--json")
        return json.loads(result.stdout)["state"] if result.returncode == 0 else "?"

    # ---- verdict ----

    def double_slots(self):
        """Allocations of one slot that overlap in time: the UNIQUE index makes live ones impossible."""
        with sqlite3.connect(f"file:{self.dir}/server/server.db?mode=ro", uri=True) as db:
            return db.execute(
                "SELECT count(*) FROM allocations a JOIN allocations b ON a.node = b.node AND a.slot = b.slot "
                "AND a.id < b.id AND b.created_us < coalesce(a.freed_us, 9e18) AND a.created_us < "
                "coalesce(b.freed_us, 9e18)").fetchone()[0]

    def check(self, gangs):
        problems = []
        with sqlite3.connect(f"file:{self.dir}/server/server.db?mode=ro", uri=True) as db:
            rows = dict(db.execute("SELECT request_id, count(*) FROM jobs WHERE request_id IS NOT NULL GROUP BY 1"))
            loads = db.execute("SELECT count(*) FROM jobs WHERE display_name LIKE 'load-%'").fetchone()[0]
            stored = {row[0] for row in db.execute("SELECT id FROM jobs")}
        problems += [f"acknowledged job {job} is lost" for job in self.submitted.values() if job not in stored]
        self.counts["acknowledged"] = len(self.submitted)
        self.counts["load_jobs_stored"] = loads
        problems += [f"request {request} has {count} jobs" for request, count in rows.items() if count > 1]
        if self.double_slots():
            problems.append(f"{self.double_slots()} slots were held twice")
        for job in gangs:
            status = json.loads(self.sftctl("status", job, "--json").stdout)
            self.counts["gang_" + status["state"]] += 1
            self.counts["gang_attempts"] += status["attempt"]
            if status["state"] != "SUCCEEDED":
                problems.append(f"gang {job}: {status['state']} {status['reason']} {status['verdict']}")
        return problems

    def finish(self, gangs):
        self.stop.set()
        self.ready()
        for job in gangs:
            self.sftctl("wait", job, "--timeout", f"{self.options.limit}s", timeout=self.options.limit + 60)

    def clean(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for pid in harness.processes_with(str(self.dir)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        shutil.rmtree(self.dir, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", help="build folder (default: SFT_BUILD_DIR, then build/release)")
    parser.add_argument("--server-kills", type=int, default=200)
    parser.add_argument("--worker-kills", type=int, default=100)
    parser.add_argument("--rank-kills", type=int, default=100)
    parser.add_argument("--submits", type=float, default=20, help="a second, while the server is killed")
    parser.add_argument("--gangs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=150, help="of a gang")
    parser.add_argument("--limit", type=int, default=3600, help="seconds for each part")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", action="store_true")
    parser.add_argument("--models")
    parser.add_argument("--model")
    parser.add_argument("--data")
    options = parser.parse_args()
    if options.bin:
        harness.BUILD = pathlib.Path(options.bin)
    storm = Storm(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it started goes with it
    try:
        storm.begin()
        storm.ready()
        gangs = []
        if options.server_kills:
            load = threading.Thread(target=storm.load)
            load.start()
            gangs += storm.storm("server_kills", storm.kill_server, options.server_kills, options.steps)
            storm.stop.set()
            load.join()
        if options.worker_kills:
            gangs += storm.storm("worker_kills", storm.kill_worker, options.worker_kills, options.steps)
        if options.rank_kills:
            gangs += storm.storm("rank_kills", storm.kill_rank, options.rank_kills, options.steps)
        storm.finish(gangs)
        problems = storm.check(gangs)
        print(json.dumps({**storm.counts, "problems": problems}, indent=1))
    finally:
        storm.clean()
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
