#!/usr/bin/env python3
"""The Python package `sft` against a real server, with stand-in ranks: jobs from submit to download, the feed over a killed
server, TLS and logins, trackers, a notebook, the wheel. python_client_test.py has what a real server does too seldom."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import unittest.mock

import harness

PACKAGE = pathlib.Path(__file__).parents[2] / "client/python"
sys.path.insert(0, str(PACKAGE))
import sft  # noqa: E402

DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))


class PythonSdkTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.http = harness.free_port()
        path = f"{harness.BUILD / 'bin'}:{os.environ['PATH']}"
        variables = {name: value for name, value in os.environ.items() if not name.startswith("SFT_")}
        patch = unittest.mock.patch.dict(os.environ, {
            **variables, "PATH": path, "XDG_CONFIG_HOME": str(self.dir / "home"), "SFT_SERVER": f"127.0.0.1:{self.port}",
            "SFT_WEB": f"http://127.0.0.1:{self.http}"}, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        # Paths in a dict count from here.
        before = os.getcwd()
        os.chdir(self.dir)
        self.addCleanup(os.chdir, before)

    def start_all(self):
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker()
        client = sft.Client()
        self.addCleanup(client.close)
        return client

    def job_dict(self, mode, name="rows"):
        """A job of one rank, as a dict, with its data."""
        (self.dir / f"{name}.jsonl").write_text(json.dumps({"text": f"fake:{mode}"}) + "\n")
        return {"job": {"model": "tiny", "data": f"{name}.jsonl"},
                "compute": {"variant": "H100-1x"}, "training": {"mode": "lora"},
                "hyperparameters": {"per_device_batch": 1, "gradient_accumulation_steps": 1, "sequence_length": 64}}

    def environment(self, package):
        """The Python of the environment that has what the package is tested with."""
        python = DEPS / "sdk/bin/python"
        if not python.exists():
            self.skipTest(f"{python} is missing: deploy/bootstrap --sdk installs {package}")
        return python

    def run_in(self, python, *arguments):
        result = subprocess.run([str(python), *map(str, arguments)], capture_output=True, text=True, check=False,
                                timeout=harness.DEADLINE_S, env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result.stdout

    def test_python_submits_a_dict_waits_and_fetches_the_adapter(self):
        client = self.start_all()
        request = self.job_dict("train steps=6 save=2 pace=5")
        plan = client.submit(request, name="first", dry_run=True)
        self.assertTrue(plan.valid, plan)
        self.assertEqual((plan.values["job.name"], plan.plan["variant"]), ("first", "H100-1x"))
        # An environment that sftctl would read says the same as the call over REST: nothing.
        with unittest.mock.patch.dict(os.environ, {"TRAIN_LEARNING_RATE": "0.5"}):
            job = client.submit(request, name="first", set={"lora.r": 8})
        self.assertEqual(job.name, "first")
        self.assertEqual([name for name in os.listdir(self.dir) if name.startswith(".")], [])
        with contextlib.redirect_stderr(io.StringIO()) as err:
            job.wait()
        self.assertEqual((job.state, job.verdict["code"]), ("SUCCEEDED", "succeeded"))
        self.assertIn(f"{job.id} SUCCEEDED", err.getvalue())
        values = {each["key"]: each["value"] for each in job.refresh().raw["resolved"]}
        self.assertEqual((values["lora.r"], values["hyperparameters.learning_rate"]), ("8", "2e-05"))
        shown = [json.loads(line) for line in self.sftctl("metrics", job.id, "--json").stdout.splitlines()]
        self.assertEqual([dict(each, time="") for each in job.points()], [dict(each, time="") for each in shown])
        self.assertEqual(len(job.metrics()), 6)
        self.assertEqual(job.log(), self.sftctl("logs", job.id).stdout)
        events = [json.loads(line) for line in self.sftctl("events", job.id, "--json").stdout.splitlines()]
        self.assertEqual([(each["sequence"], each["type"], each["message"]) for each in job.events()],
                         [(each["sequence"], each["type"], each["message"]) for each in events])
        self.assertEqual([each["step"] for each in job.checkpoints()][:1], [6])
        adapter = pathlib.Path(job.adapter())
        self.assertEqual(adapter.name, f"{job.id}-adapter")
        self.assertEqual(self.sftctl("download", job.id, "-o", self.dir / "other").returncode, 0)
        for name in os.listdir(self.dir / "other"):
            self.assertEqual((adapter / name).read_bytes(), (self.dir / "other" / name).read_bytes(), name)
        self.assertEqual(sorted(os.listdir(adapter)), sorted(os.listdir(self.dir / "other")))

    def test_python_submits_data_over_rest_alone_and_once(self):
        client = self.start_all()
        path = self.write_job("until " + str(self.dir / "go"), ranks=1)
        with unittest.mock.patch.dict(os.environ, {"PATH": ""}):
            (self.dir / "folder").mkdir()
            with self.assertRaisesRegex(sft.FailedPrecondition, "sent by sftctl, which is not in PATH"):
                client.submit(path, set={"job.data": "folder"})
            first = client.submit(path)
            second = client.submit(path, request_id="one")
            self.assertEqual(client.submit(path, request_id="one").id, second.id)
            by_text = client.submit(path.read_text(), name="by text")
        self.assertEqual(sorted(job.id for job in client.jobs()), sorted([first.id, second.id, by_text.id]))
        self.assertEqual([job.id for job in client.jobs(query="by text")], [by_text.id])
        self.assertEqual(len(client.jobs(limit=2)), 2)
        (self.dir / "go").write_text("")
        for job in client.jobs():
            self.assertEqual(job.wait(progress=False).state, "SUCCEEDED")
        # What is wrong is told alike, whoever has looked at it.
        (self.dir / "bad.jsonl").write_text("{\n")
        for change in ({"lora.rr": 8}, {"job.data": "bad.jsonl"}, {"job.data": "none.jsonl"}):
            with self.assertRaises(sft.InvalidArgument) as told:
                client.submit(path, set=change)
            key = next(iter(change))
            self.assertIn(key, [each["field"] for each in told.exception.details], told.exception)
        # As TrainingArguments has it.
        kind = type("Config", (), {"__init__": lambda self, **values: self.__dict__.update(values),
                                   "to_dict": lambda self: {"seed": 1, "output_dir": "x", **self.__dict__}})
        plan = client.submit(path, config=kind(learning_rate=3e-4, num_train_epochs=2), dry_run=True)
        self.assertEqual((plan.problems, plan.values["hyperparameters.learning_rate"], plan.values["hyperparameters.n_epochs"]),
                         ([], "0.0003", "2"))
        with self.assertRaisesRegex(sft.InvalidArgument, "learning_rat: .*learning_rate"):
            client.submit(path, config=kind(learning_rat=3e-4))
        with self.assertRaises(sft.NotFound):
            client.job("job-none")
        self.assertEqual(client.call("ClusterService/ListNodes")["nodes"][0]["name"], "nodes/node-a")

    def test_python_holds_saves_cancels_and_resumes_jobs(self):
        client = self.start_all()
        job = client.submit(self.job_dict(f"train steps=20 until={self.dir}/go"), set={"scheduling.hold": True})
        self.assertTrue(job.raw["held"])
        with self.assertRaises(TimeoutError):
            job.wait(timeout=0.5, progress=False)
        job.release()
        self.assertFalse(job.raw["held"])
        self.wait_for_step(job.id, 2)
        # Ctrl-C ends the waiting alone.
        (self.dir / "wait.py").write_text("import sft, sys\nsft.Client().job(sys.argv[1]).wait()\n")
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": str(PACKAGE)}):
            waiting = self.start("wait", sys.executable, self.dir / "wait.py", job.id)
        harness.wait_until("it to wait", lambda: f"{job.id} RUNNING" in (self.dir / "wait.log").read_text())
        waiting.send_signal(signal.SIGINT)
        self.assertEqual(waiting.wait(timeout=harness.DEADLINE_S), -signal.SIGINT)
        self.assertIn(f'{job.id} goes on: come back with sft.Client().job("{job.id}").wait()',
                      (self.dir / "wait.log").read_text())
        self.assertEqual(job.refresh().state, "RUNNING")
        step = job.checkpoint()
        saved = []

        class Saves:
            def on_save(self, job, at):
                saved.append(at)
                job.cancel("enough")
        self.assertEqual(job.wait(callbacks=[Saves()], progress=False).state, "CANCELLED")
        self.assertGreaterEqual(saved[0], step)
        (self.dir / "go").write_text("")
        again = job.resume(set={"job.name": "again"})
        self.assertEqual((again.name, again.raw["resumed_from"].rpartition("/")[2]), ("again", job.id))
        self.assertEqual(again.wait(progress=False).state, "SUCCEEDED")
        self.assertEqual(again.points()[-1]["step"], 20)
        held = client.submit(self.job_dict("ok", "other"), set={"compute.gpu_count": 8, "scheduling.hold": True})
        self.assertTrue(held.hold("later").raw["held"])
        self.assertEqual(held.cancel().wait(progress=False).state, "CANCELLED")

    def test_python_follows_a_job_over_killed_servers(self):
        client = self.start_all()
        job = client.submit(self.job_dict("lines 300 10"))
        points, kills = [], 0
        for point in job.follow():
            points.append(point)
            if kills < 2 and len(points) > 20 * (kills + 1):
                kills += 1
                self.kill("server")
                self.start_server(http=f"127.0.0.1:{self.http}")
        self.assertEqual(kills, 2)
        self.assertEqual((job.state, points), ("SUCCEEDED", job.points()))
        self.assertEqual(len({point["step"] for point in points}), len(points))
        self.assertGreaterEqual(len(points), 300)

    def test_python_logs_in_over_tls_as_sftctl_did(self):
        made = subprocess.run([str(harness.BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", "127.0.0.1"], capture_output=True, text=True, check=True).stdout
        token = re.search(r"^admin token +(\S+)", made, re.M).group(1)
        (self.dir / "admin.token").write_text(token + "\n")
        (self.dir / "admin.token").chmod(0o600)
        authority = self.dir / "server/tls/ca.crt"
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--require-token",
                   "--http", f"127.0.0.1:{self.http}", "--data-dir", self.dir / "server")
        os.environ["SFT_WEB"] = f"http://127.0.0.1:{self.http}"
        harness.wait_until("the admin to be let in", lambda: self.sftctl(
            "login", "--ca", authority, "--token-file", self.dir / "admin.token").returncode == 0)
        self.assertEqual(sft.Client().call("AuthService/WhoAmI")["user"]["name"], "admin")
        (self.dir / "home/sft/credentials.json").unlink()
        with self.assertRaises(sft.Unauthenticated):
            sft.Client().jobs()
        self.kill("server")
        # The same with TLS; the authority is not one of this machine's.
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--require-token",
                   "--http", f"0.0.0.0:{self.http}", "--data-dir", self.dir / "server")
        os.environ["SFT_WEB"] = f"https://127.0.0.1:{self.http}"
        harness.wait_until("the admin to be let in again", lambda: self.sftctl(
            "login", "--ca", authority, "--token-file", self.dir / "admin.token").returncode == 0)
        self.assertEqual(len(sft.Client().jobs()), 0)
        self.assertEqual(list(sft.Client(token=token, ca=str(authority)).jobs()), [])
        (self.dir / "home/sft/credentials.json").unlink()
        with self.assertRaisesRegex(sft.Unavailable, "not trusted here.*sftctl login"):
            sft.Client(token=token).jobs()

    def told(self, tracker):
        """A job that was restarted once, told to a tracker twice."""
        python = self.environment(tracker)
        client = self.start_all()
        job = client.submit(self.job_dict(f"train steps=30 pace=1 save=10 kill=25 once={self.dir}/killed")).wait(progress=False)
        self.assertEqual((job.state, job.attempt), ("SUCCEEDED", 2))
        self.assertEqual(self.sftctl("metrics", job.id, "--tensorboard", self.dir / "server-events").returncode, 0)
        (self.dir / "tell").mkdir()
        (self.dir / "server-events").rename(self.dir / "tell/server")
        self.run_in(python, pathlib.Path(__file__).with_name("python_trackers.py"), tracker, job.id, self.dir / "tell")

    def test_python_tells_tensorboard_what_the_server_does(self):
        self.told("tensorboard")

    def test_python_exporter_that_was_killed_goes_on_where_it_was(self):
        client = self.start_all()
        job = client.submit(self.job_dict(f"train steps=60 pace=20 until={self.dir}/go"))
        (self.dir / "tell.py").write_text("import sft.export, sys\nsft.export.tensorboard(sft.Client().job(sys.argv[1]), 'runs')\n")
        with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": str(PACKAGE)}):
            self.start("tell", sys.executable, self.dir / "tell.py", job.id)
        harness.wait_until("the exporter to write", lambda: sum(
            path.stat().st_size for path in (self.dir / "runs").rglob("events*")) > 2000)
        self.kill("tell")
        (self.dir / "go").write_text("")
        self.run_in(sys.executable, self.dir / "tell.py", job.id)
        twice, = (self.dir / "runs" / job.id).iterdir()
        once, = pathlib.Path(sft.export.tensorboard(job, self.dir / "once", live=False)).iterdir()
        self.assertEqual((twice.name, twice.read_bytes()), (once.name, once.read_bytes()))
        self.assertEqual(job.refresh().state, "SUCCEEDED")

    def test_python_tells_mlflow_once(self):
        self.told("mlflow")

    def test_python_tells_wandb_once(self):
        self.told("wandb")

    def test_python_notebook_runs_and_shows_a_job(self):
        python = self.environment("nbclient")
        self.start_all()
        (self.dir / "rows.jsonl").write_text(json.dumps({"text": "fake:train steps=40 pace=50"}) + "\n")
        os.environ.update(MODEL="tiny", DATA="rows.jsonl", VARIANT="H100-1x", JUPYTER_PLATFORM_DIRS="1",
                          IPYTHONDIR=str(self.dir / "ipython"))
        shutil.copy(PACKAGE / "examples/first_job.ipynb", self.dir)
        (self.dir / "run.py").write_text(
            "import nbclient, nbformat, sys\n"
            "notebook = nbformat.read('first_job.ipynb', 4)\n"
            "nbformat.validate(notebook)\n"
            "nbclient.NotebookClient(notebook, kernel_name='python3').execute()\n"
            "nbformat.write(notebook, 'out.ipynb')\n")
        self.run_in(python, "run.py")
        cells = [cell for cell in json.loads((self.dir / "out.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
        self.assertEqual([cell["outputs"] for cell in cells if any(
            output["output_type"] == "error" for output in cell["outputs"])], [])
        shown = ["".join(output["data"].get("text/html", "")) for cell in cells for output in cell["outputs"]
                 if output["output_type"] in ("display_data", "execute_result")]
        waited = [text for text in shown if "<polyline" in text]
        self.assertEqual(len(waited), 1, shown)  # one display, the last state of it
        self.assertIn("SUCCEEDED", waited[0])
        self.assertIn("dataframe", "".join(shown))
        self.assertNotIn("<script", "".join(shown))
        self.assertIn("adapter_config.json", json.dumps(cells[-1]["outputs"]))

    def test_python_wheel_installs_into_an_empty_environment(self):
        python = self.environment("setuptools")
        # Built from a copy: what setuptools leaves behind is not for the tree.
        shutil.copytree(PACKAGE, self.dir / "package", ignore=shutil.ignore_patterns("__pycache__"))
        self.run_in(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index",
                    "--wheel-dir", self.dir / "wheels", self.dir / "package")
        wheel, = (self.dir / "wheels").iterdir()
        self.assertRegex(wheel.name, r"^sft-[0-9.]+-py3-none-any\.whl$")
        subprocess.run([sys.executable, "-m", "venv", str(self.dir / "venv")], check=True, timeout=harness.DEADLINE_S)
        empty = self.dir / "venv/bin/python"
        self.run_in(empty, "-m", "pip", "install", "--quiet", "--no-index", wheel)
        client = self.start_all()
        job = client.submit(self.job_dict("ok"))
        (self.dir / "use.py").write_text(
            "import os, sft, sys\n"
            f"assert sft.__file__.startswith({str(self.dir)!r}), sft.__file__\n"
            "assert os.path.exists(os.path.join(os.path.dirname(sft.__file__), 'py.typed'))\n"
            "job = sft.Client().job(sys.argv[1]).wait()\n"
            "print(job.state, type(job.metrics()).__name__, len(job.metrics()))\n")
        result = subprocess.run([str(empty), "use.py", job.id], capture_output=True, text=True, check=False,
                                timeout=harness.DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^SUCCEEDED list [1-9]")


if __name__ == "__main__":
    harness.run_tests()
