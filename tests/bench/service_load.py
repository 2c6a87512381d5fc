#!/usr/bin/env python3
"""Load on a server: submits, dispatches, heartbeats, followers, what a long history costs, and all at once.

    tests/bench/service_load.py [--build build/release] [--only submit,workers,...] [--json FILE] [--lines FILE]

Prints a table of what was measured beside its target, the disk's fsync latency first, and exits with 1 when
a target is missed. The server runs in a temporary folder (TMPDIR says on which disk); the load comes from
sft-service-load, on the same cores: figures of two cores are those of both together.
"""

import argparse
import http.client
import json
import os
import pathlib
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
import harness  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")


class Bench(harness.ServiceCase):
    """The harness's processes without a test around them."""

    def runTest(self):
        pass

    def _outcome_failed(self):
        return False

    def load(self, *arguments, timeout=300):
        """The load's last line as JSON."""
        done = subprocess.run([str(harness.BUILD / "tests/sft-service-load"), f"127.0.0.1:{self.port}",
                               *map(str, arguments)], capture_output=True, text=True, timeout=timeout, check=False)
        if not done.stdout.strip():
            raise SystemExit(f"the load said nothing: {done.stderr}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def start_load(self, *arguments):
        return self.start_beside(str(harness.BUILD / "tests/sft-service-load"), f"127.0.0.1:{self.port}", *arguments)

    def start_beside(self, *command):
        """A process that ends with the part, whatever happens."""
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        return process

    def cpu_seconds(self, pid=None):
        fields = pathlib.Path(f"/proc/{pid or self.processes['server'].pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory_mb(self):
        for line in pathlib.Path(f"/proc/{self.processes['server'].pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1000
        return 0

    def threads(self):
        return len(os.listdir(f"/proc/{self.processes['server'].pid}/task"))

    def upload(self, ranks=1):
        """A job that was submitted once, so that its data set is there; the job's and the data's files."""
        job = self.write_job("ok", ranks=ranks, name="load")
        result = self.sftctl("submit", job, "--json")
        assert result.returncode == 0, result.stderr
        return job, job.with_suffix(".jsonl"), json.loads(result.stdout)["job"]

    def fresh(self, http="off"):
        self.kill("server") if "server" in self.processes else None
        subprocess.run(["rm", "-rf", str(self.dir / "server")], check=True)
        self.start_server(http=http)


def fsync_ms(folder, count=200):
    times = []
    with open(folder / "fsync", "wb", buffering=0) as out:
        for _ in range(count):
            out.write(b"x" * 4096)
            begin = time.perf_counter()
            os.fdatasync(out.fileno())
            times.append((time.perf_counter() - begin) * 1e3)
    (folder / "fsync").unlink()
    return statistics.median(times), sorted(times)[int(len(times) * 0.99)]


def add_history(database, sample, count):
    """`count` finished jobs with an attempt, an allocation, events and a member each, as the sample's row."""
    with sqlite3.connect(database) as db:
        db.row_factory = sqlite3.Row
        columns = [row[1] for row in db.execute("PRAGMA table_info(jobs)")]
        row = dict(db.execute("SELECT * FROM jobs WHERE id = ?", (sample,)).fetchone())
        now = int(time.time() * 1e6)
        marks = ",".join("?" * len(columns))
        base = db.execute("SELECT max(sequence) FROM jobs").fetchone()[0] + 1

        def jobs():
            for i in range(count):
                ended = now - (count - i) * 1_000_000
                new = {**row, "sequence": base + i, "id": f"job-h{base + i}", "state": 5, "request_id": None,
                       "attempt": 1, "created_us": ended - 60_000_000, "started_us": ended - 30_000_000,
                       "ended_us": ended, "verdict": '{"domain":1,"code":"succeeded"}'}
                yield [new[column] for column in columns]
        db.executemany(f"INSERT INTO jobs ({','.join(columns)}) VALUES ({marks})", jobs())
        db.executemany(
            "INSERT INTO attempts (uid, job_id, number, epoch, state, reason, created_us, ended_us) "
            "VALUES (?, ?, 1, 1, 5, '', ?, ?)",
            ((f"attempt-h{base + i}", f"job-h{base + i}", now - (count - i) * 1_000_000 - 50_000_000,
              now - (count - i) * 1_000_000) for i in range(count)))
        db.executemany(
            "INSERT INTO events (job_id, sequence, time_us, type, message, attempt) VALUES (?, ?, ?, 'state', ?, 1)",
            ((f"job-h{base + i}", k, now, "PENDING -> PREPARING") for i in range(count) for k in (1, 2, 3)))


class Report:
    def __init__(self):
        self.rows = []
        self.lines = []  # what was measured, as it came

    def add(self, what, value, unit, target=None, at_most=True):
        met = target is None or (value <= target if at_most else value >= target)
        self.rows.append({"what": what, "value": round(value, 3), "unit": unit, "target": target, "met": met})
        bound = "" if target is None else f"{'at most' if at_most else 'at least'} {target:g}"
        print(f"{'    ' if met else 'MISS'} {what:<52} {value:>12.3f} {unit:<10} {bound}", flush=True)


def bench_submit(bench, report):
    bench.fresh()
    job, data, _ = bench.upload()
    bench.load("submit", job, data, 200, 2)
    result = bench.load("submit", job, data, 1000, 10)
    report.add("durable submits, asked for 1,000/s", result["rate"], "1/s", 990, at_most=False)
    report.add("  median", result["p50_ms"], "ms")
    report.add("  99th percentile, from when it was due", result["p99_ms"], "ms", 10)
    report.add("  refused or failed", result["failed"], "", 0)


def bench_dispatch(bench, report):
    bench.fresh()
    workers = bench.start_load("workers", 200, 8, 60)
    workers.stdout.readline()
    job, data, _ = bench.upload()
    result = bench.load("submit", job, data, 1000, 8)
    time.sleep(4)
    out = json.loads(workers.communicate(timeout=120)[0].strip().splitlines()[-1])
    report.add("dispatches to 200 nodes of 8, jobs coming at 1,000/s", out["dispatched"] / max(out["span_s"], 1e-9),
               "1/s", 500, at_most=False)
    report.add("  of jobs submitted", 100 * out["dispatched"] / (result["count"] + 1), "%", 99, at_most=False)


def bench_workers(bench, report):
    bench.fresh()
    workers = bench.start_load("workers", 1000, 8, 45)
    connected = json.loads(workers.stdout.readline())["connected"]
    report.add("simulated workers connected", connected, "", 1000, at_most=False)
    time.sleep(10)
    before, begin = bench.cpu_seconds(), time.monotonic()
    time.sleep(25)
    share = (bench.cpu_seconds() - before) / (time.monotonic() - begin)
    report.add("  of a core for their heartbeats each 5 s", 100 * share, "%", 6)
    report.add("  memory of the server with them", bench.memory_mb(), "MB", 500)
    out = json.loads(workers.communicate(timeout=120)[0].strip().splitlines()[-1])
    report.add("  streams that broke", out["broken"], "", 0)


def bench_pass(_, report):
    done = subprocess.run([str(harness.BUILD / "tests/sft-scheduling-pass")], capture_output=True, text=True,
                          timeout=300, check=True)
    result = json.loads(done.stdout)
    report.add("a decision over 10,000 waiting jobs and 1,000 nodes", result["median_ms"], "ms", 100)
    report.add("  the longest of 20", result["most_ms"], "ms")
    report.add("  jobs that it places", result["placed"], "", 1, at_most=False)
    report.add("what it moves of those that wait, found", result["told_median_ms"], "ms", 20)
    report.add("  the longest of 20", result["told_most_ms"], "ms")


def bench_follow(bench, report):
    bench.fresh()
    bench.start_worker("node-a", "H100:1")
    job = bench.submit("lines 600 20", ranks=1, name="lines")
    bench.wait_for_step(job)
    result = bench.load("follow", job, 500, 12)
    report.add("log followers that were refused, of 500", result["refused"], "", 0)
    report.add("  least of what one has read, of the most", 100 * result["least_bytes"] / max(1, result["most_bytes"]),
               "%", 90, at_most=False)
    report.add("  memory of the server after them", bench.memory_mb(), "MB", 500)


def bench_watch(bench, report):
    bench.fresh()
    latencies = []
    for number in range(3):
        job, _, name = bench.upload()
        threads, memory = bench.threads(), bench.memory_mb()
        watchers = bench.start_load("watch", name, 500, 45 if number == 0 else 1)
        watching = json.loads(watchers.stdout.readline())["watching"]
        if number == 0:
            report.add("watchers of one job", watching, "", 500, at_most=False)
            time.sleep(10)
            report.add("  threads for them", bench.threads() - threads, "", 20)
            report.add("  memory for them", bench.memory_mb() - memory, "MB")
            before, begin = bench.cpu_seconds(), time.monotonic()
            time.sleep(30)
            share = (bench.cpu_seconds() - before) / (time.monotonic() - begin)
            report.add("  of a core while nothing happens", 100 * share, "%", 3)
        out = json.loads(watchers.communicate(timeout=120)[0].strip().splitlines()[-1])
        latencies.append(out)
        if number == 0:
            report.add("  streams that failed", out["failed"], "", 0)
    for what, key in (("median", "p50_ms"), ("99th percentile", "p99_ms")):
        report.add(f"  until they know of a change, {what} (of 3 runs)",
                   statistics.median(each[key] for each in latencies), "ms")


def bench_history(bench, report):
    figures = {}
    bench.fresh()
    job, data, sample = bench.upload()
    for total, more in ((1000, 1000), (100_000, 99_000)):
        bench.kill("server")
        add_history(bench.dir / "server/server.db", sample, more)
        bench.start_server()
        bench.load("list", 20)
        submit = bench.load("submit", job, data, 100, 5)
        listing = bench.load("list", 200)
        stats = time.monotonic()
        assert bench.sftctl("stats", "--since", "30d", "--by", "project").returncode == 0
        figures[total] = (submit["p50_ms"], listing["p50_ms"], (time.monotonic() - stats) * 1e3)
    for index, what in enumerate(("submit", "list of 50")):
        few, many = figures[1000][index], figures[100_000][index]
        report.add(f"{what}, median with 1,000 finished jobs", few, "ms")
        report.add("  with 100,000", many, "ms")
        report.add("  times as long", many / few, "", 1.5)
    report.add("sftctl stats over 100,000 finished jobs", figures[100_000][2], "ms")


# As server/dashboard/lib/job_list.js asks.
SHOWN = ["state", "reason", "display_name", "owner", "project", "kind", "variant", "nodes", "progress", "outlook",
         "create_time", "end_time"]


def bench_lists(bench, report):
    """Pages of 5,000 jobs as the web page reads them, over one connection, with all fields and with those that it shows."""
    web = harness.free_port()
    bench.fresh(http=f"127.0.0.1:{web}")
    _, _, sample = bench.upload()
    bench.kill("server")
    database = bench.dir / "server/server.db"
    add_history(database, sample, 5000)
    with sqlite3.connect(database) as db:
        db.execute("UPDATE jobs SET display_name = 'qwen3-8b-support-r' || (sequence % 64), reason = ?, metadata = ?",
                   ("rank 3 of 8 on gpu-07 ended: CUDA out of memory; tried to allocate 2.50 GiB",
                    json.dumps({"team": "support", "dataset": "tickets-2026-10", "ticket": "ML-4711"})))
    bench.start_server(http=f"127.0.0.1:{web}")
    connection = http.client.HTTPConnection("127.0.0.1", web, timeout=60)

    def page(**request):
        connection.request("POST", "/api/v1/JobService/ListJobs", json.dumps(request),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        return body
    for what, size, words in (("page of 100", 100, ""), ("page of 500", 500, ""), ("100 that a word finds", 100, "r17 memory"),
                              ("a word that none has", 100, "nowhere")):
        for fields, name in (([], "all fields"), (SHOWN, "those that are shown")):
            times = []
            for _ in range(60):
                begin = time.perf_counter()
                body = page(page_size=size, fields=fields, **({"filter": words} if words else {}))
                times.append((time.perf_counter() - begin) * 1e3)
            report.add(f"{what} of 5,000 jobs, {name}: bytes", len(body), "")
            report.add("  median", statistics.median(times), "ms")


class Together:
    """Tabs on running jobs, workers and submits at once: what a user waits for, in three stages of load."""

    SECONDS, JOBS, PROBES = 60, 20, 20

    def __init__(self, bench, report):
        self.bench, self.report = bench, report
        self.http = f"127.0.0.1:{harness.free_port()}"
        bench.fresh(http=self.http)
        bench.upload()  # while no node is there, whose types would be asked for
        # Those that run, on a node of a type of its own, for longer than all stages.
        self.runner = bench.start_load("run", self.JOBS, 3600)
        self.runner.stdout.readline()
        self.job = bench.dir / "load.toml"
        running = bench.dir / "running.toml"
        running.write_text(self.job.read_text().replace("H100", "A100"))
        self.running = [self.submit(running) for _ in range(self.JOBS)]
        for job in self.running:
            bench.wait_for_step(job)

    def submit(self, job):
        result = self.bench.sftctl("submit", job, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)["job"]

    def stage(self, name, workers, tabs, rate):
        """Probes submits, states of jobs and points of running ones beside that load."""
        bench, seconds = self.bench, self.SECONDS
        fleet = bench.start_load("workers", workers, 8, seconds + 30)
        connected = json.loads(fleet.stdout.readline())["connected"]
        pages = bench.start_beside(sys.executable, pathlib.Path(__file__).with_name("tabs.py"), self.http, tabs, seconds,
                                   *self.running)
        opened = json.loads(pages.stdout.readline())["open"]
        submits = bench.start_load("submit", self.job, self.job.with_suffix(".jsonl"), rate, seconds)
        states = bench.start_load("status", self.running[0], self.PROBES, seconds)
        loads = {"workers": fleet, "tabs": pages, "submits": submits, "states": states, "running": self.runner}
        before = {what: bench.cpu_seconds(process.pid) for what, process in loads.items()}
        server, begin = bench.cpu_seconds(), time.monotonic()
        time.sleep(seconds - 2)
        span = time.monotonic() - begin
        share = (bench.cpu_seconds() - server) / span
        load_share = sum(bench.cpu_seconds(process.pid) - before[what] for what, process in loads.items()) / span
        load = os.getloadavg()[0]
        out = {what: json.loads(process.communicate(timeout=600)[0].strip().splitlines()[-1])
               for what, process in loads.items() if what not in ("running", "workers")}
        out["workers"] = json.loads(fleet.communicate(timeout=600)[0].strip().splitlines()[-1])
        self.report.lines.append({"stage": name, "workers_asked": workers, "tabs_asked": tabs, "submits_per_second": rate,
                                  "connected": connected, "open": opened, "server_cores": round(share, 3),
                                  "load_cores": round(load_share, 3), "server_mb": round(bench.memory_mb(), 1),
                                  "load_average": round(load, 2), **out})
        print(json.dumps(self.report.lines[-1]), flush=True)
        self.tell(name, self.report.lines[-1])

    def tell(self, name, seen):
        add = self.report.add
        for what, key in (("submit", "submits"), ("state of a job", "states"), ("point until it is in the tab", "tabs")):
            for share in ("p50", "p95", "p99"):
                add(f"{name}: {what}, {share}", seen[key][f"{share}_ms"], "ms")
        add(f"{name}: submits that were made", seen["submits"]["rate"], "1/s", 0.99 * seen["submits_per_second"],
            at_most=False)
        add(f"{name}: submits, states, workers and tabs that failed",
            seen["submits"]["failed"] + seen["states"]["failed"] + seen["tabs"]["broken"] + seen["workers"]["broken"]
            + seen["workers_asked"] - seen["connected"] + seen["tabs_asked"] - seen["open"], "", 0)
        add(f"{name}: jobs that were dispatched", seen["workers"]["dispatched"], "")
        add(f"{name}: cores of the server", seen["server_cores"], "")
        add(f"{name}: cores of the load", seen["load_cores"], "")


def bench_together(bench, report):
    together = Together(bench, report)
    together.stage("before", workers=1, tabs=1, rate=10)
    together.stage("1,000 workers, 200 tabs", workers=1000, tabs=200, rate=10)
    together.stage("and 500 submits/s", workers=1000, tabs=200, rate=500)
    together.runner.terminate()
    together.runner.wait()


PARTS = {"submit": bench_submit, "dispatch": bench_dispatch, "pass": bench_pass, "workers": bench_workers,
         "follow": bench_follow, "watch": bench_watch, "history": bench_history, "lists": bench_lists, "together": bench_together}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=str(harness.BUILD), help="build folder")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between: " + ", ".join(PARTS))
    parser.add_argument("--json", help="write the rows to this file, too")
    parser.add_argument("--lines", help="write what the parts measured to this file, too, a line of JSON for each stage")
    options = parser.parse_args()
    harness.BUILD = pathlib.Path(options.build).resolve()
    report = Report()
    folder = pathlib.Path(tempfile.gettempdir())
    median, p99 = fsync_ms(folder)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, folder {folder}")
    report.add("fdatasync of 4 KiB, median", median, "ms")
    report.add("  99th percentile", p99, "ms")
    for name in options.only.split(","):
        bench = Bench()
        bench.setUp()
        try:
            PARTS[name](bench, report)
        finally:
            bench.doCleanups()
    if options.lines:
        machine = {"cores": os.cpu_count(), "folder_fdatasync_ms": round(median, 3)}
        pathlib.Path(options.lines).write_text("".join(json.dumps({**machine, **each}) + "\n" for each in report.lines))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report.rows, indent=1))
    return 0 if all(row["met"] for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
