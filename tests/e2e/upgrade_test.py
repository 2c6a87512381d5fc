"""A server meets what the release before it left behind: its data folder, its workers, its clients.

tests/golden/upgrade holds a data folder of the first release, with a job in each state, and the
descriptor set of its protocol (checked by the unit test of the messages).
"""

import json
import pathlib
import re
import sqlite3
import subprocess
import tarfile

from harness import BUILD, DEADLINE_S, ServiceCase, run_tests, wait_until

SUCCEEDED = 0
GOLDEN = pathlib.Path(__file__).parents[1] / "golden/upgrade"
OTHER_VERSION = BUILD / "tests/sft-other-version"
OLDER_PROTOCOL = 1


def keys_of(job, prefix=""):
    """The dotted keys of a job as it is stored and sent."""
    for name, value in job.items():
        if isinstance(value, dict):
            yield from keys_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name


class UpgradeTest(ServiceCase):

    def unpack(self):
        folder = self.dir / "server"
        folder.mkdir()
        with tarfile.open(GOLDEN / "data_dir.tar.gz") as archive:
            archive.extractall(folder)
        return json.loads((folder / "jobs.json").read_text())

    def schema(self, path):
        with sqlite3.connect(path) as database:
            return database.execute("PRAGMA user_version").fetchone()[0]

    def test_the_data_folder_of_the_first_release_is_taken_over_and_goes_on(self):
        jobs = self.unpack()
        old = self.schema(self.dir / "server/server.db")
        self.start_server()
        listed = {job["job"]: job["state"] for job in json.loads(self.sftctl("list", "--json").stdout)}
        self.assertEqual(listed, {jobs["done"]: "SUCCEEDED", jobs["bad"]: "FAILED", jobs["running"]: "RUNNING",
                                  jobs["pending"]: "PENDING", jobs["cancelled"]: "CANCELLED"})
        new = self.schema(self.dir / "server/server.db")
        self.assertGreaterEqual(new, old)
        before = self.dir / f"server/server.db.schema-{old}"
        self.assertEqual(before.exists(), new > old, "a migration keeps the database from before it")
        if new > old:
            self.assertEqual(self.schema(before), old)
        done = self.status(jobs["done"])
        self.assertEqual(done["verdict"]["code"], "succeeded")
        self.assertIn("rank 1 done", self.sftctl("logs", jobs["done"], "--rank", 1).stdout)
        metrics = [json.loads(line) for line in self.sftctl("metrics", jobs["done"], "--json").stdout.splitlines()]
        self.assertEqual([point["step"] for point in metrics], [1, 2, 3])
        self.assertEqual(self.sftctl("download", jobs["done"], "-o", self.dir / "adapter").returncode, SUCCEEDED)
        self.assertIn("bad_data", json.dumps(self.status(jobs["bad"])))
        # TensorBoard files are made of what the older server stored.
        self.assertEqual(self.sftctl("metrics", jobs["done"], "--tensorboard", self.dir / "tb").returncode, SUCCEEDED)
        # What waited for a node runs on a new one.
        self.start_worker("node-b")
        self.assert_ends(jobs["pending"], SUCCEEDED)
        self.assert_ends(self.submit("ok", ranks=2, name="next"), SUCCEEDED)

    def keys_of_the_first_release(self):
        """All that its workers know of a job: a key too many, and they refuse it."""
        self.unpack()
        with sqlite3.connect(self.dir / "server/server.db") as database:
            return set(keys_of(json.loads(database.execute("SELECT resolved_json FROM jobs").fetchone()[0])))

    def test_a_job_that_an_older_worker_would_not_do_as_asked_waits_and_says_for_what(self):
        self.start_server()
        self.start("older", OTHER_VERSION, "work", self.port, OLDER_PROTOCOL)
        wait_until("the older worker", lambda: '"older"' in self.sftctl("nodes", "--json").stdout)
        job = self.submit("ok", ranks=1, tables='[checkpoint]\nsave_strategy = "steps"')
        wait_until("the reason", lambda: "its worker is too old for checkpoint.save_strategy: upgrade it" in
                   self.status(job)["reason"])
        self.kill("older")
        self.start_worker("newer", gpus="H100:1")
        self.assert_ends(job, SUCCEEDED)

    def test_a_worker_and_a_client_of_the_older_protocol_are_served(self):
        known = self.keys_of_the_first_release()
        self.start_server(data_dir=self.dir / "new")
        self.start("older", OTHER_VERSION, "work", self.port, OLDER_PROTOCOL)
        wait_until("the older worker", lambda: '"older"' in self.sftctl("nodes", "--json").stdout)
        job = self.submit("ok", ranks=1, per_node=1)
        read = subprocess.run([OTHER_VERSION, "read", str(self.port), str(OLDER_PROTOCOL)],
                              capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual((read.returncode, read.stdout), (0, "written by an older worker\n"))
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.processes["older"].wait(timeout=DEADLINE_S), 0, (self.dir / "older.log").read_text())
        said = (self.dir / "older.log").read_text()
        self.assertIn("forgotten", said)
        sent = set(keys_of(json.loads(re.search("^job (.*)$", said, re.MULTILINE)[1])))
        self.assertLessEqual(sent, known, "a key that it does not know")
        self.assertGreater(len(sent), 40)
        metrics = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        self.assertEqual([(point["step"], point["loss"]) for point in metrics], [(1, 1.5)])

    def test_a_database_of_a_newer_server_is_refused_and_left_as_it_is(self):
        self.unpack()
        path = self.dir / "server/server.db"
        with sqlite3.connect(path) as database:
            database.execute("PRAGMA user_version = 999")
        before = path.read_bytes()
        result = subprocess.run([BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--data-dir",
                                 self.dir / "server"], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(result.returncode, 1)
        self.assertIn("the database has schema 999", result.stderr)
        self.assertIn("written by a newer server; start that one, or give another --data-dir", result.stderr)
        with sqlite3.connect(path) as database:
            self.assertEqual(database.execute("SELECT count(*) FROM jobs").fetchone()[0], 5)
        self.assertEqual(len(before), path.stat().st_size)


if __name__ == "__main__":
    run_tests()
