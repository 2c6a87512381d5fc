#!/usr/bin/env python3
"""Models from a hub: what a worker downloads through all faults of the way, in a cache that huggingface_hub reads."""

import json
import os
import random
import shutil
import signal
import subprocess
import unittest

import harness
from harness import BUILD, CONFIG, wait_until
from hub import Hub, Proxy

PARITY = harness.pathlib.Path(__file__).parents[2] / "build/deps/parity/bin/python"
NAME = "org/tiny"


def model_files(megabytes=1, seed=1):
    """The files of a repository: what jobs need, and what they do not."""
    weights = harness.safetensors(harness.tensors(CONFIG), random.Random(seed).randbytes(megabytes << 20))
    return {
        "config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}", "README.md": b"# Tiny\n",
        "model.safetensors": weights,
        "pytorch_model.bin": b"a pickle, never downloaded", "modeling_tiny.py": b"raise SystemExit\n",
    }


def came(cache):
    """Bytes of the largest file that is on its way into a cache; a small one may arrive while it is looked at."""
    largest = 0
    for part in cache.rglob("*part"):
        try:
            largest = max(largest, part.stat().st_size)
        except FileNotFoundError:
            pass
    return largest


class HubCase(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.hub = Hub()
        self.addCleanup(self.hub.close)
        self.files = model_files()
        self.commit = self.hub.add(NAME, self.files)
        self.cache = self.dir / "cache"
        self.environment = {"PATH": os.environ["PATH"], "HF_ENDPOINT": self.hub.url}

    def folder(self, cache=None):
        return (cache or self.cache) / "models--org--tiny"

    def snapshot(self, commit=None, cache=None):
        return self.folder(cache) / "snapshots" / (commit or self.commit)

    def ranges(self, path="model.safetensors"):
        return [line[4] for line in self.hub.asked(path, "store")]

    def pull_command(self, name=NAME, cache=None):
        cache = str(cache or self.cache)
        return [str(BUILD / "bin/sft-worker"), "pull", name, "--data-dir", str(self.dir / "pulls"),
                "--model-cache", cache, *self.disk_marks(cache)]

    def pull(self, name=NAME, token="", cache=None, **environment):
        return subprocess.run(self.pull_command(name, cache), capture_output=True, text=True, check=False,
                              env={**self.environment, "HF_TOKEN": token, **environment}, timeout=harness.DEADLINE_S)

    def assert_pulled(self, result, commit=None, files=None):
        self.assertEqual(result.returncode, 0, result.stderr)
        files = files or self.files
        snapshot = self.snapshot(commit)
        self.assertEqual(sorted(each.name for each in snapshot.iterdir()),
                         ["README.md", "config.json", "model.safetensors", "tokenizer.json"])
        for each in snapshot.iterdir():
            self.assertTrue(each.is_symlink())
            self.assertEqual(each.read_bytes(), files[each.name], each)
        self.assertEqual([each for each in (self.folder() / "blobs").iterdir() if "part" in each.name], [])

    def assert_refused(self, result, *words):
        self.assertEqual(result.returncode, 1, result.stderr)
        for word in words:
            self.assertIn(word, result.stderr)
        self.assertFalse(self.snapshot().exists())


class HubTest(HubCase):
    """sft-worker pull, against each fault."""

    def test_a_download_survives_the_faults_of_the_way(self):
        self.hub.too_many, self.hub.broken, self.hub.expired = 2, 2, 2
        self.hub.cut = {"model.safetensors": [300_000, 200_000], "tokenizer.json": [1]}
        self.hub.flip = {"config.json": 1}
        result = self.pull(token="hf_right")
        self.assert_pulled(result)
        self.assertIn("bytes=300000-", self.ranges())
        self.assertIn("bytes=500000-", self.ranges())
        self.assertEqual((self.folder() / "refs/main").read_text(), self.commit)
        # The token was for the hub alone, and nothing asked for what jobs do not need.
        self.assertEqual({line[3] for line in self.hub.log if line[0] == "hub"}, {"hf_right"})
        self.assertEqual({line[3] for line in self.hub.log if line[0] == "store"}, {""})
        self.assertEqual(self.hub.asked("pytorch_model.bin") + self.hub.asked("modeling"), [])
        self.assertNotIn("hf_right", result.stdout + result.stderr)

    def test_a_killed_download_goes_on_where_it_was(self):
        self.files = model_files(24)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 8 << 20
        for life in range(3):
            with subprocess.Popen(self.pull_command(), env=self.environment, stderr=subprocess.DEVNULL) as process:
                wait_until("bytes to come", lambda life=life: came(self.cache) > (life + 1) << 21)
                process.kill()
        come = came(self.cache)
        self.assertGreater(come, 3 << 21)
        self.assertFalse(self.snapshot().exists())
        self.assertTrue((self.folder() / ".sft-downloaded").exists(), "it could not be removed, nor make room")
        self.hub.rate = 0
        self.hub.log.clear()
        self.assert_pulled(self.pull())
        self.assertEqual(self.ranges(), [f"bytes={come}-"])

    def test_a_store_without_ranges_begins_again_and_a_wrong_byte_is_never_kept(self):
        self.hub.no_range = True
        self.hub.cut = {"model.safetensors": [400_000]}
        self.assert_pulled(self.pull())
        shutil.rmtree(self.cache)
        self.hub.no_range = False
        self.hub.flip = {"model.safetensors": 1}
        self.assert_pulled(self.pull())
        shutil.rmtree(self.cache)
        self.hub.flip = {"model.safetensors": 100}
        self.assert_refused(self.pull(), "model.safetensors of org/tiny", "hash")
        blobs = {each.name: each.stat().st_size for each in (self.folder() / "blobs").iterdir()}
        self.assertEqual([name for name, size in blobs.items() if size > 1000 or size == 0], [])

    def test_what_the_hub_refuses_is_said_plainly(self):
        self.assert_refused(self.pull("org/none"), "has no model org/none", "token")
        self.assert_refused(self.pull("org/none", token="hf_right"), "owner of the token may see")
        self.assert_refused(self.pull(token="hf_wrong"), "refuses the token")
        self.assert_refused(self.pull("org/tiny@v9"), 'no revision "v9"')
        self.hub.private.add(NAME)
        self.assert_refused(self.pull(), "only with a token")
        self.hub.gated.add(NAME)
        self.assert_refused(self.pull(token="hf_right"), "is gated", self.hub.url + "/org/tiny")
        self.hub.add("org/pickle", {"config.json": b"{}", "pytorch_model.bin": b"x"})
        self.assert_refused(self.pull("org/pickle"), "no safetensors weights", "pytorch_model.bin")
        self.assert_refused(self.pull(HF_HUB_OFFLINE="1"), "HF_HUB_OFFLINE")
        result = self.pull("tiny")
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertIn("org/name", result.stderr)

    def test_a_pull_removes_no_model_that_jobs_may_use(self):
        self.assert_pulled(self.pull())
        self.hub.add("org/other", model_files(seed=2))
        command = [*self.pull_command("org/other"), "--model-cache-limit", "1.5MB"]
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment,
                                timeout=harness.DEADLINE_S)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("no other model is removed for it", result.stderr)
        self.assertTrue((self.snapshot() / "model.safetensors").exists())

    def test_a_listing_cannot_name_a_folder_of_the_node(self):
        victim = self.dir / "victim"
        (victim / "precious").mkdir(parents=True)
        depth = len((self.folder() / "blobs").relative_to(self.dir).parts)
        self.hub.oids["config.json"] = "../" * depth + "victim"
        self.assert_refused(self.pull(), "listing cannot be understood")
        self.assertTrue((victim / "precious").exists())

    def test_a_moved_revision_shares_its_files_with_the_old_one(self):
        self.assert_pulled(self.pull())
        old, self.files = self.commit, {**self.files, "config.json": json.dumps({**CONFIG, "x": 1}).encode()}
        self.commit = self.hub.add(NAME, self.files)
        self.assert_pulled(self.pull())
        self.assertEqual(len(self.ranges()), 1)
        self.assertTrue((self.snapshot(old) / "config.json").exists())
        self.assertEqual((self.folder() / "refs/main").read_text(), self.commit)

    def test_a_full_disk_is_said_before_a_byte_comes_and_keeps_no_snapshot(self):
        disk = self.small_disk("small", 12)
        self.files = model_files(20)
        self.commit = self.hub.add(NAME, self.files)
        result = self.pull(cache=disk / "cache")
        self.assertEqual(result.returncode, 1)
        self.assertIn("takes another 21", result.stderr)
        self.assertEqual(self.ranges(), [])

    def test_a_disk_that_fills_in_a_download_is_named_and_what_came_is_kept(self):
        disk = self.small_disk("small", 60)
        self.files = model_files(24)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 8 << 20
        cache = disk / "cache"
        with subprocess.Popen(self.pull_command(cache=cache), env=self.environment, stderr=subprocess.PIPE,
                              text=True) as process:
            wait_until("bytes to come", lambda: came(cache) > 1 << 20)
            ballast = self.fill(disk)
            said = process.communicate(timeout=harness.DEADLINE_S)[1]
        self.assertEqual(process.returncode, 1)
        self.assertIn("No space left on device", said)
        self.assertFalse(self.snapshot(cache=cache).exists())
        ballast.unlink()
        self.hub.rate = 0
        self.hub.log.clear()
        self.assertEqual(self.pull(cache=cache).returncode, 0)
        self.assertTrue(self.ranges()[0].startswith("bytes="))

    def test_two_programs_that_fill_one_cache_download_a_file_once(self):
        self.files = model_files(16)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 12 << 20
        both = [subprocess.Popen(self.pull_command(), env=self.environment, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL) for _ in range(2)]
        self.assertEqual([process.wait(timeout=harness.DEADLINE_S) for process in both], [0, 0])
        self.assertEqual(self.ranges(), [None])
        self.assertEqual((self.snapshot() / "model.safetensors").read_bytes(), self.files["model.safetensors"])

    def test_a_stop_ends_at_once_and_keeps_what_came(self):
        self.files = model_files(24)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 4 << 20
        with subprocess.Popen(self.pull_command(), env=self.environment, stderr=subprocess.DEVNULL) as process:
            wait_until("bytes of the weights to come", lambda: came(self.cache) > 1 << 20)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 1)
        self.assertGreater(came(self.cache), 1 << 20)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl")
    def test_a_hub_with_a_certificate_of_its_own_is_reached_through_a_proxy(self):
        (self.dir / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        for command in ("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=authority -keyout ca.key -out ca.pem",
                        "req -newkey rsa:2048 -nodes -subj /CN=hub -keyout hub.key -out hub.csr",
                        "x509 -req -in hub.csr -CA ca.pem -CAkey ca.key -days 2 -extfile names -out hub.crt"):
            subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=self.dir)
        pem = self.dir / "hub.pem"
        pem.write_bytes((self.dir / "hub.key").read_bytes() + (self.dir / "hub.crt").read_bytes())
        hub, proxy = Hub(str(pem)), Proxy()
        self.addCleanup(hub.close)
        self.addCleanup(proxy.close)
        hub.add(NAME, self.files)
        self.environment["HF_ENDPOINT"] = hub.url
        result = self.pull()
        self.assertEqual(result.returncode, 1)
        self.assertIn("certificate", result.stderr)
        self.assertEqual(len([line for line in hub.log if line[0] == "hub"]), 0)
        result = self.pull(SSL_CERT_FILE=str(self.dir / "ca.pem"), HTTPS_PROXY=proxy.url, NO_PROXY="localhost")
        self.assert_pulled(result)
        self.assertEqual(set(proxy.asked), {("CONNECT", hub.url.removeprefix("https://"))})
        shutil.rmtree(self.cache)
        proxy.asked.clear()
        result = self.pull(SSL_CERT_FILE=str(self.dir / "ca.pem"), HTTPS_PROXY=proxy.url, NO_PROXY="*")
        self.assert_pulled(result)
        self.assertEqual(proxy.asked, [])

    @unittest.skipUnless(PARITY.exists(), "huggingface_hub is not installed: deploy/bootstrap --parity")
    def test_huggingface_hub_reads_our_cache_and_we_read_its(self):
        self.assert_pulled(self.pull())
        script = """
import sys
from huggingface_hub import hf_hub_download, snapshot_download
patterns = ["*.json", "*.safetensors", "README.md"]
folder = snapshot_download("org/tiny", allow_patterns=patterns)
print(folder)
print(hf_hub_download("org/tiny", "model.safetensors", revision=sys.argv[1]))
"""
        def run(cache, **more):
            return subprocess.run([str(PARITY), "-c", script, self.commit], capture_output=True, text=True, check=False,
                                  env={**self.environment, "HF_HUB_CACHE": str(cache), "HF_HUB_DISABLE_XET": "1",
                                       "HOME": str(self.dir), **more})
        result = run(self.cache, HF_HUB_OFFLINE="1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.split(), [str(self.snapshot()), str(self.snapshot() / "model.safetensors")])
        theirs = self.dir / "theirs"
        result = run(theirs)
        self.assertEqual(result.returncode, 0, result.stderr)
        # All of it is there: what we would download is found, and nothing is asked for but the listing.
        self.hub.log.clear()
        result = self.pull(cache=theirs)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.hub.asked("/resolve/"), [])
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            self.assertEqual((self.snapshot(cache=theirs) / name).read_bytes(), self.files[name])


if __name__ == "__main__":
    harness.run_tests()
