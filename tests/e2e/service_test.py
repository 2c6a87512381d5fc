"""The service end to end, with a stand-in for the trainer: submission, placement, cancel, restarts."""

import hashlib
import json
import os
import pathlib
import socket
import threading
import unittest

from harness import DEADLINE_S, SANITIZED, ServiceCase, run_tests, wait_until

SUCCEEDED, USER_FAILURE, INFRASTRUCTURE_FAILURE, CANCELLED = 0, 10, 11, 12


class ServiceTest(ServiceCase):

    def test_a_job_runs_and_delivers(self):
        self.start_server()
        self.start_worker()
        job = self.submit("ok", ranks=4)
        self.assert_ends(job, SUCCEEDED)
        metrics = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        self.assertEqual([point["step"] for point in metrics], [1, 2, 3])
        self.assertEqual([point["loss"] for point in metrics], [2.0, 1.0, 2.0 / 3.0])
        for rank in range(4):
            log = self.sftctl("logs", job, "--rank", rank).stdout
            self.assertIn(f"rank {rank} of 4", log)
            self.assertIn(f"rank {rank} done", log)
        out = self.dir / "download"
        result = self.sftctl("download", job, "-o", out)
        self.assertEqual(result.returncode, 0, result.stderr)
        weights = next(out.rglob("adapter_model.safetensors")).read_bytes()
        self.assertEqual(hashlib.sha256(weights).digest(), hashlib.sha256(b"w" * 100_000).digest())
        wait_until("the node to forget the attempt", lambda: not list((self.dir / "node-a/attempts").iterdir()))
        self.assertEqual(self.shims(), [])

    def test_a_second_job_waits_with_a_reason_and_then_runs(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        first = self.submit(f"until {gate}", ranks=8, name="first")
        self.wait_for_step(first)
        self.wait_for_ranks(8)
        second = self.submit("ok", ranks=4, name="second")
        reason = wait_until("a reason", lambda: self.status(second).get("reason"))
        self.assertEqual(self.status(second)["state"], "PENDING")
        self.assertIn("H100", reason)
        gate.touch()
        self.assert_ends(first, SUCCEEDED)
        self.assert_ends(second, SUCCEEDED)

    def test_cancel_leaves_no_process_and_frees(self):
        self.start_server()
        self.start_worker()
        job = self.submit("stubborn", ranks=8)  # its ranks ignore everything but SIGKILL
        self.wait_for_step(job)
        self.wait_for_ranks(8)
        self.assertEqual(self.sftctl("cancel", job).returncode, 0)
        self.assert_ends(job, CANCELLED)
        self.assertEqual(self.ranks(), [])
        self.assertEqual(self.shims(), [])
        self.assert_ends(self.submit("ok", ranks=8, name="next"), SUCCEEDED)

    def test_a_job_of_a_full_cluster_can_be_cancelled_while_it_waits(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        first = self.submit("wait", ranks=1, name="first")
        self.wait_for_step(first)
        second = self.submit("ok", ranks=1, name="second")
        self.assertEqual(self.sftctl("cancel", second).returncode, 0)
        self.assert_ends(second, CANCELLED)
        self.assertIn(self.status(first)["state"], ("PREPARING", "RUNNING"))

    def test_a_killed_worker_finds_its_shim_again(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=2)
        self.wait_for_step(job)
        shims, ranks = self.shims(), self.wait_for_ranks(2)
        self.kill("node-a")
        self.assertEqual(self.ranks(), ranks, "ranks go on without the worker")
        self.start_worker()
        self.assertEqual(self.shims(), shims)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assertEqual(self.sftctl("logs", job, "--rank", 1).stdout.count("rank 1 of 2"), 1)

    def test_a_job_that_ends_while_its_worker_is_down_is_reported_later(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=2)
        self.wait_for_step(job)
        self.kill("node-a")
        gate.touch()
        wait_until("the shim to end", lambda: not self.shims())
        self.start_worker()
        self.assert_ends(job, SUCCEEDED)

    def test_a_killed_server_finds_the_job_running(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=2)
        self.wait_for_step(job)
        ranks = self.wait_for_ranks(2)
        self.kill("server")
        self.start_server()
        self.assertEqual(self.ranks(), ranks)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assertEqual(len(self.sftctl("metrics", job, "--json").stdout.splitlines()), 3)

    def test_a_job_that_ends_while_the_server_is_down_keeps_its_result(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=2)
        self.wait_for_step(job)
        self.kill("server")
        gate.touch()
        wait_until("the shim to end", lambda: not self.shims())
        self.start_server()
        self.assert_ends(job, SUCCEEDED)
        self.assertIn("rank 1 done", self.sftctl("logs", job, "--rank", 1).stdout)

    def test_a_gang_spans_two_workers(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        self.start_worker("node-b", "H100:1")
        job = self.submit("ok", ranks=2, per_node=1)
        self.assert_ends(job, SUCCEEDED)
        status = self.status(job)
        self.assertEqual(sorted(status["nodes"]), ["node-a", "node-b"])
        first = self.sftctl("logs", job, "--rank", 0).stdout
        second = self.sftctl("logs", job, "--rank", 1).stdout
        self.assertIn("rank 0 of 2", first)
        self.assertIn("rank 1 of 2", second)
        meeting = lambda log: next(line for line in log.splitlines() if " at " in line).split(" at ")[1].split()[0]
        self.assertEqual(meeting(first), meeting(second), "one rendezvous address")

    def test_a_rank_that_dies_on_one_worker_ends_the_other(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        self.start_worker("node-b", "H100:1")
        job = self.submit("rank_killed", ranks=2, per_node=1, compute="max_restarts = 0")
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        self.assertEqual(self.ranks(), [])
        self.assertIn("rank 1 was killed by signal 9", json.dumps(self.status(job)))

    def test_data_that_cannot_be_used_is_the_users_error_with_its_advice(self):
        self.start_server()
        self.start_worker()
        job = self.submit("user_error", ranks=2)
        self.assert_ends(job, USER_FAILURE)
        told = json.dumps(self.status(job))
        self.assertIn("line 1: nothing to learn", told)
        self.assertIn("add an answer", told)

    def test_a_model_that_lost_its_tokenizer_is_the_nodes_fault_and_its_reason_is_told(self):
        self.start_server()
        self.start_worker()
        (self.dir / "models/tiny/tokenizer.json").unlink()
        job = self.submit("ok", ranks=1)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        self.assertIn("tokenizer.json is missing", json.dumps(self.status(job)))

    def test_a_cancel_reaches_a_worker_that_was_down(self):
        self.start_server()
        self.start_worker()
        job = self.submit("wait", ranks=2)
        self.wait_for_step(job)
        self.wait_for_ranks(2)
        self.kill("node-a")
        self.assertEqual(self.sftctl("cancel", job).returncode, 0)
        self.assertEqual(self.status(job)["state"], "CANCELLING")
        self.assertEqual(len(self.ranks()), 2)
        self.start_worker()
        self.assert_ends(job, CANCELLED)
        self.assertEqual(self.ranks(), [])

    @unittest.skipIf(SANITIZED, "sanitizers keep memory of their own")
    def test_idle_programs_stay_small(self):
        self.start_server()
        self.start_worker()
        job = self.submit("wait", ranks=1)
        self.wait_for_step(job)

        def megabytes(pid):
            pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGESIZE") / 1e6

        sizes = {"sft-server": megabytes(self.processes["server"].pid),
                 "sft-worker": megabytes(self.processes["node-a"].pid),
                 "sft-shim": megabytes(self.shims()[0])}
        print("resident MB:", {name: round(size, 1) for name, size in sizes.items()})
        self.assertLessEqual(sizes["sft-server"], 60)
        self.assertLessEqual(sizes["sft-worker"], 60)
        self.assertLessEqual(sizes["sft-shim"], 15)

    def notices(self, name):
        """What the programs started from now on tell the service manager, as it comes."""
        address = f"sft-{os.getpid()}-{name}"
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(manager.close)
        manager.bind("\0" + address)
        os.environ["NOTIFY_SOCKET"] = "@" + address
        self.addCleanup(os.environ.pop, "NOTIFY_SOCKET", None)
        heard = []

        def listen():
            try:
                while True:
                    heard.append(manager.recv(256).decode())
            except OSError:
                pass  # closed
        threading.Thread(target=listen, daemon=True).start()
        return heard

    def test_the_service_manager_hears_when_server_and_worker_are_ready_and_when_they_end(self):
        heard = {"server": self.notices("server")}
        self.start_server()
        heard["node-a"] = self.notices("node-a")
        self.start_worker("node-a")
        for name in ("node-a", "server"):
            wait_until(f"{name} to be ready", lambda: "READY=1" in heard[name])
            self.assertNotIn("STOPPING=1", heard[name])
            self.processes[name].terminate()
            self.processes[name].wait(timeout=DEADLINE_S)
            wait_until(f"{name} to say that it ends", lambda: "STOPPING=1" in heard[name])


if __name__ == "__main__":
    run_tests()
