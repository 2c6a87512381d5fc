"""Restarts and checkpoints end to end, with the stand-in of fake_training.cc."""

import json
import os
import signal
import time

from harness import DEADLINE_S, SANITIZED, ServiceCase, run_tests, wait_until

SUCCEEDED, USAGE, NOT_FOUND, REFUSED, USER_FAILURE, INFRASTRUCTURE_FAILURE, CANCELLED = 0, 2, 3, 5, 10, 11, 12


class LifeTest(ServiceCase):

    def curve(self, job):
        """Loss by step, of the last attempt that made the step."""
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        return {point["step"]: point["loss"] for point in points}

    def straight(self, steps, **options):
        """The curve of the same training without any fault."""
        job = self.submit(f"train steps={steps} pace=1", name="straight", **options)
        self.assert_ends(job, SUCCEEDED)
        return self.curve(job)

    def attempts(self, job):
        return self.status(job)["attempts"]

    def checkpoints(self, job):
        result = self.sftctl("checkpoints", job, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def events(self, job, kind):
        lines = self.sftctl("events", job, "--json").stdout.splitlines()
        return [event["message"] for event in map(json.loads, lines) if event["type"] == kind]

    def wait_for_checkpoint(self, job, step=1):
        wait_until(f"a checkpoint of {job}", lambda: any(c["step"] >= step for c in self.checkpoints(job)))

    def test_a_killed_rank_is_restarted_from_the_last_checkpoint(self):
        self.start_server()
        self.start_worker()
        job = self.submit(f"train steps=20 save=5 kill=12 once={self.dir}/killed pace=5", ranks=2)
        self.assert_ends(job, SUCCEEDED)
        attempts = self.attempts(job)
        self.assertEqual([a["number"] for a in attempts], [1, 2])
        self.assertEqual(attempts[0]["verdict"]["code"], "rank_killed")
        self.assertEqual(attempts[0]["verdict"]["retries_left"], 9)
        self.assertEqual((attempts[1]["first_step"], attempts[1]["last_step"]), (10, 20))
        self.assertIn("goes on from step 10 of attempt 1", " ".join(self.events(job, "placed")))
        self.assertEqual(self.curve(job), self.straight(20, ranks=2))


    def test_a_lost_node_is_replaced_after_the_limit_with_the_blobs_of_the_server(self):
        self.start_server("--restart-delay", "0s", "--suspect-after", "6s", "--unreachable-margin", "1s")
        self.start_worker("node-a", "H100:1")
        job = self.submit("train steps=4000 save=5 pace=20", ranks=1, compute='unreachable_after = "10s"')
        self.wait_for_checkpoint(job, 10)
        self.start_worker("node-b", "H100:1")
        self.kill("node-a")
        for pid in self.shims() + self.ranks():
            os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        wait_until("the second attempt", lambda: self.status(job)["attempt"] == 2)
        self.assertGreater(time.monotonic() - begin, 5)
        wait_until("it to run elsewhere", lambda: self.status(job)["nodes"] == ["node-b"])
        first, second = self.attempts(job)
        self.assertEqual(first["verdict"]["code"], "node_unreachable")
        self.assertGreaterEqual(second["first_step"], 10)
        self.wait_for_step(job, second["first_step"] + 3)
        self.start_worker("node-a", "H100:1")
        wait_until("node-a to be free", lambda: "1 x H100 (simulated), 1 free" in self.sftctl("nodes").stdout)
        self.assertEqual(self.status(job)["attempt"], 2)
        self.assertEqual(len(self.ranks()), 1)
        self.assertEqual(self.sftctl("cancel", job).returncode, 0)
        self.assert_ends(job, CANCELLED)

    def test_a_fault_of_the_user_is_not_retried_and_can_be_resumed_as_a_new_job(self):
        self.start_server()
        self.start_worker()
        job = self.submit(f"train steps=20 save=5 nan=12 once={self.dir}/once pace=5", ranks=2)
        self.assert_ends(job, USER_FAILURE)
        status = self.status(job)
        self.assertEqual(status["attempt"], 1)
        self.assertEqual(status["verdict"]["action"], "not restarted: the job itself has to be changed")
        # One that the next has overtaken on its way to the server may be left out.
        steps = [c["step"] for c in self.checkpoints(job)]
        self.assertIn(steps, ([10, 5], [10]))
        first = steps[-1]
        missing = self.sftctl("resume", job, "--from", 7)
        self.assertEqual(missing.returncode, NOT_FOUND)
        self.assertIn("there is: 10", missing.stderr)
        result = self.sftctl("resume", job, "--from", first, "--request-id", "again")
        self.assertEqual(result.returncode, 0, result.stderr)
        next_job = result.stdout.strip()
        self.assertEqual(self.sftctl("resume", job, "--from", first, "--request-id", "again").stdout.strip(), next_job)
        self.assert_ends(next_job, SUCCEEDED)
        self.assertEqual(self.status(next_job)["resumed_from"], {"job": job, "step": first})
        self.assertEqual(self.status(job)["state"], "FAILED")
        straight = self.straight(20, ranks=2)
        self.assertEqual(self.curve(next_job), {step: loss for step, loss in straight.items() if step > first})

    def test_without_progress_restarts_end_with_a_verdict_that_says_so(self):
        self.start_server()
        self.start_worker()
        job = self.submit("train steps=20 kill=3 pace=1", ranks=1)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        status = self.status(job)
        self.assertEqual(status["verdict"]["code"], "no_progress")
        self.assertIn("rank 0 was killed by signal 9", status["verdict"]["message"])
        self.assertEqual(status["attempt"], 4)

    def test_the_budget_of_restarts_ends_the_job(self):
        self.start_server()
        self.start_worker()
        job = self.submit("train steps=20 crash=3 pace=1", ranks=1, compute="max_unknown_restarts = 1")
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        status = self.status(job)
        self.assertEqual(status["attempt"], 2)
        self.assertEqual(status["verdict"]["code"], "rank_crashed")
        self.assertEqual(status["verdict"]["retries_left"], 0)

    def test_a_checkpoint_is_written_when_asked_for_and_before_a_cancel(self):
        self.start_server()
        self.start_worker()
        job = self.submit("train steps=100000 pace=20", ranks=1)
        self.wait_for_step(job, 2)
        asked = self.sftctl("checkpoint", job, "--wait", "--timeout", f"{DEADLINE_S}s", "--json")
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertEqual(json.loads(asked.stdout)["reason"], "asked")
        self.assertEqual(self.sftctl("cancel", job, "--checkpoint").returncode, 0)
        self.assert_ends(job, CANCELLED)
        steps = [c["step"] for c in self.checkpoints(job)]
        self.assertEqual(len(steps), 2)
        self.assertEqual(self.ranks(), [])
        ended = self.sftctl("checkpoint", job)
        self.assertEqual(ended.returncode, REFUSED, ended.stderr)
        next_job = self.sftctl("resume", job).stdout.strip()
        self.wait_for_step(next_job, steps[0] + 1)
        self.assertEqual(self.status(next_job)["resumed_from"]["step"], steps[0])
        self.sftctl("cancel", next_job)
        self.assert_ends(next_job, CANCELLED)

    def test_a_job_goes_on_with_other_gpus_and_other_values(self):
        self.start_server()
        self.start_worker()
        job = self.submit("train steps=100000 pace=20", ranks=1, tables="global_batch = 2")
        self.wait_for_step(job, 2)
        self.assertEqual(self.sftctl("cancel", job, "--checkpoint").returncode, 0)
        self.assert_ends(job, CANCELLED)
        step = self.checkpoints(job)[0]["step"]
        refused = self.sftctl("resume", job, "--set", "lora.r=3", "--set", "compute.gpus=2")
        self.assertEqual(refused.returncode, USAGE, refused.stderr)
        self.assertIn("compute.gpus: unknown key", refused.stderr)
        self.assertIn("lora.r: is 3, but the checkpoints of", refused.stderr)
        result = self.sftctl("resume", job, "--set", "compute.gpu_count=2", "--time-limit", "2h")
        self.assertEqual(result.returncode, 0, result.stderr)
        next_job = result.stdout.strip()
        self.wait_for_step(next_job, step + 1)
        self.assertEqual(len(self.ranks()), 2)
        status = self.status(next_job)
        self.assertEqual(status["resumed_from"], {"job": job, "step": step})
        self.assertEqual(status["resolved"]["hyperparameters"]["global_batch"], 2)
        self.assertEqual(status["resolved"]["scheduling"]["time_limit"], "2h")
        self.sftctl("cancel", next_job)
        self.assert_ends(next_job, CANCELLED)

    def test_old_checkpoints_go_from_the_server_and_the_node(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"train steps=30 save=5 pace=5 until={gate}", ranks=2,
                          tables="[checkpoint]\nsave_total_limit = 2")
        self.wait_for_checkpoint(job, 25)
        folder = self.dir / "node-a/checkpoints" / job
        kept = [c["step"] for c in self.checkpoints(job)]
        self.assertEqual(kept[0], 25)
        self.assertLessEqual(len(kept), 2)
        wait_until("the old ones to go from the node",
                   lambda: {p.name for p in folder.iterdir()} == {f"step-{step}" for step in kept})
        # Beside the blobs, marks of who has brought them; they go by their age.
        blobs = [p for p in (self.dir / "server/checkpoints").rglob("*") if p.is_file() and p.suffix != ".brought"]
        self.assertLessEqual(len(blobs), 2 * 3)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)

    def test_two_nodes_without_a_shared_folder_agree_on_checkpoints_and_go_on_from_one(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        self.start_worker("node-b", "H100:1")
        size = 500_000 if SANITIZED else 8_000_000
        job = self.submit(f"train steps=50 save=1 pace=50 bytes={size} kill=40 once={self.dir}/killed",
                          ranks=2, per_node=1)
        self.assert_ends(job, SUCCEEDED)
        first, second = self.attempts(job)
        self.assertEqual(first["verdict"]["code"], "rank_killed")
        committed = [event for event in self.events(job, "checkpoint") if " committed " in event]
        self.assertGreaterEqual(len(committed), 3)
        # What the first attempt left when it ended is not lost for want of a common step.
        self.assertGreaterEqual(second["first_step"], 20)
        self.assertEqual(self.curve(job).keys(), set(range(1, 51)))

    def test_a_killed_worker_registers_what_it_had_not(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"train steps=12 save=5 pace=20 until={gate}", ranks=1)
        self.wait_for_step(job, 1)
        self.kill("node-a")
        folder = self.dir / "node-a/checkpoints" / job
        wait_until("the checkpoints", lambda: (folder / "step-10/manifest.json").exists())
        self.start_worker()
        self.wait_for_checkpoint(job, 10)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)

    def test_cancel_ends_a_job_in_each_state_and_waits_for_nothing_else(self):
        # Longer than the end is waited for: it must not wait for the restart.
        self.start_server("--restart-delay", "300s")
        self.start_worker()
        for name, mode, ready in (
                ("early", "train steps=100000", lambda job: True),
                ("running", "train steps=100000 save=5", lambda job: self.status(job)["progress"]["step"] > 6),
                ("stubborn", "stubborn", lambda job: self.status(job)["state"] == "RUNNING"),
                ("backoff", "train steps=20 kill=3 pace=1", lambda job: "restarts after" in self.status(job)["reason"])):
            with self.subTest(name):
                job = self.submit(mode, ranks=2, name=name)
                wait_until(f"{name} to be there", lambda: ready(job))
                self.assertEqual(self.sftctl("cancel", job).returncode, 0)
                self.assert_ends(job, CANCELLED, deadline_s=240)
                self.assertEqual(self.ranks(), [])
                self.assertIn("8 x H100 (simulated), 8 free", self.sftctl("nodes").stdout)
                self.assertEqual(self.status(job)["artifacts"], [])
        wait_until("the node to forget", lambda: not list((self.dir / "node-a/attempts").iterdir()))
        self.assertEqual(list((self.dir / "node-a/checkpoints").rglob("*.partial")), [])


if __name__ == "__main__":
    run_tests()
