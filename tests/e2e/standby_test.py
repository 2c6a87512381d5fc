"""A standby that copies a server and takes its place: nothing that was acknowledged before its last whole copy is
lost, workers and clients find it, and the old server is obeyed by nobody when it comes back."""

import json
import re
import shutil
import signal
import subprocess
import threading
import time
import urllib.request

from harness import BUILD, DEADLINE_S, ServiceCase, free_port, run_tests, wait_until

REPLACED = "this server was replaced"


class StandbyTest(ServiceCase):

    def setUp(self):
        super().setUp()
        self.second, self.web = free_port(), free_port()
        self.servers = f"127.0.0.1:{self.port},127.0.0.1:{self.second}"

    def log(self, name):
        return (self.dir / f"{name}.log").read_text(errors="replace")

    def start_standby(self, *options, every="1s"):
        self.start("standby", BUILD / "bin/sft-server", "standby", "--of", f"127.0.0.1:{self.port}", "--every", every,
                   "--data-dir", self.dir / "second", "--listen", f"127.0.0.1:{self.second}",
                   "--http", f"127.0.0.1:{self.web}", "--restart-delay", "0s", *options)

    def figures(self):
        """The standby's metrics; empty where it does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.web}/metrics", timeout=DEADLINE_S) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def rounds(self):
        return self.figures().get('sft_standby_rounds_total{result="copied"}', 0)

    def wait_for_rounds(self, more):
        """Rounds that begin from now on: the one under way does not count."""
        wanted = self.rounds() + more + 1
        wait_until(f"{wanted} copies", lambda: self.rounds() >= wanted)

    def take_over(self, check=True):
        told = subprocess.run([str(BUILD / "bin/sft-server"), "takeover", "--data-dir", str(self.dir / "second")],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        if check:
            self.assertEqual(told.returncode, 0, told.stderr)
        return told

    def start_worker_of_both(self, *options):
        self.start("node-a", BUILD / "bin/sft-worker", "--dev", "--server", self.servers, "--data-dir",
                   self.dir / "node-a", "--node", "node-a", "--models", self.dir / "models", "--simulate-gpus", "H100:8",
                   "--cpu-slots", 0, "--grace", 1, "--rank-binary", BUILD / "tests/sft-fake-rank", *options)

    def ask(self, *arguments):
        """sftctl with both addresses."""
        return subprocess.run([str(BUILD / "bin/sftctl"), "--server", self.servers, *map(str, arguments)],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)

    def json_of(self, *arguments):
        result = self.ask(*arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def node_is_up(self):
        result = self.ask("nodes", "--json")
        return result.returncode == 0 and '"UP"' in result.stdout

    def load(self, stop, acknowledged):
        """Submits until told to stop; what was acknowledged, and when at the latest."""
        path = self.write_job(name=f"load-{len(self.loads)}")
        while not stop.is_set():
            result = self.sftctl("submit", path, "--json")
            if result.returncode == 0:
                acknowledged.append((time.time(), json.loads(result.stdout)["job"]))

    def under_load(self):
        self.loads, acknowledged, stop = [], [], threading.Event()
        for _ in range(2):
            self.loads.append(threading.Thread(target=self.load, args=(stop, acknowledged)))
            self.loads[-1].start()

        def end():
            stop.set()
            for each in self.loads:
                each.join()
        self.addCleanup(end)
        return acknowledged, end

    def ends_as_replaced(self, name):
        self.assertEqual(self.processes[name].wait(timeout=DEADLINE_S), 1)
        self.assertIn(REPLACED, self.log(name))
        self.assertNotIn("jobs go on without the server", self.log(name))

    def start_old(self):
        """The first server again, as if its machine had come back."""
        self.start("server", BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--http", "off",
                   "--data-dir", self.dir / "server", *getattr(self, "server_options", ()))

    def test_a_standby_takes_over_from_a_server_killed_under_load(self):
        self.start_server()
        self.start_standby()
        self.start_worker_of_both()
        wait_until("the node", self.node_is_up)
        job = self.submit("train steps=1000000 pace=50", ranks=8)
        self.wait_for_step(job)
        acknowledged, end_load = self.under_load()
        self.wait_for_rounds(3)
        before = self.rounds()
        self.wait_for_rounds(1)
        bound = self.figures()["sft_standby_loss_bound_seconds"]
        self.kill("server")
        killed = time.time()
        end_load()
        self.assertGreater(self.rounds(), before)
        wait_until("the standby to say that it lags", lambda: "could not be copied" in self.log("standby"))
        copied = self.figures()["sft_standby_copy_timestamp_seconds"]
        told = self.take_over()
        self.assertIn("has taken over", told.stdout)
        wait_until("the node at the second server", self.node_is_up)
        kept = {each["job"] for each in self.json_of("list", "--limit", "5000")}
        lost = [(at, each) for at, each in acknowledged if each not in kept]
        print(f"acknowledged {len(acknowledged)}, lost {len(lost)}; the copy was begun {killed - copied:.2f} s before "
              f"the kill, the bound that was told was {bound:.2f} s")
        self.assertGreater(len(acknowledged) - len(lost), 0)
        self.assertEqual([each for each in lost if each[0] < copied], [], "acknowledged before the copy was begun")
        self.assertIn("what it acknowledged later is lost", self.log("standby"))
        # The job runs on, in the same attempt, and its log is whole.
        step = self.json_of("status", job)["progress"]["step"]
        wait_until("the job to go on", lambda: self.json_of("status", job)["progress"]["step"] > step + 20)
        self.assertEqual(self.json_of("status", job)["attempt"], 1, self.ask("events", job).stdout)
        self.assertEqual(self.ask("logs", job).returncode, 0)
        # The old one comes back, is told, notes it and ends; clients that know both use the new one.
        self.start_old()
        self.ends_as_replaced("server")
        self.start_old()
        self.ends_as_replaced("server")
        self.assertEqual(self.json_of("status", job)["state"], "RUNNING")
        self.assertEqual(self.ask("cancel", job).returncode, 0)

    def secure(self):
        """Certificates and tokens for both; how their clients and the standby call them."""
        made = subprocess.run([str(BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", "127.0.0.1"], capture_output=True, text=True, check=True).stdout
        for name in ("admin", "join"):
            path = self.dir / f"{name}.token"
            path.write_text(re.search(rf"^{name} token +(\S+)", made, re.M).group(1) + "\n")
            path.chmod(0o600)
        shutil.copytree(self.dir / "server/tls", self.dir / "second/tls")
        self.server_options = ("--require-token",)

    def ask_secure(self, port, *arguments):
        return subprocess.run(
            [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{port}", *map(str, arguments)], capture_output=True,
            text=True, timeout=DEADLINE_S, check=False,
            env={"SFT_CA": str(self.dir / "server/tls/ca.crt"), "SFT_TOKEN": (self.dir / "admin.token").read_text().strip(),
                 "HOME": str(self.dir)})

    def test_a_worker_proves_to_an_old_server_that_it_was_replaced(self):
        self.secure()
        self.start_old()
        wait_until("the first server", lambda: self.ask_secure(self.port, "nodes").returncode == 0)
        self.start_standby("--require-token", "--token-file", self.dir / "admin.token")
        self.start_worker_of_both("--join-token-file", self.dir / "join.token")
        wait_until("the node", lambda: "UP" in self.ask_secure(self.port, "nodes").stdout)
        self.wait_for_rounds(1)
        self.assertFalse((self.dir / "second/server.db").exists(), "no server starts on it by mistake")
        self.kill("server")
        # Without a process: as after a loss of both machines. Then a plain server, which tells nobody anything.
        self.processes["standby"].send_signal(signal.SIGTERM)
        self.assertEqual(self.processes["standby"].wait(timeout=DEADLINE_S), 0)
        refused = subprocess.run([str(BUILD / "bin/sft-server"), "--data-dir", str(self.dir / "second")],
                                 capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("is the folder of a standby", refused.stderr)
        self.assertIn("is the server's from now on", self.take_over().stdout)
        second = ("--listen", f"127.0.0.1:{self.second}", "--http", "off", "--data-dir", self.dir / "second",
                  "--require-token")
        self.start("second", BUILD / "bin/sft-server", *second)
        wait_until("the node at the second server", lambda: "UP" in self.ask_secure(self.second, "nodes").stdout)
        self.kill("second")
        self.start_old()
        self.ends_as_replaced("server")
        # It stays replaced, until somebody says otherwise: then the worker obeys it, and the other is the old one.
        self.start_old()
        self.ends_as_replaced("server")
        made = subprocess.run([str(BUILD / "bin/sft-server"), "takeover", "--data-dir", str(self.dir / "server")],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.start_old()
        wait_until("the node at the first server", lambda: "UP" in self.ask_secure(self.port, "nodes").stdout)
        self.assertEqual(self.log("node-a").count("that server was replaced"), 0, "it was refused before it said so")

    def test_a_node_cannot_stop_a_server_by_a_number_alone(self):
        self.secure()
        self.start_old()
        wait_until("the first server", lambda: self.ask_secure(self.port, "nodes").returncode == 0)
        (self.dir / "node-a").mkdir()
        (self.dir / "node-a/generation").write_text("99999999999\nno signature")
        self.start_worker_of_both("--join-token-file", self.dir / "join.token")
        wait_until("the server to say so", lambda: "cannot prove it" in self.log("server"))
        wait_until("the worker to refuse it", lambda: "that server was replaced" in self.log("node-a"))
        self.assertEqual(self.ask_secure(self.port, "nodes").returncode, 0)
        self.assertIsNone(self.processes["server"].poll())

    def test_a_standby_that_is_killed_goes_on_from_what_it_has(self):
        self.start_server()
        self.start_standby()
        wait_until("the first copy", lambda: self.rounds() >= 1)
        for _ in range(5):
            self.kill("standby")
            self.start_standby()
            time.sleep(0.3)
        wait_until("a copy", lambda: self.rounds() >= 1)
        mine = self.submit("ok", ranks=4)
        self.wait_for_rounds(1)
        self.kill("standby")
        self.assertEqual(self.take_over().returncode, 0)
        self.assertEqual(self.take_over().returncode, 0, "a repeat makes another generation of it, and is harmless")
        # The process goes on as the server when it is started again with the same command.
        self.start_standby()
        wait_until("the second server", lambda: subprocess.run(
            [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.second}", "status", mine],
            capture_output=True, check=False).returncode == 0)
        self.ends_as_replaced("server")

    def test_a_standby_refuses_what_it_cannot_do(self):
        self.start_server()
        for options, told in ((["--data-dir", self.dir / "server"], "uses the data folder"),
                              (["--data-dir", self.dir / "x", "--of", "nowhere"], "--of"),
                              (["--data-dir", self.dir / "x", "--every", "often"], "--every"),
                              (["--data-dir", self.dir / "x", "--dev"], "--dev"),
                              (["--of", "192.0.2.1:7070", "--data-dir", self.dir / "x"], "copy the server's tls/")):
            of = [] if "--of" in options else ["--of", f"127.0.0.1:{self.port}"]
            result = subprocess.run([str(BUILD / "bin/sft-server"), "standby", *of, *map(str, options)],
                                    capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            self.assertIn(result.returncode, (1, 2), result)
            self.assertIn(told, result.stderr)
        for folder, told in ((self.dir / "server", "uses the data folder"), (self.dir / "none", "is not there"),
                             (self.dir / "models", "has no server's database")):
            result = subprocess.run([str(BUILD / "bin/sft-server"), "takeover", "--data-dir", str(folder)],
                                    capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn(told, result.stderr)
        self.start_standby()
        wait_until("a copy", lambda: self.rounds() >= 1)
        self.assertEqual(self.sftctl("nodes").returncode, 0, "the server goes on beside all that")


if __name__ == "__main__":
    run_tests()
