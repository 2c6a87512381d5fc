#!/usr/bin/env python3
"""TensorBoard and MLflow themselves, as their users start them, beside a job that runs and is told to them by the Python
package: what their own HTTP APIs answer."""

import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import harness

PACKAGE = pathlib.Path(__file__).parents[2] / "client/python"
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
STEPS = 400
TAG = "train/loss"


class TrackerServersTest(harness.ServiceCase):
    def program(self, name):
        path = DEPS / "sdk/bin" / name
        if not path.exists():
            self.skipTest(f"{path} is missing: deploy/bootstrap --sdk installs {name}")
        return path

    def start_job(self):
        """A job with a step in 0.1 s until `self.fast` is there; its id."""
        self.http = harness.free_port()
        self.fast = self.dir / "fast"
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker()
        return self.submit(f"train steps={STEPS} pace=100 fast={self.fast}", ranks=1, name="told")

    def start_exporter(self, call):
        """`call` tells the job `job`, given as its one argument, to a tracker until it has ended."""
        (self.dir / "tell.py").write_text(f"import sft, sft.export, sys\njob = sft.Client().job(sys.argv[1])\n{call}\n")
        return self.start("tell", "env", f"PYTHONPATH={PACKAGE}", f"SFT_SERVER=127.0.0.1:{self.port}",
                          f"SFT_WEB=http://127.0.0.1:{self.http}", f"XDG_CONFIG_HOME={self.dir}/home",
                          self.program("python"), self.dir / "tell.py", self.job)

    def ask(self, path, body=None, **query):
        """What the tracker answers; None while it is not there, or knows nothing of that."""
        url = f"http://127.0.0.1:{self.tracker}{path}?{urllib.parse.urlencode(query)}"
        request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
                return json.load(answer)
        except (urllib.error.HTTPError, ConnectionError, urllib.error.URLError):
            for name in {"tracker", "tell"} & set(self.processes):
                if self.processes[name].poll():
                    self.fail(f"{name} has failed: " + (self.dir / f"{name}.log").read_text())
            return None

    def assert_grows_to_the_end(self, read):
        """`read()`: [(step, value)] as the tracker has it now."""
        first = harness.wait_until("the tracker to show a value", read)
        grown = harness.wait_until("more of them", lambda: [each for each in [read()] if len(each) > len(first)])[0]
        self.assertEqual(grown[:len(first)], first)
        self.assertEqual(self.status(self.job)["state"], "RUNNING")
        self.assertLess(len(grown), STEPS)
        self.fast.touch()
        self.assert_ends(self.job, 0)
        self.assertEqual(self.processes["tell"].wait(timeout=harness.DEADLINE_S), 0, (self.dir / "tell.log").read_text())
        points = [json.loads(line) for line in self.sftctl("metrics", self.job, "--json").stdout.splitlines()]
        curve = [(point["step"], round(point["loss"], 4)) for point in points if point["type"] == "step"]
        self.assertEqual(len(curve), STEPS)
        harness.wait_until("all of the curve", lambda: len(read()) == STEPS)
        self.assertEqual(read(), curve)

    def test_tensorboard_shows_a_curve_that_grows(self):
        board = self.program("tensorboard")
        self.job = self.start_job()
        self.start_exporter(f"sft.export.tensorboard(job, {str(self.dir / 'runs')!r})")
        self.tracker = harness.quiet_port()
        self.start("tracker", board, "--logdir", self.dir / "runs", "--port", self.tracker, "--reload_interval", 1,
                   "--samples_per_plugin", f"scalars={STEPS}")

        def read():
            values = self.ask("/data/plugin/scalars/scalars", run=self.job, tag=TAG)
            return [(step, round(value, 4)) for _, step, value in values or []]
        self.assert_grows_to_the_end(read)
        tags = self.ask("/data/plugin/scalars/tags")
        self.assertEqual(list(tags), [self.job])
        self.assertIn("train/lr", tags[self.job])

    def test_mlflow_answers_the_run_with_its_metrics(self):
        tracker = self.program("mlflow")
        probe = subprocess.run([str(self.program("python")), "-c", "import aiohttp, flask, flask_cors, graphene"], capture_output=True,
                               text=True, check=False)
        if probe.returncode:
            self.skipTest(f"mlflow's server: {probe.stderr.splitlines()[-1]}: deploy/bootstrap --sdk installs it")
        self.job = self.start_job()
        self.tracker = harness.quiet_port()
        self.start("tracker", "env", "MLFLOW_DISABLE_TELEMETRY=true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false", tracker, "server", "--backend-store-uri",
                   f"sqlite:///{self.dir}/mlflow.db", "--artifacts-destination", self.dir / "artifacts", "--port", self.tracker,
                   "--workers", 1)
        api = "/api/2.0/mlflow"
        harness.wait_until("mlflow to answer", lambda: self.ask(f"{api}/experiments/get-by-name", experiment_name="Default"))
        self.start_exporter(f"sft.export.mlflow(job, 'http://127.0.0.1:{self.tracker}')")

        def run():
            known = self.ask(f"{api}/experiments/get-by-name", experiment_name="sft")
            found = known and self.ask(f"{api}/runs/search", {"experiment_ids": [known["experiment"]["experiment_id"]]})
            return (found or {}).get("runs", [None])[0]
        run_id = harness.wait_until("the run", run)["info"]["run_id"]

        def read():
            history = self.ask(f"{api}/metrics/get-history", run_id=run_id, metric_key=TAG, max_results=2 * STEPS)
            return [(each["step"], round(each["value"], 4)) for each in (history or {}).get("metrics", [])]
        self.assert_grows_to_the_end(read)
        told = run()
        self.assertEqual((told["info"]["status"], told["info"]["run_name"]), ("FINISHED", "told"))
        self.assertIn({"key": "job.model", "value": "tiny"}, told["data"]["params"])
        self.assertIn({"key": "sft.job", "value": self.job}, told["data"]["tags"])
        self.assertEqual(next(each["step"] for each in told["data"]["metrics"] if each["key"] == TAG), STEPS)


if __name__ == "__main__":
    harness.run_tests()
