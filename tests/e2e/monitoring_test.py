"""The monitoring files of deploy/monitoring, with Prometheus' own tools: the page, the rules with each alert, and
each query of the board against a Prometheus that has scraped a server with jobs; and the board with Grafana's types."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import urllib.parse
import urllib.request

from harness import ServiceCase, free_port, run_tests, wait_until

ROOT = pathlib.Path(__file__).parents[2]
FILES = ROOT / "deploy/monitoring"
PYTHON = pathlib.Path(os.environ.get("SFT_DEPS_DIR", ROOT / "build/deps")) / "monitoring/bin/python"
CLIENT = pathlib.Path(__file__).parent / "board_client.py"
SUCCEEDED, USER_FAILURE = 0, 10
# What Grafana puts into a query.
VARIABLES = {"$__rate_interval": "1m"}


def get(url):
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


class MonitoringTest(ServiceCase):

    def setUp(self):
        super().setUp()
        for program in ("prometheus", "promtool"):
            if shutil.which(program) is None:
                self.skipTest(f"{program} is missing: deploy/bootstrap --monitoring installs it")

    def promtool(self, *arguments, text=None, cwd=None):
        result = subprocess.run(["promtool", *map(str, arguments)], input=text, cwd=cwd, capture_output=True, text=True,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout + result.stderr

    def start_server_with_page(self):
        self.http = free_port()
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker(gpus="H100:2")

    def page(self):
        return get(f"http://127.0.0.1:{self.http}/metrics")

    def start_prometheus(self):
        """With the configuration as it is shipped, but for the address and the pace."""
        config = (FILES / "prometheus.yml").read_text()
        for old, new in (("127.0.0.1:7071", f"127.0.0.1:{self.http}"), ("30s", "1s"), ("rules/", f"{FILES}/rules/")):
            self.assertIn(old, config)
            config = config.replace(old, new)
        (self.dir / "prometheus.yml").write_text(config)
        port = free_port()
        self.start("prometheus", "prometheus", f"--config.file={self.dir}/prometheus.yml",
                   f"--storage.tsdb.path={self.dir}/tsdb", f"--web.listen-address=127.0.0.1:{port}")
        self.prometheus = f"http://127.0.0.1:{port}/api/v1/"
        wait_until("a scrape", lambda: self.answers() and self.query('up{job="sft-server"} == 1'))

    def answers(self):
        try:
            return get(self.prometheus + "status/buildinfo")
        except OSError:
            return ""

    def query(self, expression):
        answer = json.loads(get(self.prometheus + "query?" + urllib.parse.urlencode({"query": expression})))
        self.assertEqual(answer["status"], "success", expression)
        return [sample for sample in answer["data"]["result"] if not math.isnan(float(sample["value"][1]))]

    def test_each_alert_fires_and_keeps_quiet_and_has_a_heading_that_says_what_to_do(self):
        self.promtool("check", "rules", *sorted((FILES / "rules").glob("*.yml")))
        self.promtool("check", "config", FILES / "prometheus.yml")
        self.promtool("test", "rules", "alerts_test.yml", cwd=FILES / "tests")
        rules = (FILES / "rules/alerts.yml").read_text()
        alerts = re.findall(r"- alert: (\w+)", rules)
        self.assertGreater(len(alerts), 15)
        self.assertEqual(sorted(alerts), sorted(set(alerts)))
        tests = re.split(r"\n  - name: ", (FILES / "tests/alerts_test.yml").read_text())
        headings = re.findall(r"^#+ (\w+)$", (ROOT / "docs/operations.md").read_text(), re.MULTILINE)
        for alert in alerts:
            of_alert = [test for test in tests if f"alertname: {alert}\n" in test]
            quiet = [test for test in of_alert if "exp_alerts: []" in test]
            self.assertTrue(quiet and len(quiet) < len(of_alert), f"{alert} needs a test that fires and a quiet one")
            self.assertIn(f"runbook_url: docs/operations.md#{alert.lower()}\n", rules)
            self.assertIn(alert, headings, "its heading in docs/operations.md")

    def test_grafanas_types_know_all_of_the_board(self):
        if not PYTHON.exists():
            self.skipTest(f"{PYTHON} is missing: deploy/bootstrap --monitoring installs grafana-foundation-sdk")
        board = json.loads((FILES / "board.json").read_text())
        self.assertEqual(self.unknown(board), "")
        # What they would not take is seen.
        for path, value in ((("refresh",), 30), (("panels", 0, "gridPos", "x"), "0"), (("panels", 0, "options", "colour"), "red"),
                            (("panels", 0, "targets", 0, "query"), "up"), (("panels", 5, "options", "legend", "placement"), "left")):
            wrong = json.loads(json.dumps(board))
            place = wrong
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            self.assertEqual(len(self.unknown(wrong).splitlines()), 1, (path, value))

    def unknown(self, board):
        (self.dir / "board.json").write_text(json.dumps(board))
        result = subprocess.run([PYTHON, CLIENT, self.dir / "board.json"], capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode != 0, result.stderr), (result.stdout != "", ""))
        return result.stdout

    def test_each_query_of_the_board_finds_something_after_a_job(self):
        self.start_server_with_page()
        self.start_prometheus()
        board = json.loads((FILES / "board.json").read_text())
        panels = board["panels"]
        self.assertLessEqual(len(panels), 20)
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        gate = self.dir / "gate"
        self.assert_ends(self.submit("ok", ranks=1), SUCCEEDED)
        wait_until("the first job in a scrape", lambda: self.query("sft_jobs_ended_total"))
        # What comes now is an increase; this one holds its slots while the board is asked.
        self.assert_ends(self.submit("user_error", ranks=1, name="mine"), USER_FAILURE)
        job = self.submit(f"until {gate}", ranks=2, name="held")
        self.wait_for_step(job)
        for panel in panels:
            self.assertTrue(panel["fieldConfig"]["defaults"]["unit"], panel["title"])
            for target in panel["targets"]:
                expression = target["expr"]
                for name, value in VARIABLES.items():
                    expression = expression.replace(name, value)
                self.assertNotIn("$", expression)
                wait_until(f"{panel['title']}: {expression}", lambda asked=expression: self.query(asked))
        names = {metric for rule in re.findall(r"expr:(.*?)\n *(?:- |labels|for)", (FILES / "rules/alerts.yml").read_text(), re.DOTALL)
                 for metric in re.findall(r"\b(?:sft|process)_[a-z_]+", rule)}
        page = self.page()
        shown = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
        # A server without TLS has no certificate, and no standby tells of its copies here.
        missing = {re.sub(r"_(bucket|count|sum)$", "", name) for name in names} - shown
        self.assertEqual(missing, {"sft_certificate_expiry_timestamp_seconds", "sft_standby_lag_seconds",
                                   "sft_standby_loss_bound_seconds", "sft_standby_copy_timestamp_seconds"})
        self.assertEqual(self.promtool("check", "metrics", text=page), "")
        self.assertEqual({line.split('job_id="')[1].split('"')[0] for line in page.splitlines() if "job_id=" in line}, {job})
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        wait_until("a slot that nobody holds", lambda: "job_id=" not in self.page())


if __name__ == "__main__":
    run_tests()
