#!/usr/bin/env python3
"""Models from a hub: the downloads of a worker with all faults of the way, jobs whose model no node has, and a cache
that huggingface_hub reads."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import time
import unittest

import harness
from harness import BUILD, CONFIG, wait_until
from hub import Hub

PARITY = harness.pathlib.Path(__file__).parents[2] / "build/deps/parity/bin/python"
NAME = "org/tiny"


def model_files(megabytes=1, seed=1):
    """The files of a repository: what jobs need, and what they do not."""
    weights = random.Random(seed).randbytes(megabytes << 20)
    header = json.dumps({"w": {"dtype": "U8", "shape": [len(weights)], "data_offsets": [0, len(weights)]}}).encode()
    return {
        "config.json": json.dumps(CONFIG).encode(), "tokenizer.json": b"{}", "README.md": b"# Tiny\n",
        "model.safetensors": struct.pack("<Q", len(header)) + header + weights,
        "pytorch_model.bin": b"a pickle, never downloaded", "modeling_tiny.py": b"raise SystemExit\n",
    }


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
        return [str(BUILD / "bin/sft-worker"), "pull", name, "--data-dir", str(self.dir / "pulls"),
                "--model-cache", str(cache or self.cache)]

    def pull(self, name=NAME, token="", cache=None, **environment):
        return subprocess.run(self.pull_command(name, cache), capture_output=True, text=True, check=False,
                              env={**self.environment, "HF_TOKEN": token, **environment}, timeout=harness.DEADLINE_S)

    def assert_pulled(self, result, commit=None, files=None):
        self.assertEqual(result.returncode, 0, result.stderr)
        files = files or self.files
        snapshot = self.snapshot(commit)
        self.assertEqual(sorted(each.name for each in snapshot.iterdir()),
                         ["config.json", "model.safetensors", "tokenizer.json"])
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
        for _ in range(3):
            with subprocess.Popen(self.pull_command(), env=self.environment, stderr=subprocess.DEVNULL) as process:
                time.sleep(0.8)
                process.kill()
        parts = list((self.folder() / "blobs").glob("*part*"))
        self.assertEqual(len(parts), 1)
        come = parts[0].stat().st_size
        self.assertGreater(come, 1 << 20)
        self.assertFalse(self.snapshot().exists())
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

    def test_a_stop_ends_at_once_and_keeps_what_came(self):
        self.files = model_files(24)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 4 << 20
        with subprocess.Popen(self.pull_command(), env=self.environment, stderr=subprocess.DEVNULL) as process:
            wait_until("bytes to come", lambda: any(each.stat().st_size for each in self.cache.rglob("*part")))
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(timeout=60), 1)
        self.assertEqual(len(list(self.cache.rglob("*part"))), 1)

    @unittest.skipUnless(PARITY.exists(), "huggingface_hub is not installed: deploy/bootstrap --parity")
    def test_huggingface_hub_reads_our_cache_and_we_read_its(self):
        self.assert_pulled(self.pull())
        script = """
import sys
from huggingface_hub import hf_hub_download, snapshot_download
patterns = ["*.json", "*.safetensors"]
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


