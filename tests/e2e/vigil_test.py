"""Hangs, slow ranks, deaths and outages: what is noticed, named and survived; with stand-ins for the trainer."""

import json
import os
import pathlib
import signal
import time

from harness import BUILD, DEADLINE_S, ServiceCase, run_tests, wait_until

SUCCEEDED, INFRASTRUCTURE_FAILURE = 0, 11
HANG_TIMEOUT_S = 6
# The verdict of the first attempt is the job's.
ONE_ATTEMPT = "max_restarts = 0\nmax_unknown_restarts = 0"


class VigilTest(ServiceCase):

    def submit_steps(self, mode="steps", ranks=3, hang_timeout=HANG_TIMEOUT_S, name="job"):
        """A job whose ranks make steps until the gate opens, and the gate."""
        gate = self.dir / f"{name}.gate"
        job = self.write_job(f"{mode} {gate}", ranks=ranks, name=name, compute=ONE_ATTEMPT)
        result = self.sftctl("submit", job, "--json", "--set", f"compute.hang_timeout={hang_timeout}")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"], gate

    def rank_pid(self, rank):
        """The process of a global rank."""
        for pid in self.ranks():
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if command[command.index(b"--rank") + 1] == str(rank).encode():
                return pid
        raise AssertionError(f"no process of rank {rank}")

    def verdict(self, job):
        return self.status(job)["verdict"]

    def events(self, job, kind):
        lines = self.sftctl("events", job, "--json").stdout.splitlines()
        return [event["message"] for event in map(json.loads, lines) if event["type"] == kind]

    def wait_for_flight(self, rank, folder="node-a"):
        """Until the rank records its steps."""
        wait_until(f"a record of rank {rank}",
                   lambda: list((self.dir / folder / "attempts").glob(f"*/rank-{rank}.flight")))

    def test_a_stopped_rank_is_named_and_ends_its_job(self):
        self.start_server()
        self.start_worker()
        job, _ = self.submit_steps()
        self.wait_for_ranks(3)
        self.wait_for_flight(2)
        time.sleep(1)
        begin = time.monotonic()
        os.kill(self.rank_pid(1), signal.SIGSTOP)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        print(f"named and ended after {time.monotonic() - begin:.1f} s, limit {HANG_TIMEOUT_S} s")
        verdict = self.verdict(job)
        self.assertEqual(verdict["code"], "rank_hang")
        self.assertEqual(verdict["rank"], 1)
        self.assertEqual(verdict["node"], "node-a")
        self.assertIn("rank 1 hangs: its process is stopped (state T)", verdict["message"])
        self.assertIn("ranks 0, 2 wait in all-reduce #", verdict["message"])
        self.assertEqual(len([line for line in verdict["evidence"] if line.startswith("rank ")]), 3)
        self.assertEqual(self.ranks(), [])

    def test_ranks_that_part_ways_are_named(self):
        self.start_server()
        self.start_worker()
        job, _ = self.submit_steps("desync")
        wait_until("the end", lambda: self.status(job)["state"] == "FAILED")
        verdict = self.verdict(job)
        self.assertEqual(verdict["code"], "desync")
        self.assertEqual(verdict["rank"], 2)
        self.assertIn("rank 2 called broadcast #3", verdict["message"])
        self.assertIn("ranks 0, 1 called all-reduce #3", verdict["message"])

    def test_a_slow_rank_is_warned_of_once(self):
        self.start_server()
        self.start_worker()
        job, gate = self.submit_steps("slow", hang_timeout=DEADLINE_S)
        warnings = wait_until("a warning", lambda: self.events(job, "warning"))
        self.assertIn("rank 2 of node-a is slow", warnings[0])
        time.sleep(2)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(len(self.events(job, "warning")), 1)

    def test_a_killed_rank_is_blamed_and_not_the_peers_that_lost_it(self):
        self.start_server()
        self.start_worker()
        job = self.submit("peer_lost", ranks=3, compute=ONE_ATTEMPT)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        verdict = self.verdict(job)
        self.assertEqual((verdict["code"], verdict["rank"]), ("rank_killed", 2))

    def test_a_job_ends_while_the_server_is_away_and_the_worker_is_started_again(self):
        self.start_server()
        self.start_worker()
        job, gate = self.submit_steps(hang_timeout=DEADLINE_S)
        self.wait_for_ranks(3)
        self.wait_for_flight(2)
        self.kill("server")
        self.kill("node-a")
        gate.touch()
        wait_until("the shim to end", lambda: not self.shims())
        self.start("node-a", *self.worker_command())
        time.sleep(3)  # tries, finishing, against a server that is not there
        self.kill("node-a")
        self.start("node-a", *self.worker_command())
        self.start_server()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)
        for rank in range(3):
            log = self.sftctl("logs", job, "--rank", rank).stdout
            self.assertEqual(log.count(f"rank {rank} done"), 1)
        points = [json.loads(line)["step"] for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        self.assertEqual(points, [1, 2, 3])
        self.assertEqual(len(self.status(job)["artifacts"]), 1)

    def worker_command(self, node="node-a"):
        return [BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}", "--data-dir", self.dir / node,
                "--node", node, "--models", self.dir / "models", "--simulate-gpus", "H100:8", "--cpu-slots", 0,
                "--grace", 1, "--rank-binary", BUILD / "tests/sft-fake-rank"]

    def test_a_stopped_worker_ends_nothing(self):
        self.start_server()
        self.start_worker()
        job, gate = self.submit_steps()
        ranks = self.wait_for_ranks(3)
        self.wait_for_flight(2)
        self.processes["node-a"].send_signal(signal.SIGSTOP)
        time.sleep(2 * HANG_TIMEOUT_S)
        self.processes["node-a"].send_signal(signal.SIGCONT)
        time.sleep(HANG_TIMEOUT_S)
        self.assertEqual(self.ranks(), ranks)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)

    def test_a_rank_that_takes_too_much_memory_is_explained(self):
        group = self.memory_group(400 << 20)
        self.start_server()
        self.start("node-a", "sh", "-c", f"echo $$ > {group}/cgroup.procs && exec \"$@\"", "sh", *self.worker_command())
        wait_until("node-a to register", lambda: '"node-a"' in self.sftctl("nodes", "--json").stdout)
        job = self.submit("eat_memory", ranks=2, compute=ONE_ATTEMPT)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        verdict = self.verdict(job)
        self.assertEqual((verdict["code"], verdict["rank"]), ("host_oom", 1))
        self.assertIn("node node-a needs more memory", verdict["advice"])

    def remove_group(self, group):
        """Ends what is still in it, shims and ranks included."""
        def members():
            return [int(pid) for pid in (group / "cgroup.procs").read_text().split()]

        for pid in members():
            os.kill(pid, signal.SIGKILL)
        self.processes["node-a"].wait()
        wait_until("the control group to be empty", lambda: not members())
        group.rmdir()

    def memory_group(self, limit):
        """A control group of this test's own; skips where this user may not make one."""
        for base, key in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
            group = pathlib.Path(base) / f"sft-vigil-{os.getpid()}"
            try:
                group.mkdir()
                (group / key).write_text(str(limit))
            except OSError as error:
                reason = str(error)
                if group.is_dir():
                    group.rmdir()
                continue
            self.addCleanup(self.remove_group, group)
            return group
        self.skipTest(f"control groups with a memory limit cannot be made here: {reason}")
        return None


if __name__ == "__main__":
    run_tests()
