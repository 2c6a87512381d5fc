"""The way to a first job: doctor, a template, job files in YAML and JSON, runs as a group; with fake ranks."""

import json
import os
import pathlib
import shutil
import unittest.mock

from harness import BUILD, ServiceCase, run_tests, wait_until
from hub import Hub
from recipes import CONFIGS

CONFIG_FOLDER = pathlib.Path(__file__).parents[2] / "configs"
MESSAGES = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
# A row that every recipe takes, whatever it learns from.
ROW = {"messages": MESSAGES, "prompt": MESSAGES[:1], "chosen": MESSAGES[1:], "rejected": MESSAGES[1:]}
SUCCEEDED, USAGE, UNREACHABLE, REFUSED = 0, 2, 4, 5


class JobFilesTest(ServiceCase):

    def write_as(self, ending, mode, group=""):
        """The job of write_job in another form."""
        self.write_job(mode, ranks=1)
        tables = {"job": {"model": "tiny", "data": "job.jsonl", "group": group},
                  "compute": {"gpu_type": "H100", "gpu_count": 1}, "training": {"mode": "lora"},
                  "hyperparameters": {"per_device_batch": 1, "gradient_accumulation_steps": 1, "sequence_length": 64},
                  "lora": {"r": 4, "target_modules": ["q_proj"]}}
        path = self.dir / f"job{ending}"
        if ending == ".json":
            path.write_text("// one job\n" + json.dumps(tables, indent=1))
            return path
        lines = ["# one job"]
        for table, keys in tables.items():
            lines.append(f"{table}:")
            for key, value in keys.items():
                lines.append(f"  {key}: {'[q_proj]' if isinstance(value, list) else value}")
        path.write_text("\n".join(lines) + "\n")
        return path

    def test_doctor_a_template_and_jobs_of_each_form(self):
        alone = self.sftctl("doctor")
        self.assertEqual(alone.returncode, UNREACHABLE, alone.stdout)
        self.assertIn("FAIL  server", alone.stdout)
        self.start_server()
        self.assertIn("FAIL  nodes", self.sftctl("doctor").stdout)
        self.start_worker(gpus="H100:2")
        well = self.sftctl("doctor", "--json")
        self.assertEqual(well.returncode, 0, well.stdout)
        found = {each["name"]: each["text"] for each in json.loads(well.stdout)["checks"]}
        self.assertIn("2 H100 (simulated), 2 free", found["slots"])
        self.assertIn("1 of 1 connected", found["nodes"])
        self.assertIn("tiny", found["models"])
        written = self.sftctl("init", "--template", "qlora-8b", "--model", "tiny", "--data", "job.jsonl",
                              self.dir / "made.toml")
        self.assertEqual(written.returncode, 0, written.stderr)
        for ending in (".yaml", ".json"):
            job = self.write_as(ending, "train steps=3 pace=1", group="forms")
            tried = self.sftctl("submit", job, "--dry-run", "--set", "lora.r=8", "--json")
            self.assertEqual(tried.returncode, 0, tried.stderr)
            values = json.loads(tried.stdout)["values"]
            self.assertEqual(values["lora.target_modules"]["value"], "q_proj")
            self.assertTrue(values["compute.gpu_type"]["origin"].startswith(f"job{ending}:"), values)
            sent = self.sftctl("submit", job)
            self.assertEqual(sent.returncode, 0, sent.stderr)
            self.assert_ends(sent.stdout.strip(), SUCCEEDED)
            status = self.status(sent.stdout.strip())
            self.assertEqual((status["name"], status["group"]), ("job", "forms"))
        swept = self.sftctl("sweep", self.dir / "job.yaml", "--set", "lora.r=2,4", "--json")
        self.assertEqual(swept.returncode, 0, swept.stderr)
        for job in json.loads(swept.stdout)["jobs"]:
            self.assert_ends(job, SUCCEEDED)
        (self.dir / "wrong.yaml").write_text("job:\n  model: tiny\n  data: job.jsonl\n  grup: x\n")
        wrong = self.sftctl("submit", self.dir / "wrong.yaml")
        self.assertEqual(wrong.returncode, USAGE)
        self.assertIn("wrong.yaml:4: job.grup: unknown key; did you mean job.group?", wrong.stderr)

    def start_fleet(self):
        """A server whose hub has the models of the recipes, and a node of each kind that they name."""
        hub = Hub()
        self.addCleanup(hub.close)
        for name, config in CONFIGS.items():
            hub.add(name, {"config.json": json.dumps(config).encode(), "tokenizer.json": b"{}",
                           "model.safetensors": b"never read"})
        shutil.copytree(self.dir / "models/tiny", self.dir / "models/model")  # that of the demo
        with unittest.mock.patch.dict(os.environ, {"HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": ""}):
            self.start_server()
            for gpus in ("H100:8", "H200:4", "A100:4", "RTX4090:2"):
                node = gpus.partition(":")[0].lower()
                self.start_worker(node, gpus, options=("--model-cache", self.dir / f"cache-{node}"))
            self.start("cpu", BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}", "--data-dir",
                       self.dir / "cpu", "--node", "cpu", "--models", self.dir / "models", "--cpu-slots", 2,
                       "--rank-binary", BUILD / "tests/sft-fake-rank")
        wait_until("the CPU's node", lambda: '"cpu"' in self.sftctl("nodes", "--json").stdout)

    def test_a_dry_run_of_every_recipe_shows_its_plan_on_the_gpus_that_it_names(self):
        self.start_fleet()
        (self.dir / "rows.jsonl").write_text((json.dumps(ROW) + "\n") * 20)
        recipes = json.loads(self.sftctl("init", "--list", "--json").stdout)
        self.assertEqual({each["file"] for each in recipes}, {path.name for path in CONFIG_FOLDER.iterdir()})
        for recipe in recipes:
            file = self.dir / recipe["file"]
            made = self.sftctl("init", "--template", recipe["file"], "--data", self.dir / "rows.jsonl", file)
            self.assertEqual(made.returncode, 0, made.stderr)
            tried = self.sftctl("submit", file, "--dry-run", "--json")
            self.assertEqual(tried.returncode, 0, f"{recipe['file']}: {tried.stdout}{tried.stderr}")
            with self.subTest(recipe["file"]):
                self.check_plan(recipe, json.loads(tried.stdout)["plan"])
        shown = self.sftctl("submit", self.dir / "multi_gpu_config.yaml", "--dry-run").stdout
        for line in ("\nallocation   H100-2x on 1 node: 2 ranks;", "\nexecution    ", "\nmemory       "):
            self.assertIn(line, shown)

    def check_plan(self, recipe, plan):
        self.assertEqual((plan["variant"], plan["note"]), (recipe["variant"], ""))
        self.assertGreater(plan["total_parameters"], 0)
        self.assertGreater(sum(plan["memory_bytes_per_rank"].values()), 0)
        if recipe["group"] == "generate" or recipe["variant"].startswith("CPU"):
            return
        self.assertGreater(plan["trainable_parameters"], 0)
        self.assertLessEqual(sum(plan["memory_bytes_per_rank"].values()), plan["memory_limit_bytes"])
        self.assertIn("row", plan["execution"])
        self.assertGreater(plan["tokens_per_second"], 0)

    def test_a_group_is_listed_compared_and_cancelled_together(self):
        self.start_server()
        self.start_worker(gpus="H100:2")
        short = self.write_job("train steps=3 pace=1", ranks=1)
        runs = []
        for rank in (4, 8):
            sent = self.sftctl("submit", short, "--group", "v2-lr", "--set", f"lora.r={rank}")
            self.assertEqual(sent.returncode, 0, sent.stderr)
            runs.append(sent.stdout.strip())
        alone = self.sftctl("submit", short).stdout.strip()
        for job in [*runs, alone]:
            self.assert_ends(job, SUCCEEDED)
        listed = json.loads(self.sftctl("list", "--group", "v2-lr", "--json").stdout)
        self.assertEqual({each["job"] for each in listed}, set(runs))
        compared = self.sftctl("compare", "--group", "v2-lr", "--json")
        self.assertEqual(compared.returncode, 0, compared.stderr)
        compared = json.loads(compared.stdout)
        self.assertEqual([each["job"] for each in compared["runs"]], runs)
        self.assertEqual(compared["differences"]["lora.r"], ["4", "8"])
        long = self.write_job(f"train steps=5 pace=1 until={self.dir}/never", ranks=1, name="long")
        open_jobs = [self.sftctl("submit", long, "--group", "v2-lr").stdout.strip() for _ in range(2)]
        other = self.sftctl("submit", long, "--group", "v3").stdout.strip()
        for job in open_jobs:
            self.wait_for_step(job)
        self.kill("server")
        self.start_server()
        shown = self.sftctl("cancel", "--group", "v2-lr")
        self.assertEqual(shown.returncode, USAGE)
        self.assertIn("add --yes to cancel these 2 jobs", shown.stderr)
        done = self.sftctl("cancel", "--group", "v2-lr", "--yes", "--checkpoint", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["cancelled"], open_jobs)
        self.assertNotIn(self.status(other)["state"], ("CANCELLING", "CANCELLED"))
        self.wait_for_state(open_jobs[0], "CANCELLED")
        again = self.sftctl("resume", open_jobs[0])
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(self.status(again.stdout.strip())["group"], "v2-lr")
        self.assertEqual(self.sftctl("compare", "--group", "v3").returncode, REFUSED)


if __name__ == "__main__":
    run_tests()
