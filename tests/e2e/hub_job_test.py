#!/usr/bin/env python3
"""Jobs that name a model of a hub, which no node has."""

import json
import os
import shutil
import unittest

import harness
from families_test import GOLDENS, write_tokenizer
from harness import BUILD, CONFIG, wait_until
from hub import read_folder
from hub_test import NAME, HubCase, came, model_files
from rank_user_test import USER, can_run
from tiny_model import DEMO


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
        events = self.sftctl("events", job).stdout
        self.assertIn(f"model org/tiny@{self.commit} has come to this node from {self.hub.url}: 25.3 MB in ", events)
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
        # A node that comes a moment later gets it from the other.
        self.assertIn(len(self.ranges()), range(1, len(nodes) + 1))

    def test_a_second_node_gets_the_model_from_the_first_and_goes_on_after_a_kill(self):
        self.files = model_files(48)
        self.commit = self.hub.add(NAME, self.files)
        self.start_server()
        self.start_node("node-a", gpus="H100:1")
        self.assert_ends(self.submit_model(ranks=1), 0)
        wait_until("the copy to be known", lambda: [each for each in self.models() if each["model"] == NAME])
        self.hub.log.clear()
        # A node that breaks off: what has come stays, and is gone on with.
        self.start_node("node-b", gpus="H100:2")
        job = self.submit_model(ranks=2, name="second")
        wait_until("some of it to come", lambda: came(self.cache_of("node-b")) > 0 or
                   self.snapshot(cache=self.cache_of("node-b")).exists())
        self.kill("node-b")
        self.start_node("node-b", gpus="H100:2")
        self.assert_ends(job, 0)
        weights = self.snapshot(cache=self.cache_of("node-b")) / "model.safetensors"
        self.assertEqual(weights.read_bytes(), self.files["model.safetensors"])
        self.assertEqual(self.ranges(), [], "the hub gave weights a second time")
        events = self.sftctl("events", job).stdout
        self.assertRegex(events, rf"model org/tiny@{self.commit} has come to this node from .* of it from node-a")

    def test_a_node_that_spoils_a_model_or_is_away_is_replaced_by_the_hub(self):
        self.start_server()
        self.start_node("node-a", gpus="H100:1")
        self.assert_ends(self.submit_model(ranks=1), 0)
        wait_until("the copy to be known", lambda: [each for each in self.models() if each["model"] == NAME])
        blob = (self.snapshot(cache=self.cache_of("node-a")) / "model.safetensors").resolve()
        whole = blob.read_bytes()
        blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        self.hub.log.clear()
        self.start_node("node-b", gpus="H100:2")
        self.assert_ends(self.submit_model(ranks=2, name="second"), 0)
        weights = self.snapshot(cache=self.cache_of("node-b")) / "model.safetensors"
        self.assertEqual(weights.read_bytes(), self.files["model.safetensors"])
        self.assertEqual(len(self.ranges()), 1)
        self.kill("node-a")
        self.kill("node-b")
        self.start_node("node-c", gpus="H100:4")
        job = self.submit_model(ranks=4, name="third")
        self.assert_ends(job, 0)
        self.assertNotIn("of it from", self.sftctl("events", job).stdout)

    def test_all_nodes_of_a_gang_have_the_commit_of_the_submit_though_the_branch_moves(self):
        self.start_server()
        self.start_node("node-a", gpus="H100:4")
        job = self.submit_model(ranks=8, per_node=4)
        self.assertEqual(self.status(job)["state"], "PENDING")
        moved = self.hub.add(NAME, {**self.files, "config.json": json.dumps({**CONFIG, "x": 1}).encode()})
        self.start_node("node-b", gpus="H100:4")
        self.assert_ends(job, 0)
        for node in ("node-a", "node-b"):
            self.assertTrue(self.snapshot(cache=self.cache_of(node)).exists())
            self.assertFalse(self.snapshot(moved, self.cache_of(node)).exists())

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

    def test_a_copy_that_was_damaged_on_the_node_comes_again(self):
        self.start_server()
        self.start_node()
        self.assert_ends(self.submit_model(), 0)
        weights = self.folder(self.cache_of("node-a")) / "snapshots" / self.commit / "model.safetensors"
        whole = weights.read_bytes()
        weights.resolve().write_bytes(bytes(len(whole)))
        self.assert_ends(self.submit_model(name="again"), 0)
        self.assertEqual(weights.read_bytes(), whole)

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


    @unittest.skipIf(can_run(), can_run())
    def test_ranks_of_another_user_read_what_the_worker_downloads_and_nobody_else_does(self):
        self.dir.chmod(0o755)
        self.start_server()
        cache = self.cache_of("node-a")
        cache.mkdir(parents=True)
        cache.chmod(0o755)
        self.start_node("node-a", "--rank-user", USER)
        self.assert_ends(self.submit_model(), 0)
        self.assert_ends(self.submit_model(name="again"), 0)
        # Others keep their way into a cache that is theirs too.
        self.assertEqual((cache.stat().st_mode & 0o777, cache.stat().st_gid), (0o755, 0))
        for path in [self.folder(cache), *self.folder(cache).rglob("*")]:
            if not path.is_symlink():
                self.assertEqual(path.stat().st_mode & 0o007, 0, path)
                self.assertEqual(path.stat().st_uid, 0, path)

    @unittest.skipUnless((BUILD / "bin/sft-rank").exists(), "there is no sft-rank: build the engine")
    def test_an_adapter_of_a_real_training_names_base_and_commit(self):
        folder = self.dir / "small"
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(GOLDENS / "families/qwen2_sliding_untied" / name, folder / name)
        write_tokenizer(folder)
        self.commit = self.hub.add(NAME, {each.name: each.read_bytes() for each in folder.iterdir()})
        self.start_server()
        self.start_node(gpus="H100:1", engine=True)
        job = self.job_of(ranks=1, tables="max_steps = 2")
        data = self.dir / "job.jsonl"
        data.write_text((json.dumps({"text": "a plain row of text"}) + "\n") * 8)
        result = self.sftctl("submit", job, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        name = json.loads(result.stdout)["job"]
        self.assert_ends(name, 0)
        result = self.sftctl("download", name, "-o", self.dir / "adapter")
        self.assertEqual(result.returncode, 0, result.stderr)
        config = json.loads((self.dir / "adapter/adapter_config.json").read_text())
        self.assertEqual((config["base_model_name_or_path"], config["revision"]), (NAME, self.commit))

    @unittest.skipUnless((DEMO / "model/model.safetensors").exists(),
                         "build/demo/model is missing: run deploy/demo/make_model.sh")
    def test_the_demos_model_comes_from_the_hub_and_trains_on_cpu_slots(self):
        self.commit = self.hub.add(NAME, read_folder(DEMO / "model"))
        self.start_server("--dev", "--model-cache", self.cache, "--cpu-slots", "1")
        job = self.dir / "demo.toml"
        job.write_text(f'''[job]
model = "{NAME}@main"
data = "rows.jsonl"
[compute]
gpu_type = "CPU"
gpu_count = 1
[training]
mode = "lora"
[hyperparameters]
max_steps = 2
sequence_length = 64
''')
        (self.dir / "rows.jsonl").write_text(json.dumps({"text": "a plain row of text"}) + "\n")
        wait_until("the worker", lambda: "CPU" in self.sftctl("nodes", "--json").stdout)
        result = self.sftctl("submit", job, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assert_ends(json.loads(result.stdout)["job"], 0)
        self.assertEqual((self.snapshot() / "model.safetensors").stat().st_size,
                         (DEMO / "model/model.safetensors").stat().st_size)
        self.assertEqual(self.sftctl("models", "pull", NAME).returncode, 0)

    def test_a_worker_that_is_killed_in_a_download_goes_on_with_it(self):
        self.files = model_files(24)
        self.commit = self.hub.add(NAME, self.files)
        self.hub.rate = 6 << 20
        self.start_server()
        self.start_node()
        job = self.submit_model()
        wait_until("bytes to come", lambda: came(self.cache_of("node-a")) > 1 << 20)
        self.kill("node-a")
        self.hub.log.clear()
        self.hub.rate = 0
        self.start_node()
        self.assert_ends(job, 0)
        self.assertEqual(len(self.status(job)["attempts"]), 1)
        self.assertEqual(len(self.ranges()), 1)
        self.assertTrue(self.ranges()[0].startswith("bytes="))


if __name__ == "__main__":
    harness.run_tests()
