"""Ranks of a worker that runs as root: they are another user's, and reach nothing of the worker's."""

import grp
import json
import os
import pathlib
import pwd
import signal
import subprocess
import unittest

from harness import BUILD, DEADLINE_S, ServiceCase, processes_with, run_tests, wait_until

SUCCEEDED = 0
USER = "nobody"
SECRET = "the secret of the worker\n" * 10_000  # longer than what was shipped of any file before


def why_not():
    """Why this machine cannot run these tests; empty: it can."""
    if os.geteuid() != 0:
        return "only root can start ranks as another user"
    try:
        entry = pwd.getpwnam(USER)
    except KeyError:
        return f"this machine has no user {USER}"
    if subprocess.run([str(BUILD / "tests/sft-fake-rank"), "--version"], user=entry.pw_uid, group=entry.pw_gid,
                      extra_groups=[], capture_output=True, check=False).returncode != 0:
        return f"user {USER} cannot run programs of this build: its folder is not open to it"
    return ""


def can_run():
    try:
        return why_not()
    except OSError as error:
        return f"user {USER} cannot run programs of this build: {error}"


@unittest.skipIf(can_run(), can_run())
class RankUserTest(ServiceCase):

    def setUp(self):
        super().setUp()
        self.user = pwd.getpwnam(USER)
        self.dir.chmod(0o755)
        self.open = self.dir / "open"  # ranks may write there
        self.open.mkdir()
        self.open.chmod(0o777)
        self.data = self.dir / "node-a"

    def start_node(self, *options):
        self.start_worker(options=("--rank-user", USER, *options))

    def as_rank(self, *command):
        return subprocess.run([str(part) for part in command], user=self.user.pw_uid, group=self.user.pw_gid,
                              extra_groups=[], capture_output=True, text=True, check=False, cwd="/")

    def attempt_dir(self):
        found = list((self.data / "attempts").iterdir())
        self.assertEqual(len(found), 1, found)
        return found[0]

    def curve(self, job):
        points = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        return {point["step"]: point["loss"] for point in points}

    def checkpoints(self, job):
        return [c["step"] for c in json.loads(self.sftctl("checkpoints", job, "--json").stdout)]

    def assert_is_rank_user(self, pid):
        text = pathlib.Path(f"/proc/{pid}/status").read_text()
        fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        self.assertEqual(set(fields["Uid"].split()), {str(self.user.pw_uid)})
        self.assertEqual(set(fields["Gid"].split()), {str(self.user.pw_gid)})
        self.assertEqual({int(group) for group in fields["Groups"].split()},
                         set(os.getgrouplist(USER, self.user.pw_gid)))
        self.assertNotIn(grp.getgrgid(0).gr_gid, {int(group) for group in fields["Groups"].split()})
        self.assertEqual(fields["NoNewPrivs"], "1")
        self.assertEqual(int(fields["CapEff"], 16), 0)

    def assert_closed_to_ranks(self):
        """Nothing but what ranks need of the worker's data folder."""
        (self.data / "tls").mkdir(mode=0o700, exist_ok=True)
        (self.data / "tls/node.key").write_text("key")
        self.assertNotEqual(self.as_rank("ls", self.data).returncode, 0)
        self.assertNotEqual(self.as_rank("ls", self.data / "attempts").returncode, 0)
        for name in ("id", "worker.lock", "tls/node.key"):
            self.assertTrue((self.data / name).exists(), name)
            self.assertNotEqual(self.as_rank("cat", self.data / name).returncode, 0, name)
        attempt = self.attempt_dir()
        self.assertEqual(self.as_rank("cat", attempt / "launch.json").returncode, 0)
        self.assertNotEqual(self.as_rank("cat", attempt / "attempt.json").returncode, 0)
        for name in ("attempt.json", "launch.json", "shim.json"):
            self.assertNotEqual(self.as_rank("sh", "-c", f"echo x >> {attempt / name}").returncode, 0, name)
            self.assertNotEqual(self.as_rank("rm", "-f", attempt / name).returncode, 0, name)
            self.assertNotEqual(self.as_rank("mv", attempt / name, attempt / "gone").returncode, 0, name)
        self.assertNotEqual(self.as_rank("touch", self.data / "new").returncode, 0)
        self.assertNotEqual(self.as_rank("mv", attempt, self.data / "attempts/other").returncode, 0)

    def test_ranks_are_another_user_and_their_job_outlives_them_and_the_worker(self):
        self.start_server()
        self.start_node()
        done = self.open / "done"
        job = self.submit(f"train steps=40 save=5 pace=20 until={done}", ranks=2)
        wait_until("a checkpoint", lambda: any(step >= 10 for step in self.checkpoints(job)))
        ranks, shims = self.wait_for_ranks(2), self.shims()
        for pid in ranks + shims:
            self.assert_is_rank_user(pid)
        environment = pathlib.Path(f"/proc/{ranks[0]}/environ").read_text().split("\0")
        self.assertIn(f"HOME={self.user.pw_dir}", environment)
        self.assertIn(f"USER={USER}", environment)
        self.assert_closed_to_ranks()

        os.kill(ranks[0], signal.SIGKILL)
        wait_until("the second attempt", lambda: self.status(job)["attempt"] == 2)
        ranks = self.wait_for_ranks(2)
        for pid in ranks:
            self.assert_is_rank_user(pid)
        wait_until("one shim", lambda: len(self.shims()) == 1)  # that started it has ended
        shims = self.shims()
        self.kill("node-a")
        self.start_node()
        self.assertEqual((self.shims(), self.ranks()), (shims, ranks))
        done.touch()
        self.assert_ends(job, SUCCEEDED)
        first, second = self.status(job)["attempts"]
        self.assertEqual(first["verdict"]["code"], "rank_killed")
        self.assertGreaterEqual(second["first_step"], 10)
        straight = self.submit("train steps=40 pace=1", ranks=2, name="straight")
        self.assert_ends(straight, SUCCEEDED)
        self.assertEqual(self.curve(job), self.curve(straight))
        for each, folder in ((job, "one"), (straight, "two")):
            result = self.sftctl("download", each, "-o", self.dir / folder)
            self.assertEqual(result.returncode, 0, result.stderr)
        names = sorted(path.name for path in (self.dir / "one").rglob("*") if path.is_file())
        self.assertTrue(names)
        for name in names:
            self.assertEqual((self.dir / "one" / name).read_bytes(), (self.dir / "two" / name).read_bytes(), name)
        wait_until("the attempts to be forgotten", lambda: not list((self.data / "attempts").iterdir()))

    def test_a_node_takes_its_own_checkpoints_after_it_ran_ranks_as_root(self):
        self.start_server()
        limit = ("--checkpoint-upload-limit", 0)  # they stay on the node
        self.start_worker(options=("--rank-user", "root", *limit))
        done = self.open / "done"
        job = self.submit(f"train steps=40 save=5 pace=20 until={done}", ranks=1)
        wait_until("a checkpoint", lambda: any(step >= 10 for step in self.checkpoints(job)))
        rank = self.wait_for_ranks(1)[0]
        self.kill("node-a")
        self.start_node(*limit)
        self.assertEqual(self.ranks(), [rank])
        self.assertEqual(pathlib.Path(f"/proc/{rank}").stat().st_uid, 0)
        os.kill(rank, signal.SIGKILL)
        wait_until("the second attempt", lambda: self.status(job)["attempt"] == 2)
        self.assert_is_rank_user(self.wait_for_ranks(1)[0])
        done.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertGreaterEqual(self.status(job)["attempts"][1]["first_step"], 10)

    def test_what_lies_in_the_shared_folder_is_written_and_read_as_ranks(self):
        shared = self.dir / "shared"
        shared.mkdir()
        os.chown(shared, self.user.pw_uid, self.user.pw_gid)
        self.start_server()
        self.start_node("--shared", shared)
        job = self.submit(f"train steps=20 save=5 kill=12 once={self.open}/killed pace=5", ranks=2)
        self.assert_ends(job, SUCCEEDED)
        self.assertGreaterEqual(self.status(job)["attempts"][1]["first_step"], 5)
        found = list(shared.rglob("*"))
        self.assertTrue(any(path.name == "manifest.json" for path in found), found)
        for path in found:
            self.assertEqual(path.stat().st_uid, self.user.pw_uid, path)

    def start_waiting_job(self):
        secret = self.dir / "secret"
        secret.write_text(SECRET)
        secret.chmod(0o600)
        self.start_server()
        self.start_node()
        done = self.open / "done"
        job = self.submit(f"train steps=5 pace=1 until={done}", ranks=1)
        self.wait_for_step(job, 4)
        return job, done, secret, self.attempt_dir()

    def test_a_log_that_is_a_link_to_a_secret_is_left_out(self):
        job, done, secret, attempt = self.start_waiting_job()
        for name in ("rank-0.log", "node.events"):
            made = self.as_rank("ln", "-sfn", secret, attempt / name)
            self.assertEqual(made.returncode, 0, made.stderr)
        done.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertNotIn("secret", self.sftctl("logs", job, "--rank", 0).stdout)
        self.assertEqual(secret.read_text(), SECRET)

    def test_an_artifact_with_a_link_to_a_secret_is_not_delivered(self):
        job, done, secret, attempt = self.start_waiting_job()
        made = self.as_rank("ln", "-s", secret, attempt / "output/weights.safetensors")
        self.assertEqual(made.returncode, 0, made.stderr)
        done.touch()
        self.assert_ends(job, SUCCEEDED)  # by its second attempt
        verdict = self.status(job)["attempts"][0]["verdict"]
        self.assertEqual(verdict["code"], "artifact_lost")
        self.assertIn("neither a file nor a folder", verdict["message"])

    def test_the_check_and_the_start_say_whom_ranks_run_as_and_what_is_closed_to_them(self):
        def check(*options):
            return subprocess.run(
                [str(part) for part in (BUILD / "bin/sft-worker", "check", "--data-dir", self.data, "--models",
                                        self.dir / "models", "--server", f"127.0.0.1:{self.port}", "--simulate-gpus",
                                        "H100:1", "--rank-binary", BUILD / "tests/sft-fake-rank", *options)],
                capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        text = check("--rank-user", USER).stdout
        self.assertIn(f"ranks run as {USER} (uid {self.user.pw_uid})", text)
        self.assertIn("useradd", check("--rank-user", "no-such-user").stdout)
        (self.dir / "models").chmod(0o700)
        text = check("--rank-user", USER).stdout
        self.assertIn(f"let {USER} read it", text)
        shared = self.dir / "shared"
        shared.mkdir()
        self.assertIn(f"chown -R {USER} {shared}", check("--rank-user", USER, "--shared", shared).stdout)
        started = subprocess.run(
            [str(part) for part in (BUILD / "bin/sft-worker", "--data-dir", self.data, "--rank-user", USER,
                                    "--shared", shared, "--server", f"127.0.0.1:{self.port}")],
            capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        self.assertEqual(started.returncode, 1, started.stderr)
        self.assertIn(f"chown -R {USER} {shared}", started.stderr)

    def test_data_folders_that_an_earlier_release_left_open_are_closed(self):
        for folder in (self.data / "datasets", self.dir / "server/blobs/ab"):
            folder.mkdir(parents=True)
            (folder / "file").write_text("x")
        self.start_server()
        self.start_worker()
        for path in (self.data, self.data / "datasets", self.dir / "server", self.dir / "server/blobs",
                     self.dir / "server/blobs/ab"):
            self.assertEqual(path.stat().st_mode & 0o777, 0o700, path)
        for path in (self.data / "datasets/file", self.dir / "server/blobs/ab/file"):
            self.assertEqual(path.stat().st_mode & 0o777, 0o600, path)


if __name__ == "__main__":
    run_tests()
