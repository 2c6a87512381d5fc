"""Restarts and checkpoints end to end, with the stand-in of fake_training.cc."""

import json
import os
import signal
import time

from harness import ServiceCase, run_tests, wait_until

SUCCEEDED, USAGE, NOT_FOUND, TIMEOUT, USER_FAILURE, INFRASTRUCTURE_FAILURE, CANCELLED = 0, 2, 3, 4, 10, 11, 12


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


if __name__ == "__main__":
    run_tests()
