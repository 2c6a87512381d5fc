"""What the server keeps and how it goes away: storage, rm, age limits, quotas, full disks."""

import json
import os
import time

from harness import ServiceCase, run_tests, wait_until

SUCCEEDED, NOT_FOUND, REFUSED = 0, 3, 5
DAY = 24 * 3600


class StorageTest(ServiceCase):

    def storage(self):
        result = self.sftctl("storage", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def bytes_of(self, kind):
        return sum(use["bytes"] for use in self.storage()["kinds"] if use["kind"] == kind)

    def remove(self, *arguments, code=0):
        result = self.sftctl("rm", *arguments, "--json")
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        return json.loads(result.stdout) if code == 0 else result.stderr

    def tree_bytes(self, *folders):
        files = [file for folder in folders for file in (self.dir / "server" / folder).rglob("*") if file.is_file()]
        return sum(file.stat().st_size for file in files)

    def dataset_of(self, name):
        items = [item for item in self.storage()["biggest"] if item["display_name"] == name]
        self.assertEqual(len(items), 1, items)
        return items[0]

    def test_rm_frees_what_it_says_and_keeps_what_lives(self):
        self.start_server()
        self.start_worker("node-a", "H100:2")
        done = self.dir / "done"
        job = self.submit("train steps=10 save=5 pace=1", ranks=1, name="first")
        self.assert_ends(job, SUCCEEDED)
        live = self.submit(f"until {done}", ranks=1, name="live")
        self.wait_for_step(live)
        # Nothing of a live job goes, nor the data set that it names.
        self.assertIn("has not ended", self.remove(live, code=REFUSED))
        dataset = self.dataset_of("live.jsonl")["name"]
        for options in ((), ("--force",)):
            self.assertIn("stays", self.remove(dataset, *options, code=REFUSED))
        # Of the ended one: what the dry run says is what goes, by the files' own sizes.
        said = self.remove(job, "--dry-run")
        before = self.tree_bytes("blobs", "checkpoints", "logs", "metrics", "tensorboard")
        self.assertEqual(said["freed_bytes"], self.remove(job, "--dry-run")["freed_bytes"])
        freed = self.remove(job)
        after = self.tree_bytes("blobs", "checkpoints", "logs", "metrics", "tensorboard")
        self.assertEqual(freed["freed_bytes"], said["freed_bytes"])
        self.assertEqual(before - after, freed["freed_bytes"])
        self.assertEqual({item["kind"] for item in freed["removed"]},
                         {"ARTIFACTS", "CHECKPOINTS", "LOGS", "METRICS"})
        self.assertEqual(self.remove(job)["freed_bytes"], 0)
        result = self.sftctl("download", job, "-o", self.dir / "out")
        self.assertEqual(result.returncode, NOT_FOUND)
        self.assertIn("was removed", result.stderr)
        self.assertIn("by local", result.stderr)
        removed = [json.loads(line) for line in self.sftctl("events", job, "--json").stdout.splitlines()]
        self.assertEqual(sum(event["type"] == "removed" for event in removed), 4)
        # A data set of ended jobs goes by force alone; the next submit uploads it again.
        dataset = self.dataset_of("first.jsonl")["name"]
        self.assertIn("--force", self.remove(dataset, code=REFUSED))
        self.assertGreater(self.remove(dataset, "--force")["freed_bytes"], 0)
        self.assertEqual(self.remove(dataset, code=NOT_FOUND).count("no data set"), 1)
        self.assert_ends(self.submit("train steps=10 save=5 pace=1", ranks=1, name="first"), SUCCEEDED)
        done.touch()
        self.assert_ends(live, SUCCEEDED)

    def test_one_kind_of_a_job_goes_alone_and_what_is_shared_stays(self):
        self.start_server()
        self.start_worker("node-a", "H100:2")
        # Both deliver the same bytes: the blobs are shared.
        first, second = (self.submit("ok", ranks=1, name="same") for _ in range(2))
        self.assert_ends(first, SUCCEEDED)
        self.assert_ends(second, SUCCEEDED)
        logs = self.remove(first, "--logs")
        self.assertEqual([item["kind"] for item in logs["removed"]], ["LOGS"])
        self.remove(first, "--artifacts")
        self.assertEqual(self.sftctl("download", second, "-o", self.dir / "out").returncode, 0)
        self.assertEqual(self.sftctl("metrics", first, "--json").stdout.count("\n"), 3)

    def test_age_limits_remove_what_is_old_and_nothing_else(self):
        self.start_server()
        self.start_worker("node-a", "H100:2")
        old = self.submit("ok", ranks=1, name="old", rows=2)
        self.assert_ends(old, SUCCEEDED)
        young = self.submit("ok", ranks=1, name="young")
        self.assert_ends(young, SUCCEEDED)
        done = self.dir / "done"
        live = self.submit(f"until {done}", ranks=1, name="live")
        self.wait_for_step(live)
        self.kill("server")
        # The old job ended 40 days ago, and its data set was used last then; the live one's is as old.
        import sqlite3
        with sqlite3.connect(self.dir / "server/server.db") as db:
            past = int((time.time() - 40 * DAY) * 1e6)
            db.execute("UPDATE jobs SET created_us = ?, ended_us = ? WHERE id = ?", (past, past, old))
            db.execute("UPDATE artifacts SET last_used_us = ? WHERE job_id = ?", (past, old))
            db.execute("UPDATE datasets SET last_used_us = ? WHERE display_name IN ('old.jsonl', 'live.jsonl')",
                       (past,))
        backup = self.dir / "server/backups/old"
        backup.mkdir(parents=True)
        (backup / "server.db").write_bytes(b"x" * 1000)
        os.utime(backup, (time.time() - 40 * DAY,) * 2)
        self.start_server("--keep-logs", "30", "--keep-metrics", "30", "--keep-artifacts", "30",
                          "--keep-datasets", "30", "--keep-backups", "30")
        wait_until("the old ones to go", lambda: not backup.exists())
        names = {item["display_name"] for item in self.storage()["biggest"]}
        wait_until("the old data set to go",
                   lambda: "old.jsonl" not in {item["display_name"] for item in self.storage()["biggest"]})
        names = {item["display_name"] for item in self.storage()["biggest"]}
        self.assertLessEqual({"young.jsonl", "live.jsonl"}, names)
        kinds = {item["kind"] for item in self.storage()["biggest"] if item["name"] == old}
        self.assertEqual(kinds, set())
        self.assertEqual(self.sftctl("download", young, "-o", self.dir / "out").returncode, 0)
        removed = self.sftctl("events", old).stdout
        self.assertIn("by the age limit (--keep-logs 30)", removed)
        done.touch()
        self.assert_ends(live, SUCCEEDED)

    def test_quotas_refuse_what_is_new_and_name_what_to_do(self):
        self.start_server()
        self.start_worker("node-a", "H100:2")
        ended = self.submit("ok", ranks=1, name="first")
        self.assert_ends(ended, SUCCEEDED)
        result = self.sftctl("admin", "quota", "set", "default", "--datasets", "0.1KB", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater(json.loads(result.stdout)["dataset_used"], 0)
        # What is there already may be used again.
        self.submit("ok", ranks=1, name="first")
        result = self.sftctl("submit", self.write_job("ok", ranks=1, name="more", rows=9))
        self.assertEqual(result.returncode, REFUSED, result.stderr)
        self.assertIn("sftctl rm dataset:", result.stderr)
        self.assertEqual(self.sftctl("admin", "quota", "set", "default", "--datasets", "off", "--artifacts",
                                     "1B").returncode, 0)
        time.sleep(5)  # the sum over artifacts is as old as that at most
        result = self.sftctl("submit", self.write_job("ok", ranks=1, name="more", rows=9))
        self.assertEqual(result.returncode, REFUSED, result.stderr)
        self.assertIn("for artifacts", result.stderr)
        self.assertIn("for artifacts", self.sftctl("resume", ended).stderr)
        self.assertIn("default", self.sftctl("admin", "quota", "list").stdout)

    def test_a_disk_that_fills_stops_intake_first_and_jobs_never(self):
        disk = self.small_disk("disk", 100)
        self.start_server("--restart-delay", "0s", "--disk-low", "50%", "--disk-full", "20%", data_dir=disk / "server")
        self.start_worker("node-a", "H100:2")
        done = self.dir / "done"
        running = self.submit(f"train steps=60 pace=5 save=20 until={done}", ranks=1, name="running")
        self.wait_for_step(running, 5)
        self.assertEqual(self.sftctl("nodes").stderr, "")
        # Below the first mark: told, and nothing more.
        ballast = self.fill(disk, leave=30 << 20)
        wait_until("the warning", lambda: "the server's disk has" in self.sftctl("nodes").stderr)
        self.assertIn("disk has", self.sftctl("stats").stderr)
        self.assert_ends(self.submit("ok", ranks=1, name="below"), SUCCEEDED)
        # Below the second: nothing new, in words; what runs ends with all it has.
        ballast.unlink()
        ballast = self.fill(disk, leave=10 << 20)
        wait_until("the refusal", lambda: self.storage()["disk"]["level"] == "FULL")
        result = self.sftctl("submit", self.write_job("ok", ranks=1, name="below"))
        self.assertEqual(result.returncode, REFUSED, result.stderr)
        self.assertIn("a new job is refused", result.stderr)
        self.assertIn("sftctl rm", result.stderr)
        result = self.sftctl("submit", self.write_job("ok", ranks=1, name="other", rows=5))
        # Told before its file is sent.
        self.assertEqual(result.returncode, REFUSED, result.stderr)
        self.assertIn("a new job is refused", result.stderr)
        done.touch()
        self.assert_ends(running, SUCCEEDED)
        self.assertEqual(self.sftctl("download", running, "-o", self.dir / "out").returncode, 0)
        steps = [json.loads(line)["step"] for line in self.sftctl("metrics", running, "--json").stdout.splitlines()]
        self.assertEqual(steps, list(range(1, 61)))
        self.assertIn("rank 0 of 1", self.sftctl("logs", running).stdout)
        ballast.unlink()
        wait_until("room", lambda: self.storage()["disk"]["level"] == "OK")
        self.assert_ends(self.submit("ok", ranks=1, name="other"), SUCCEEDED)
        log = (self.dir / "server.log").read_text()
        self.assertIn("below the mark of", log)
        self.assertIn("uploads and new jobs are refused", log)
        self.assertIn("there is room again", log)

    def test_a_node_that_is_nearly_full_takes_no_job_and_says_so(self):
        disk = self.small_disk("worker-disk", 64)
        self.start_server()
        (self.dir / "node-a").symlink_to(disk)
        self.start_worker("node-a", "H100:2", options=("--disk-low", "60%", "--disk-full", "30%"))
        ballast = self.fill(disk, leave=10 << 20)
        wait_until("the node to say so", lambda: "FULL" in self.sftctl("nodes").stdout)
        job = self.submit("ok", ranks=1)
        wait_until("the reason", lambda: "node-a has 2 but is nearly out of disk" in self.status(job)["reason"])
        ballast.unlink()
        self.assert_ends(job, SUCCEEDED)


if __name__ == "__main__":
    run_tests()
