"""Cordoning, draining and taking back of nodes end to end."""

import json

from harness import DEADLINE_S, ServiceCase, run_tests, wait_until

SUCCEEDED, NOT_FOUND, UNREACHABLE, REFUSED = 0, 3, 4, 5


class DrainTest(ServiceCase):

    def node(self, name):
        result = self.sftctl("nodes", name, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def curve(self, job):
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        return {point["step"]: point["loss"] for point in points}

    def test_drain_now_moves_a_job_with_its_state_and_without_cost(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        done = self.dir / "done"
        job = self.submit(f"train steps=400 pace=10 until={done}", ranks=1)
        self.wait_for_step(job, 10)
        self.start_worker("node-b", "H100:1")
        asked = max(self.curve(job))
        result = self.sftctl("drain", "node-a", "--reason", "new driver", "--now", "--wait", "--timeout", f"{DEADLINE_S}s")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertIn("node-a DRAINED", result.stdout)
        wait_until("it to run elsewhere", lambda: self.status(job)["nodes"] == ["node-b"])
        first, second = self.status(job)["attempts"]
        self.assertEqual(first["verdict"]["code"], "moved")
        self.assertIn("node-a is drained by", first["verdict"]["message"])
        self.assertIn("new driver", first["verdict"]["message"])
        # What the first attempt had trained when it was asked is not trained again. How far it came while
        # the checkpoint was written is the machine's business.
        self.assertGreaterEqual(second["first_step"], asked)
        done.touch()
        self.assertEqual(self.sftctl("wait", job, "--timeout", f"{DEADLINE_S}s").returncode, SUCCEEDED)
        straight = self.submit("train steps=400 pace=1", ranks=1, name="straight")
        self.assertEqual(self.sftctl("wait", straight, "--timeout", f"{DEADLINE_S}s").returncode, SUCCEEDED)
        self.assertEqual(self.curve(job), self.curve(straight))
        held = self.node("node-a")
        self.assertEqual((held["status"], held["hold"]["mode"], held["hold"]["reason"]),
                         ("DRAINED", "DRAIN", "new driver"))

    def test_a_held_node_takes_nothing_until_it_is_taken_back_over_restarts(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        self.assertEqual(self.sftctl("nodes", "cordon", "node-a", "--reason", "loud fan").returncode, 0)
        job = self.submit("ok", ranks=1)
        wait_until("the reason", lambda: "cordoned by local: loud fan" in self.status(job)["reason"])
        self.kill("server")
        self.kill("node-a")
        self.start_server()
        self.start_worker("node-a", "H100:1")
        wait_until("the worker", lambda: "cordoned" in self.node("node-a")["unusable"])
        self.assertEqual(self.status(job)["state"], "PENDING")
        self.assertIn("CORDONED", self.sftctl("nodes").stdout)
        self.assertEqual(self.sftctl("nodes", "resume", "node-a").stdout, "node-a UP\n")
        self.assert_ends(job, SUCCEEDED)

    def test_a_drain_waits_for_its_jobs_until_the_deadline_and_then_moves_them(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        job = self.submit(f"train steps=30 pace=5 until={self.dir}/never", ranks=1)
        self.wait_for_step(job, 20)
        result = self.sftctl("nodes", "drain", "node-a", "--wait", "--timeout", "10s")
        self.assertEqual(result.returncode, UNREACHABLE, result.stdout)
        self.assertIn("waiting for " + job, result.stderr)
        self.assertEqual(self.node("node-a")["status"], "DRAINING")
        self.assertEqual(self.status(job)["state"], "RUNNING")
        result = self.sftctl("nodes", "drain", "node-a", "--deadline", "1s", "--wait", "--timeout", f"{DEADLINE_S}s")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        status = self.status(job)
        self.assertEqual((status["state"], status["attempts"][0]["verdict"]["code"]), ("PENDING", "moved"))
        wait_until("the reason", lambda: "node-a has 1 but is drained by local" in self.status(job)["reason"])

    def test_a_node_that_is_gone_is_removed_and_comes_back_with_its_worker(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        self.start_worker("node-b", "H100:1")
        result = self.sftctl("nodes", "rm", "node-a")
        self.assertEqual(result.returncode, REFUSED, result.stdout)
        self.assertIn("node-a is connected", result.stderr)
        self.kill("node-a")
        wait_until("the server to see it go", lambda: self.sftctl("nodes", "rm", "node-a").returncode == SUCCEEDED)
        names = [node["node"] for node in json.loads(self.sftctl("nodes", "--json").stdout)]
        self.assertEqual(names, ["node-b"])
        self.assertEqual(self.sftctl("nodes", "node-a").returncode, NOT_FOUND)
        self.assertNotIn("node-a", self.sftctl("nodes").stdout)
        removed = json.loads(self.sftctl("nodes", "rm", "node-a", "--json").stdout)
        self.assertEqual(removed, {"node": "node-a", "removed": True})
        self.start_worker("node-a", "H100:1")
        self.assertEqual(self.node("node-a")["status"], "UP")

    def test_a_node_that_does_not_exist_is_not_found_with_those_that_do(self):
        self.start_server()
        self.start_worker("node-a", "H100:1")
        for command in (("drain", "node-x"), ("nodes", "cordon", "node-x"), ("nodes", "resume", "node-x"),
                        ("nodes", "rm", "node-x"), ("nodes", "node-x")):
            result = self.sftctl(*command)
            self.assertEqual(result.returncode, NOT_FOUND, command)
            self.assertIn('no node "node-x"', result.stderr)
            self.assertIn("node-a", result.stderr)


if __name__ == "__main__":
    run_tests()
