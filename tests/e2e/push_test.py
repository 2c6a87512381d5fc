#!/usr/bin/env python3
"""`sftctl push`: what a job delivered on a model hub, through the faults of the way, as huggingface_hub reads it; and
that the test hub takes what huggingface_hub itself pushes."""

import json
import os
import pathlib
import signal
import subprocess
import unittest

import harness
from harness import wait_until
from hub import Hub

PARITY = pathlib.Path(__file__).parents[2] / "build/deps/parity/bin/python"
TOKEN = "hf_right"
SUCCEEDED, USAGE, NOT_FOUND, UNREACHABLE, REFUSED = 0, 2, 3, 4, 5


class PushTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.start_server()
        self.start_worker()
        self.job = self.submit("ok", ranks=1)
        self.assert_ends(self.job, 0)
        self.folder = self.dir / "adapter"
        self.assertEqual(self.sftctl("download", self.job, "-o", self.folder).returncode, 0)
        self.files = {str(each.relative_to(self.folder)): each.read_bytes()
                      for each in self.folder.rglob("*") if each.is_file()}

    def command(self, *arguments, to="org/mine"):
        return [str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "push", self.job, "--to", to,
                *map(str, arguments)]

    def environment(self, token=TOKEN, **more):
        return {"PATH": os.environ["PATH"], "HOME": str(self.dir), "HF_ENDPOINT": self.hub.url, "HF_TOKEN": token, **more}

    def push(self, *arguments, to="org/mine", token=TOKEN, **environment):
        return subprocess.run(self.command(*arguments, to=to), env=self.environment(token, **environment),
                              capture_output=True, text=True, check=False, timeout=harness.DEADLINE_S)

    def there(self, name="org/mine", branch="main"):
        repo = self.hub.repos[name]
        files = dict(repo.commits[repo.refs[branch]])
        files.pop(".gitattributes", None)
        return files

    def assert_refused(self, code, said, *arguments, **options):
        result = self.push(*arguments, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(said, result.stderr)
        self.assertNotIn(options.get("token", TOKEN) or "none", result.stderr)
        return result

    def test_what_a_job_delivered_is_one_commit_of_a_new_private_repository(self):
        result = self.push("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        said = json.loads(result.stdout)
        self.assertEqual(self.there(), self.files)
        self.assertEqual(said["url"], self.hub.url + "/org/mine")
        self.assertEqual(said["commit"], self.hub.repos["org/mine"].refs["main"])
        self.assertEqual((said["new"], said["private"], said["kind"]), (True, True, "adapter"))
        self.assertIn("org/mine", self.hub.private)
        self.assertEqual(len(self.hub.commits), 1)
        self.assertEqual(self.hub.commits[0][2], f"Result of job {self.job}")
        # The token is for the hub alone, and nowhere to be read.
        self.assertEqual({line[3] for line in self.hub.log if line[0] == "store"}, {""})
        self.assertEqual({line[3] for line in self.hub.log if line[0] == "hub"}, {TOKEN})
        self.assertNotIn(TOKEN, result.stdout + result.stderr)
        # Again: nothing large is sent twice.
        self.hub.log.clear()
        result = self.push("--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["sent_bytes"], 0)
        self.assertEqual(self.hub.asked("/upload/"), [])
        # Files of others stay, and a branch is made.
        self.hub.add("org/mine", {**self.there(), "notes.txt": b"mine"})
        result = self.push("--message", "a second try", to="org/mine@tries/2")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, self.hub.url + "/org/mine/tree/tries/2\n")
        self.assertEqual(self.there(branch="tries/2"), {**self.files, "notes.txt": b"mine"})
        self.assertEqual(self.hub.commits[-1][1:3], ("tries/2", "a second try"))

    def test_a_push_survives_the_faults_of_the_way_and_sends_large_files_in_parts(self):
        self.hub.part_bytes = 30_000
        self.hub.too_many, self.hub.put_broken, self.hub.put_expired, self.hub.put_cut = 2, 2, 1, 1
        self.hub.commit_broken, self.hub.commit_lost = 1, 1
        result = self.push("--public")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.there(), self.files)
        self.assertEqual(len(self.hub.commits), 1, "the commit whose answer was lost is not made twice")
        self.assertNotIn("org/mine", self.hub.private)
        self.assertGreater(len([line for line in self.hub.asked("/upload/", "store") if "/2?" in line[2]]), 0)
        self.assertIn("asks again", result.stderr)
        self.assertNotIn("signature", result.stderr)

    def test_what_the_hub_refuses_is_said_plainly_and_nothing_is_half_there(self):
        self.assert_refused(REFUSED, "there is no token", token="")
        self.assert_refused(REFUSED, "refuses the token", token="hf_wrong")
        self.assert_refused(USAGE, "OWNER/NAME", to="mine")
        self.assert_refused(USAGE, "is a commit", to="org/mine@" + "0" * 40)
        self.assert_refused(REFUSED, "HF_HUB_OFFLINE", HF_HUB_OFFLINE="1")
        self.assert_refused(REFUSED, "rights to create a model", to="others/mine")
        self.hub.tokens["hf_reader"] = {}
        self.hub.readers.add("hf_reader")
        self.assert_refused(REFUSED, "may not write", token="hf_reader")
        self.assertEqual(self.hub.repos, {})
        self.hub.add("org/mine", {"README.md": b"old"})
        self.hub.ignored.add("README.md")
        self.hub.ignored.add("adapter_config.json")
        self.assert_refused(REFUSED, ".gitignore")
        self.hub.ignored.clear()
        self.hub.commit_overtaken = 1
        self.assert_refused(REFUSED, "another commit")
        self.hub.commit_refused = "invalid metadata in the model card"
        self.assert_refused(REFUSED, "invalid metadata in the model card")
        self.hub.commit_refused = ""
        self.hub.objects.clear()
        self.hub.put_flip = 1
        self.assert_refused(REFUSED, "answers 400")
        self.assertEqual(self.hub.commits, [])
        self.assertEqual(self.there(), {"README.md": b"old", "other": b"of somebody"})
        self.assertEqual(self.push().returncode, 0)
        result = self.push(HF_ENDPOINT="http://127.0.0.1:1")
        self.assertEqual(result.returncode, UNREACHABLE, result.stderr)

    def test_a_push_that_is_ended_goes_on_with_what_is_missing(self):
        self.hub.put_broken = 1000
        with subprocess.Popen(self.command(), env=self.environment(), stderr=subprocess.PIPE, text=True) as process:
            wait_until("a large file to be tried", lambda: self.hub.asked("/upload/", "store"))
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=harness.DEADLINE_S)[1]
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("the same command", said)
        self.assertEqual(self.there(), {}, "nothing is seen of it")
        self.hub.put_broken = 0
        self.assertEqual(self.push().returncode, 0)
        self.assertEqual(self.there(), self.files)

    def test_the_token_may_lie_in_a_file(self):
        token = self.dir / "token"
        token.write_text(TOKEN + "\n")
        self.assertEqual(self.push("--hub-token-file", token, token="").returncode, 0)
        login = self.dir / ".cache/huggingface"
        login.mkdir(parents=True)
        token.rename(login / "token")
        result = self.push(to="org/second", token="")
        self.assertEqual(result.returncode, 0, result.stderr)
        token.write_text("two words")
        self.assert_refused(USAGE, "does not hold one token", "--hub-token-file", token)

    @unittest.skipUnless(PARITY.exists(), "huggingface_hub is not installed: deploy/bootstrap --parity")
    def test_huggingface_hub_reads_what_is_pushed_and_pushes_itself(self):
        script = """
import sys
from huggingface_hub import HfApi, snapshot_download
print(snapshot_download("org/mine"))
HfApi().create_repo("org/theirs", private=True)
HfApi().upload_folder(folder_path=sys.argv[1], repo_id="org/theirs")
"""
        for part_bytes in (0, 30_000):
            self.hub.part_bytes = part_bytes
            self.hub.repos.clear()
            self.hub.objects.clear()
            self.assertEqual(self.push().returncode, 0)
            self.hub.objects.clear()
            result = subprocess.run([str(PARITY), "-c", script, str(self.folder)], capture_output=True, text=True, check=False,
                                    env=self.environment(HF_HUB_DISABLE_XET="1", HF_HUB_CACHE=str(self.dir / f"c{part_bytes}")))
            self.assertEqual(result.returncode, 0, result.stderr)
            read = pathlib.Path(result.stdout.split()[0])
            for name, data in self.files.items():
                self.assertEqual((read / name).read_bytes(), data, name)
            self.assertEqual(self.there("org/theirs"), self.files, "the hub takes what the real client sends")


if __name__ == "__main__":
    harness.run_tests()
