"""Prices and budgets with real processes: what people see of a price, a budget that is used up, a server that is killed
meanwhile."""

import json

from harness import ServiceCase, run_tests, wait_until

SUCCEEDED, USAGE, NOT_FOUND, REFUSED = 0, 2, 3, 5
# An H100 costs a euro a second.
PRICE = 3600


class BudgetTest(ServiceCase):

    def run_ok(self, *arguments):
        result = self.sftctl(*arguments)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return result.stdout

    def project(self):
        return json.loads(self.run_ok("admin", "project", "show", "default", "--json"))

    def test_nothing_is_shown_of_costs_without_prices(self):
        self.start_server()
        self.start_worker(gpus="H100:2")
        job = self.submit("ok", ranks=1)
        self.assert_ends(job, SUCCEEDED)
        self.assertIsNone(self.status(job)["cost"])
        for text in (self.run_ok("status", job), self.run_ok("list"), self.run_ok("stats", "--by", "project"),
                     self.run_ok("submit", self.write_job("ok", ranks=1), "--dry-run"),
                     self.run_ok("admin", "project", "list")):
            self.assertNotRegex(text, r"(?m)^cost|COST|SPENT|EUR")
        result = self.sftctl("admin", "project", "set", "default", "--budget", "10")
        self.assertEqual((result.returncode, "sftctl price set" in result.stderr), (REFUSED, True), result.stderr)

    def test_a_price_is_seen_before_during_and_after_a_job(self):
        self.start_server()
        self.start_worker(gpus="H100:2")
        self.run_ok("price", "set", "H100", PRICE, "--currency", "EUR")
        self.run_ok("price", "set", "H100", "7200.50", "--from", "2099-01-01")
        listed = json.loads(self.run_ok("price", "list", "--json"))
        self.assertEqual([(each["gpu_type"], each["micros_per_hour"], each["currency"]) for each in listed],
                         [("H100", PRICE * 1_000_000, "EUR"), ("H100", 7_200_500_000, "EUR")])
        self.assertIn("7200.50 EUR", self.run_ok("price", "list"))
        gate = self.dir / "gate"
        file = self.write_job(f"until {gate}", ranks=2)
        self.assertIn("7200.00 EUR an hour", self.run_ok("submit", file, "--dry-run"))
        job = json.loads(self.run_ok("submit", file, "--json"))["job"]
        self.wait_for_step(job)
        wait_until("a cost", lambda: self.status(job)["cost"]["micros"] > 1_000_000)
        self.assertIn("EUR so far, 7200.00 EUR an hour", self.run_ok("status", job))
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        cost = self.status(job)["cost"]
        wait_until("the slots to be free", lambda: self.project()["gpus"] == 0)
        self.assertEqual((cost["currency"], cost["micros_per_hour"], cost["lost_micros"]), ("EUR", 0, 0))
        ended = self.status(job)["cost"]["micros"]
        self.assertIn("COST", self.run_ok("list").splitlines()[0])
        stats = json.loads(self.run_ok("stats", "--by", "project", "--json"))
        self.assertEqual((stats["currency"], stats["total"]["cost_micros"]), ("EUR", ended))
        self.assertEqual(stats["rows"][0]["cost_micros"], ended)
        # What was used keeps its price.
        self.run_ok("price", "set", "H100", 1)
        self.assertEqual(self.status(job)["cost"]["micros"], ended)
        for wrong in (("price", "set", "H100", "1", "--from", "2020-01-01"), ("price", "remove", "H100", "--from", listed[0]["start_time"]),
                      ("price", "set", "H100", "1", "--currency", "USD")):
            self.assertEqual(self.sftctl(*wrong).returncode, REFUSED, wrong)
        for wrong in ("-1", "x", "1.0000001", "1e3", "9999999"):
            self.assertEqual(self.sftctl("price", "set", "H100", "--", wrong).returncode, USAGE, wrong)
        self.run_ok("price", "remove", "H100", "--from", "2099-01-01")
        self.assertEqual(self.sftctl("price", "remove", "H100", "--from", "2099-01-01").returncode, NOT_FOUND)

    def test_a_budget_that_is_used_up_holds_new_jobs_though_the_server_was_killed(self):
        self.start_server()
        self.start_worker(gpus="H100:2")
        self.run_ok("price", "set", "default", PRICE, "--currency", "EUR")
        self.run_ok("admin", "project", "set", "default", "--budget", "3", "--budget-period", "total")
        gate = self.dir / "gate"
        running = self.submit(f"until {gate}", ranks=1)
        wait_until("the budget to be used up", lambda: self.project()["budget"]["reached"])
        self.kill("server")
        self.start_server()
        self.assertTrue(self.project()["budget"]["reached"])
        waiting = self.submit("ok", ranks=1, name="second")
        wait_until("its reason", lambda: "the budget of project default (3.00 EUR) is used up" in self.status(waiting)["reason"])
        self.assertEqual(self.status(running)["state"], "RUNNING", "what runs goes on")
        dry = self.run_ok("submit", self.write_job("ok", ranks=1), "--dry-run")
        self.assertIn("is used up", dry)
        shown = self.run_ok("admin", "project", "show", "default")
        self.assertIn("it is used up", shown)
        events = [json.loads(line) for line in self.run_ok("events", "--all", "--json").splitlines()]
        told = [event["type"] for event in events if event["subject"] == "projects/default"]
        self.assertEqual(told, ["budget.warned", "budget.reached"])
        gate.touch()
        self.assert_ends(running, SUCCEEDED)
        spent = self.project()["budget"]["spent_micros"]
        self.assertEqual(self.status(running)["cost"]["micros"], spent, "to the microsecond")
        self.assertEqual(self.status(waiting)["state"], "PENDING")
        self.run_ok("admin", "project", "set", "default", "--budget", "100000")
        self.assert_ends(waiting, SUCCEEDED)
        self.run_ok("admin", "project", "set", "default", "--no-budget")
        self.assertIsNone(self.project()["budget"])

    def test_with_stop_a_running_job_writes_a_checkpoint_waits_and_goes_on_from_it(self):
        self.start_server()
        self.start_worker(gpus="H100:1")
        self.run_ok("price", "set", "H100", PRICE, "--currency", "EUR")
        self.run_ok("admin", "project", "set", "default", "--budget", "4", "--on-budget-reached", "stop")
        job = self.submit("train steps=1500 pace=20", ranks=1)
        wait_until("it to wait", lambda: self.status(job)["state"] == "PENDING" and "used up" in self.status(job)["reason"])
        status = self.status(job)
        self.assertEqual(status["attempts"][0]["verdict"]["code"], "budget_reached")
        self.assertGreater(status["checkpoint_step"], 0)
        self.run_ok("admin", "project", "set", "default", "--budget", "100000")
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempts"][1]["first_step"], status["checkpoint_step"])


if __name__ == "__main__":
    run_tests()
