"""Classes, preemption by checkpoint, dependencies, holds, limits and sweeps, with fake ranks."""

import json
import os
import subprocess
import urllib.request

from harness import BUILD, ServiceCase, free_port, run_tests, wait_until

SUCCEEDED, USAGE, REFUSED, USER_FAILURE, CANCELLED = 0, 2, 5, 10, 12


class SchedulingTest(ServiceCase):

    def submit_with(self, job_file, *flags, code=SUCCEEDED):
        result = self.sftctl("submit", job_file, "--json", *flags)
        self.assertEqual(result.returncode, code, result.stderr)
        return json.loads(result.stdout)["job"] if code == SUCCEEDED else result.stderr

    def curve(self, job):
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        return {point["step"]: point["loss"] for point in points}

    def events(self, job):
        lines = self.sftctl("events", job, "--json").stdout.splitlines()
        return [(event["type"], event["message"]) for event in map(json.loads, lines)]

    def test_a_high_job_preempts_a_low_one_which_goes_on_and_succeeds(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        gate = self.dir / "gate"
        # Seven minutes are expected of it: less would be waited for.
        low = self.submit_with(self.write_job(f"train steps=2000 pace=210 fast={gate}", ranks=1, name="low"),
                               "--priority", "low")
        self.wait_for_step(low, 8)
        high = self.submit_with(self.write_job("train steps=5 pace=5", ranks=1, name="high"),
                                "--priority", "high")
        self.assert_ends(high, SUCCEEDED)
        gate.write_text("")
        self.assert_ends(low, SUCCEEDED)
        status = self.status(low)
        first, second = status["attempts"]
        self.assertEqual(first["verdict"]["code"], "preempted")
        self.assertEqual(first["verdict"]["message"], f"preempted by {high}")
        self.assertGreaterEqual(second["first_step"], 8)
        self.assertEqual(second["last_step"], 2000)
        self.assertEqual(status["priority"], "low")
        straight = self.submit("train steps=2000 pace=0", ranks=1, name="straight")
        self.assert_ends(straight, SUCCEEDED)
        self.assertEqual(self.curve(low), self.curve(straight), "as if nothing had happened")
        self.assertIn(("preempted", f"preempted by {high}"), self.events(low))

    def test_a_job_waits_for_another_and_ends_with_it_where_that_fails(self):
        self.start_server()
        self.start_worker(gpus="H100:2")
        gate = self.dir / "gate"
        first = self.submit(f"train steps=5 pace=1 until={gate}", ranks=1)
        job = self.write_job("train steps=3 pace=1", ranks=1, name="after")
        after = self.submit_with(job, "--after", first)
        wait_until("the reason", lambda: f"waiting for {first} to succeed" in self.status(after)["reason"])
        gate.write_text("")
        self.assert_ends(after, SUCCEEDED)
        bad = self.submit(f"train steps=5 pace=1 until={self.dir}/never", ranks=1, name="bad")
        chained = self.submit_with(job, "--after", bad)
        self.sftctl("cancel", bad)
        self.assert_ends(chained, USER_FAILURE)
        verdict = self.status(chained)["verdict"]
        self.assertEqual(verdict["code"], "dependency_failed")
        self.assertIn(f"{bad}, which has CANCELLED", verdict["message"])
        self.assertIn("could never start", self.submit_with(job, "--after", bad, code=USAGE))
        self.assertIn("no job", self.submit_with(job, "--after", "job-none", code=USAGE))

    def test_a_held_job_waits_for_its_release(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        job = self.submit_with(self.write_job("train steps=3 pace=1", ranks=1), "--hold")
        wait_until("the reason", lambda: "sftctl release" in self.status(job)["reason"])
        self.assertTrue(self.status(job)["held"])
        other = self.submit("train steps=3 pace=1", ranks=1, name="other")
        self.assert_ends(other, SUCCEEDED)
        self.assertEqual(self.sftctl("hold", other).returncode, REFUSED)
        self.assertEqual(self.sftctl("release", job).returncode, 0)
        self.assert_ends(job, SUCCEEDED)

    def test_a_time_limit_warns_and_ends_the_job_with_a_checkpoint(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        job = self.submit_with(self.write_job("train steps=100000 pace=20", ranks=1), "--time-limit", "6s",
                               "--set", "scheduling.warn_before=3s")
        self.assert_ends(job, USER_FAILURE)
        status = self.status(job)
        self.assertEqual(status["verdict"]["code"], "time_limit")
        self.assertGreater(status["checkpoint_step"], 0)
        self.assertTrue(any(kind == "warning" and "time_limit" in text for kind, text in self.events(job)))
        self.assertIn("--time-limit", status["verdict"]["advice"])
        again = self.sftctl("resume", job, "--time-limit", "2h")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.sftctl("cancel", again.stdout.strip())

    def test_a_waiting_job_is_told_what_would_start_it_sooner_and_the_command_does_it(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        gate = self.dir / "gate"
        # Of a job that seems to end within a minute nobody need be told a way round.
        first = self.submit(f"train steps=5 pace=1 until={gate}", ranks=1, name="first", tables="max_steps = 1000000")
        self.wait_for_state(first, "RUNNING")
        job = self.write_job("train steps=3 pace=1", ranks=1, name="waiting")
        waiting = self.submit_with(job)
        wait_until("its place", lambda: "line       place 1 of 1\n" in self.sftctl("status", waiting).stdout)
        self.start_worker("node-b", gpus="A100:1")
        found = wait_until("the other type", lambda: next(
            (each for each in self.status(waiting)["wait"]["what_ifs"] if each["now"]), None))
        self.assertEqual(found["change"], "on 1 x A100")
        self.assertIn(f"sooner     on 1 x A100: now\n             {found['command']}\n",
                      self.sftctl("status", waiting).stdout)
        dry_run = self.sftctl("submit", job, "--dry-run")
        self.assertIn(f"on 1 x A100: now\n               sftctl submit {job} --set compute.gpu_type=A100\n",
                      dry_run.stdout)
        environment = os.environ | {"PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}",
                                    "SFT_SERVER": f"127.0.0.1:{self.port}"}
        pasted = subprocess.run(found["command"], shell=True, cwd=self.dir, env=environment,
                                capture_output=True, text=True, check=True)
        self.assert_ends(pasted.stdout.split()[0], SUCCEEDED)
        self.assertEqual(self.status(waiting)["state"], "CANCELLED")
        self.assertIsNone(self.status(waiting)["wait"])
        gate.write_text("")
        self.assert_ends(first, SUCCEEDED)

    def test_a_waiting_job_is_told_what_moved_it(self):
        web = f"127.0.0.1:{free_port()}"
        self.start_server(http=web)
        self.start_worker(gpus="H100:1")
        gate = self.dir / "gate"
        first = self.submit_with(self.write_job(f"train steps=5 pace=1 until={gate}", ranks=1, name="first"),
                                 "--priority", "high")
        self.wait_for_state(first, "RUNNING")
        waiting = self.submit("train steps=3 pace=1", ranks=1, name="waiting")
        wait_until("its place", lambda: self.status(waiting)["wait"]["line"] == 1)
        self.assertEqual(self.status(waiting)["wait"]["history"], [])
        ahead = self.submit_with(self.write_job("train steps=3 pace=1", ranks=1, name="ahead"), "--priority", "high")

        def change():
            history = self.status(waiting)["wait"]["history"]
            return history and history[0]
        told = wait_until("what moved it", change)
        self.assertEqual((told["place_before"], told["place"]), (1, 2))
        self.assertEqual(told["cause"], f"{ahead} was submitted ahead of it")
        self.assertRegex(self.sftctl("status", waiting).stdout,
                         rf"\nchanged    \d{{4}}-.*Z: place 1 -> 2.*\n +{ahead} was submitted ahead of it\n")
        request = urllib.request.Request(f"http://{web}/api/v1/SchedulingService/ExplainWait",
                                         json.dumps({"name": waiting}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            explained = json.load(answer)["history"][0]
        self.assertEqual((explained["place"], explained["cause"]), (2, told["cause"]))
        self.kill("server")
        self.start_server()
        self.assertEqual(self.status(waiting)["wait"]["history"][-1]["cause"], told["cause"], "it is kept")
        gate.write_text("")
        for job in (first, ahead, waiting):
            self.assert_ends(job, SUCCEEDED)

    def test_one_feed_tells_of_jobs_and_nodes_through_a_restart_of_the_server(self):
        self.start_server()
        out = self.dir / "feed.out"
        with open(out, "wb") as file:
            self.processes["feed"] = subprocess.Popen(
                [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "events", "--all", "--follow",
                 "--after", "0", "--json"], stdout=file, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

        def feed():
            return [json.loads(line) for line in out.read_text().splitlines()]

        def told(subject, kind):
            return lambda: any(event["subject"].endswith(subject) and event["type"] == kind for event in feed())
        self.start_worker(gpus="H100:1")
        wait_until("the node", told("nodes/node-a", "registered"))
        job = self.submit("train steps=3 pace=1", ranks=1)
        self.assert_ends(job, SUCCEEDED)
        wait_until("the job's end", told(job, "artifact"))
        self.kill("server")
        self.start_server()
        self.assertEqual(self.sftctl("nodes", "cordon", "node-a", "--reason", "fan").returncode, 0)
        wait_until("the cordon", told("nodes/node-a", "cordoned"))
        seen = feed()
        self.assertEqual([event["sequence"] for event in seen], list(range(1, len(seen) + 1)))
        listed = self.sftctl("events", "--all", "--json").stdout.splitlines()
        self.assertEqual([json.loads(line) for line in listed][:len(seen)], seen)
        own = [(event["type"], event["message"]) for event in seen if event["job"] == job]
        self.assertEqual(own, self.events(job))
        self.assertIn("by local: fan", [event["message"] for event in seen])

    def test_lists_are_filtered_and_ordered_by_the_server(self):
        self.start_server()
        ids = {}
        for name in ("b", "c", "a"):
            ids[name] = self.submit_with(self.write_job("train steps=1 pace=1", ranks=1, name=name),
                                         "--name", f"name-{name}")
        self.sftctl("cancel", ids["c"])

        def names(*flags):
            listed = self.sftctl("list", "--json", *flags)
            self.assertEqual(listed.returncode, 0, listed.stderr)
            return "".join(job["name"][-1] for job in json.loads(listed.stdout))
        self.assertEqual(names(), "acb")
        self.assertEqual(names("--reverse"), "bca")
        self.assertEqual(names("--sort", "name"), "abc")
        self.assertEqual(names("--sort", "ended", "--limit", 1), "c")
        self.assertEqual(names("--state", "PENDING", "--sort", "name", "--reverse"), "ba")
        self.assertEqual(names("--match", ids["b"][4:]), "b")
        self.assertEqual(names("--match", "NAME-B", "--owner", "local"), "b")
        self.assertEqual(names("--owner", "nobody"), "")
        self.assertIn("1 of 3 jobs; --limit shows more", self.sftctl("list", "--limit", 1).stderr)

    def test_a_sweep_is_one_array_of_jobs(self):
        self.start_server()
        self.start_worker(gpus="H100:4")
        job = self.write_job("train steps=4 pace=20", ranks=1)
        result = self.sftctl("sweep", job, "--set", "lora.r=8,16,32", "--set", "hyperparameters.seed=1,2",
                             "--max-parallel", 2, "--request-id", "once", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        sweep = json.loads(result.stdout)
        self.assertEqual(len(set(sweep["jobs"])), 6)
        repeated = self.sftctl("sweep", job, "--set", "lora.r=8,16,32", "--set", "hyperparameters.seed=1,2",
                               "--max-parallel", 2, "--request-id", "once", "--json")
        self.assertEqual(json.loads(repeated.stdout), sweep)
        listed = json.loads(self.sftctl("list", "--sweep", sweep["sweep"], "--json").stdout)
        self.assertEqual({each["job"] for each in listed}, set(sweep["jobs"]))
        running = sum(each["state"] in ("PREPARING", "RUNNING") for each in listed)
        self.assertLessEqual(running, 2)
        for each in sweep["jobs"]:
            self.assert_ends(each, SUCCEEDED)
        ranks = {self.status(each)["resolved"]["lora"]["r"] for each in sweep["jobs"]}
        self.assertEqual(ranks, {8, 16, 32})
        long = self.write_job("train steps=100000 pace=20", ranks=1, name="long")
        endless = self.sftctl("sweep", long, "--set", "lora.r=8,16").stdout.strip()
        cancelled = self.sftctl("cancel", "--sweep", endless)
        self.assertEqual(cancelled.returncode, 0, cancelled.stderr)
        self.assertIn("2 cancelled", cancelled.stdout)
        million = ",".join(map(str, range(1, 1001)))
        refused = self.sftctl("sweep", job, "--set", f"hyperparameters.seed={million}", "--set",
                              f"hyperparameters.max_steps={million}")
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("more than 1000 jobs", refused.stderr)
        wrong = self.sftctl("sweep", job, "--set", "lora.r=8,many")
        self.assertEqual(wrong.returncode, USAGE)
        self.assertIn("lora.r", wrong.stderr)

    def test_a_project_keeps_to_its_limits_and_says_so(self):
        self.start_server()
        self.start_worker(gpus="H100:4")
        set_ = self.sftctl("admin", "project", "set", "default", "--max-gpus", 1, "--max-priority", "normal",
                           "--max-pending", 2, "--json")
        self.assertEqual(set_.returncode, 0, set_.stderr)
        job = self.write_job("train steps=100000 pace=20", ranks=1)
        first = self.submit_with(job)
        self.wait_for_step(first)
        second = self.submit_with(job)
        wait_until("the reason", lambda: "may use 1 GPUs at once" in self.status(second)["reason"])
        self.assertIn("may not use high", self.submit_with(job, "--priority", "high", code=USAGE))
        self.submit_with(job)
        self.assertIn("may have 2 waiting jobs", self.submit_with(job, code=REFUSED))
        listed = json.loads(self.sftctl("admin", "project", "list", "--json").stdout)
        self.assertEqual([(p["project"], p["gpus"], p["pending"]) for p in listed], [("default", 1, 2)])

    def test_a_waiting_job_shows_its_place_and_when_it_starts(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        job = self.write_job("train steps=300 pace=100", ranks=1)
        first = self.submit_with(job)
        self.wait_for_step(first, 8)
        second = self.submit_with(job)
        outlook = wait_until("an outlook", lambda: (self.status(second)["outlook"] or {}).get("expected_start_time")
                             and self.status(second)["outlook"])
        self.assertEqual(outlook["place"], 1)
        self.assertEqual(self.status(first)["outlook"]["source"], "measured")
        plan = json.loads(self.sftctl("submit", job, "--dry-run", "--json").stdout)["plan"]
        self.assertEqual(plan["outlook"]["place"], 2)
        self.assertIn("place 1 in line", self.sftctl("status", second).stdout)


if __name__ == "__main__":
    run_tests()
