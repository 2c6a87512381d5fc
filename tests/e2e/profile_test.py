#!/usr/bin/env python3
"""A running job is profiled through the real service: what the table and the trace say, that the training is the same
byte for byte, and that nothing is left of a recording, whoever is killed in the middle of it."""

import base64
import gzip
import json
import os
import signal
import subprocess
import urllib.request

import families_test
import harness

STEPS, MANY_STEPS = 1000, 1_000_000
SUCCEEDED, NOT_FOUND, INTERRUPTED = 0, 3, 130


class ProfileTest(harness.ServiceCase):
    def start_all(self):
        families_test.copy_small_model(self.dir / "models/small")
        (self.dir / "rows.jsonl").write_text("".join(
            json.dumps({"text": f"row{number}:" + "abcdefgh"[number % 5:] * 2}) + "\n" for number in range(24)))
        (self.dir / "job.toml").write_text('[job]\nmodel = "small"\ndata = "rows.jsonl"\n')
        self.http = harness.free_port()
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_node()

    def start_node(self, *options):
        self.start("node-a", harness.BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models", "--cpu-slots",
                   2, "--grace", 1, *options)
        harness.wait_until("node-a to register", lambda: '"UP"' in self.sftctl("nodes", "--json").stdout)

    def train(self, ranks=2, steps=STEPS):
        keys = {"compute.gpu_type": "CPU", "compute.gpu_count": ranks, "compute.gpus_per_node": ranks,
                "hyperparameters.max_steps": steps, "hyperparameters.per_device_batch": 1,
                "hyperparameters.gradient_accumulation_steps": 2, "hyperparameters.sequence_length": 32}
        result = self.sftctl("submit", self.dir / "job.toml", "--json",
                             *(word for key, value in keys.items() for word in ("--set", f"{key}={value}")))
        self.assertEqual(result.returncode, SUCCEEDED, result.stdout + result.stderr)
        return json.loads(result.stdout)["job"]

    def ranks(self):
        return harness.processes_with("sft-rank train --launch " + str(self.dir))

    def trace_path(self):
        return self.dir / "trace.json.gz"

    def profile(self, job, *options):
        return self.sftctl("profile", job, "-o", self.trace_path(), *options)

    def begin_profile(self, job, *options):
        """A profile that waits for steps: its process, whose recording has begun."""
        err = self.dir / "profile.err"
        with open(err, "wb") as out:
            process = subprocess.Popen(
                [str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "profile", job, "-o",
                 str(self.trace_path()), *options], stdout=subprocess.DEVNULL, stderr=out)
        self.processes["profile"] = process
        harness.wait_until("the profile to wait", lambda: b"waiting for rank" in err.read_bytes())
        self.assertNotEqual(self.recordings(), [])
        return process

    def end_of_profile(self):
        code = self.processes["profile"].wait(timeout=harness.DEADLINE_S)
        return code, (self.dir / "profile.err").read_text()

    def recordings(self):
        return list((self.dir / "node-a").rglob("profile-*"))

    def signal_ranks(self, number):
        for pid in self.ranks():
            os.kill(pid, number)

    def result_of(self, job):
        """The adapter's bytes and the losses of all steps."""
        self.assert_ends(job, SUCCEEDED)
        folder = self.dir / f"adapter-{job}"
        self.assertEqual(self.sftctl("download", job, "-o", folder).returncode, SUCCEEDED)
        points = map(json.loads, self.sftctl("metrics", job, "--json").stdout.splitlines())
        return ((folder / "adapter_model.safetensors").read_bytes(),
                [(point["step"], point["loss"], point["grad_norm"]) for point in points])

    def check_rest(self, job):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/api/v1/JobService/ProfileJob", json.dumps({"name": job, "steps": 1}).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
            lines = answer.read().decode().splitlines()
        self.assertIn("event: end", lines)
        messages = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
        self.assertEqual([message["rank"]["steps"] for message in messages if message.get("rank")], [1])
        packed = b"".join(base64.b64decode(message.get("trace", "")) for message in messages)
        self.assertIn("traceEvents", json.loads(gzip.decompress(packed)))

    def check_table(self, table):
        self.assertEqual(table["steps"], 3)
        self.assertGreater(table["seconds"], 0)
        self.assertAlmostEqual(sum(table["shares"].values()), table["seconds"], delta=table["seconds"] * 1e-6)
        for kind in ("attention", "products", "norms and element-wise", "optimizer", "communication", "data", "host"):
            self.assertGreater(table["shares"][kind], 0, kind)
        self.assertEqual(table["shares"]["idle"], 0)
        self.assertEqual((table["events_left_out"], table["notes"], table["device"]), (0, [], "cpu"))

    def check_trace(self, tables):
        with gzip.open(self.trace_path(), "rt") as file:
            events = json.load(file)["traceEvents"]
        names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
        self.assertEqual(names, {f"rank {table['rank']}, cpu" for table in tables})
        spans = [event for event in events if event["ph"] == "X"]
        self.assertEqual(len(spans), sum(table["events"] for table in tables))
        for table in tables:
            of_rank = [event for event in spans if event["pid"] == table["rank"] + 1]
            steps = [event for event in of_rank if event["cat"] == "phase" and event["name"].startswith("step ")]
            first = table["first_step"]
            self.assertEqual([event["name"] for event in steps], [f"step {first + i}" for i in range(3)])
            self.assertAlmostEqual(sum(event["dur"] for event in steps) / 1e6, table["seconds"], places=4)
            phases = {event["name"] for event in of_rank if event["cat"] == "phase"}
            self.assertLessEqual({"micro-batch 1", "micro-batch 2", "data 1", "forward layer 0", "backward layer 1",
                                  "head and loss", "sum of gradients", "optimizer", "exchange of losses"}, phases)
            self.assertTrue(any(phase.startswith("wait ") for phase in phases), phases)
            within = {event["args"]["in"] for event in of_rank if event["name"] == "sft::Attention"}
            self.assertIn("micro-batch 1 > forward layer 0", within)
            self.check_nested(of_rank)

    def check_nested(self, events):
        """Of a thread's events none begins within another and ends after it."""
        for thread in {event["tid"] for event in events}:
            open_ends = []
            for event in sorted((event for event in events if event["tid"] == thread),
                                key=lambda event: (event["ts"], -event["dur"])):
                while open_ends and open_ends[-1] <= event["ts"] + 1e-4:
                    open_ends.pop()
                end = event["ts"] + event["dur"]
                if open_ends:
                    self.assertLessEqual(end, open_ends[-1] + 1e-2, event)
                open_ends.append(end)

    def test_a_profile_says_where_the_steps_of_two_ranks_went_and_changes_no_bit_of_the_training(self):
        self.start_all()
        plain = self.result_of(self.train())
        job = self.train()
        self.wait_for_step(job, 3)
        result = self.profile(job, "--rank", "all", "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        answer = json.loads(result.stdout)
        self.assertEqual([table["rank"] for table in answer["ranks"]], [0, 1])
        self.assertEqual(answer["trace_bytes"], self.trace_path().stat().st_size)
        for table in answer["ranks"]:
            self.check_table(table)
        self.check_trace(answer["ranks"])
        again = self.profile(job, "--steps", "1")
        self.assertEqual(again.returncode, SUCCEEDED, again.stderr)
        self.assertRegex(again.stdout, r"rank 0 on cpu: steps \d+ to \d+, [0-9.]+ s each \([0-9.]+ s before: ")
        self.assertRegex(again.stdout, r"total +[0-9.]+ ms 100.00 %")
        self.check_rest(job)
        self.assertEqual(self.recordings(), [])
        self.assertEqual(self.status(job)["state"], "RUNNING", "the profiles fell into the training")
        self.assertEqual(self.result_of(job), plain)
        audit = map(json.loads, self.sftctl("admin", "audit", "--json").stdout.splitlines())
        calls = [record for record in audit if record["method"].endswith("ProfileJob")]
        self.assertEqual(len(calls), 3)
        self.assertIn(job, calls[0]["object"])

    def test_what_cannot_be_profiled_is_said(self):
        self.start_all()
        running = self.train(steps=MANY_STEPS)
        queued = self.train()
        self.wait_for_step(running)
        for job, options, says in ((queued, (), "profile it when it runs"),
                                   (running, ("--rank", "2"), "its ranks are 0 to 1"),
                                   ("job-zzzzzzzzzz", (), "job-zzzzzzzzzz")):
            result = self.profile(job, *options)
            self.assertNotEqual(result.returncode, SUCCEEDED)
            self.assertIn(says, result.stderr)
        self.assertEqual(self.sftctl("cancel", running).returncode, SUCCEEDED)
        self.wait_for_state(running, "CANCELLED")
        self.assertIn("only a running job can be profiled", self.profile(running).stderr)
        self.assertFalse(self.trace_path().exists())

    def test_nothing_is_left_of_a_recording_whoever_ends_it(self):
        self.start_all()
        job = self.train(steps=MANY_STEPS)
        self.wait_for_step(job)

        self.signal_ranks(signal.SIGSTOP)
        waiting = self.begin_profile(job)
        self.assertIn("profiled by another call", self.profile(job).stderr)
        waiting.send_signal(signal.SIGINT)
        self.assertEqual(self.end_of_profile()[0], INTERRUPTED)
        harness.wait_until("the recording to go", lambda: not self.recordings())
        self.signal_ranks(signal.SIGCONT)
        self.assertEqual(self.profile(job).returncode, SUCCEEDED, "the job trains on and can be profiled")

        self.signal_ranks(signal.SIGSTOP)
        self.begin_profile(job)
        self.kill("node-a")
        code, says = self.end_of_profile()
        self.assertNotEqual(code, SUCCEEDED)
        self.assertIn("ended its recording early", says)
        self.assertNotEqual(self.recordings(), [], "killed before it could remove it")
        self.start_node()
        self.signal_ranks(signal.SIGCONT)
        harness.wait_until("a profile", lambda: self.profile(job).returncode == SUCCEEDED)
        self.assertEqual(self.recordings(), [])
        self.assertEqual(self.status(job)["attempt"], 1)

        self.signal_ranks(signal.SIGSTOP)
        self.begin_profile(job, "--rank", "all")
        self.signal_ranks(signal.SIGKILL)
        code, says = self.end_of_profile()
        self.assertNotEqual(code, SUCCEEDED)
        self.assertRegex(says, "ended before its steps were recorded|the job's processes (have ended|are )")
        harness.wait_until("the recording to go", lambda: not self.recordings())
        self.assertEqual([path.name for path in self.dir.glob("*.part*")], [])


if __name__ == "__main__":
    harness.run_tests()