class HubJobTest(HubCase):
    """Jobs that name a model of the hub."""

    def setUp(self):
        super().setUp()
        for name, value in (("HF_ENDPOINT", self.hub.url), ("HF_HUB_OFFLINE", "")):
            before = os.environ.get(name)
            os.environ[name] = value
            self.addCleanup(lambda name=name, before=before:
                            os.environ.pop(name) if before is None else os.environ.__setitem__(name, before))

    def job_of(self, model=NAME, name="job", mode="ok", **options):
        job = self.write_job(name=name, mode=mode, **options)
        job.write_text(job.read_text().replace('model = "tiny"', f'model = "{model}"'))
        return job

    def submit_model(self, *arguments, **options):
        result = self.sftctl("submit", self.job_of(*arguments, **options), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def cache_of(self, node):
        return self.dir / f"cache-{node}"

    def start_node(self, node="node-a", *options, **more):
        self.start_worker(node, options=["--model-cache", self.cache_of(node), *options], **more)

    def models(self):
        return json.loads(self.sftctl("models", "--json").stdout)

    def test_a_job_brings_its_model_to_the_node_and_names_the_commit(self):
        self.files = model_files(24)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 6 << 20
        self.start_server()
        self.start_node()
        job = self.submit_model()
        seen = wait_until("progress of the download", lambda: "% of" in json.dumps(self.status(job)) and
                          self.status(job))
        self.assertIn("downloading model org/tiny", json.dumps(seen))
        self.hub.rate = 0
        self.assert_ends(job, 0)
        self.assertIn(f"org/tiny@{self.commit}", json.dumps(self.status(job)))
        # The next one finds it, on whatever day, and a name alone means what is there.
        self.hub.log.clear()
        self.assert_ends(self.submit_model(name="again"), 0)
        self.assertEqual(self.hub.log, [])
        listed = [each for each in self.models() if each["model"] == NAME]
        self.assertEqual([each["problem"] for each in listed], [""])
        self.assertTrue(listed[0]["path"].endswith("snapshots/" + self.commit))

    def test_many_jobs_on_a_node_download_once_and_two_nodes_at_once(self):
        self.files = model_files(8)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 4 << 20
        self.start_server()
        self.start_node("node-a")
        self.start_node("node-b")
        jobs = [self.submit_model(name=f"job{number}", ranks=4) for number in range(4)]
        self.hub.rate = 0
        for job in jobs:
            self.assert_ends(job, 0)
        nodes = {node for node in ("node-a", "node-b") if self.folder(self.cache_of(node)).exists()}
        self.assertEqual(len(self.ranges()), len(nodes))

    def test_what_the_hub_refuses_is_said_at_submit_with_its_line(self):
        self.hub.gated.add("org/gated")
        self.hub.add("org/gated", self.files)
        self.start_server()
        self.start_node()
        for model, words in (("org/none", "has no model org/none"), ("org/tiny@v9", 'no revision "v9"'),
                             ("org/gated", "is gated")):
            result = self.sftctl("submit", self.job_of(model))
            self.assertEqual(result.returncode, 2, result.stdout)
            self.assertIn("job.toml:3", result.stderr)
            self.assertIn(words, result.stderr)
        self.assertEqual(json.loads(self.sftctl("list", "--json").stdout), [])

    def test_a_projects_token_brings_a_private_model_and_is_nowhere_to_be_read(self):
        self.hub.private.add(NAME)
        self.start_server()
        self.start_node()
        self.assertEqual(self.sftctl("submit", self.job_of()).returncode, 2)
        token = self.dir / "token"
        token.write_text("hf_right\n")
        result = self.sftctl("admin", "project", "set", "default", "--hub-token-file", token, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)[0]["has_hub_token"])
        job = self.submit_model()
        self.assert_ends(job, 0)
        backup = self.sftctl("admin", "backup", "--to", self.dir / "backup", "--with-blobs", "--with-keys")
        self.assertEqual(backup.returncode, 0, backup.stderr)
        token.unlink()
        kept = self.dir / "server/hub-tokens/default"
        self.assertEqual(kept.read_text(), "hf_right")
        self.assertEqual(kept.stat().st_mode & 0o777, 0o600)
        for path in self.dir.rglob("*"):
            if path.is_file() and path != kept:
                self.assertNotIn(b"hf_right", path.read_bytes(), path)
        result = self.sftctl("admin", "project", "set", "default", "--no-hub-token")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertFalse(kept.exists())

    def test_a_model_is_pulled_and_removed_by_an_operator(self):
        self.start_server()
        self.start_node("node-a")
        self.start_node("node-b")
        result = self.sftctl("models", "pull", NAME, "--node", "node-b")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.strip(), f"{NAME}@{self.commit}")
        self.assertFalse(self.folder(self.cache_of("node-a")).exists())
        self.assertTrue(self.snapshot(cache=self.cache_of("node-b")).exists())
        result = self.sftctl("models", "pull", "org/none")
        self.assertEqual(result.returncode, 3, result.stderr)
        result = self.sftctl("models", "rm", NAME)
        self.assertEqual(result.returncode, 0, result.stderr)
        wait_until("the model to go", lambda: not self.folder(self.cache_of("node-b")).exists())
        wait_until("the list to say so", lambda: NAME not in [each["model"] for each in self.models()])

    def test_room_is_made_by_removing_what_was_not_used_for_longest(self):
        self.files = model_files(4)
        for number in range(3):
            self.hub.add(f"org/m{number}", {**self.files, **model_files(4, seed=number)})
        self.start_server()
        self.start_node("node-a", "--model-cache-limit", "10MB")
        for number in (0, 1, 2):
            self.assert_ends(self.submit_model(f"org/m{number}", name=f"m{number}"), 0)
            wait_until("the attempt to be forgotten",
                       lambda: not any((self.dir / "node-a/attempts").iterdir()))
        names = sorted(each.name for each in self.cache_of("node-a").glob("models--*"))
        self.assertEqual(names, ["models--org--m1", "models--org--m2"])

    def test_an_offline_server_takes_the_job_and_the_node_sees_for_itself(self):
        os.environ["HF_HUB_OFFLINE"] = "1"
        self.start_server()
        os.environ["HF_HUB_OFFLINE"] = ""
        self.start_node()
        result = self.sftctl("submit", self.job_of(), "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        job = json.loads(result.stdout)["job"]
        self.assert_ends(job, 0)
        missing = self.submit_model("org/none", name="missing")
        self.assert_ends(missing, 10)
        self.assertIn("has no model org/none", json.dumps(self.status(missing)))


if __name__ == "__main__":
    harness.run_tests()
