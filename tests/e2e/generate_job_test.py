#!/usr/bin/env python3
"""Jobs of kind "generate" under the real service: prompts in, answers out in their order, whatever
the number of ranks and whatever is killed on the way."""

import concurrent.futures
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import unittest
import urllib.error
import urllib.request

import harness
from families_test import GOLDENS, write_tokenizer

ROWS, NEW_TOKENS, LONG = 1000, 8, 256
SUCCEEDED, USAGE, USER_FAILURE = 0, 2, 10


class GenerateJobTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "models/small"
        shutil.copytree(GOLDENS / "families/qwen2_sliding_untied", self.model)
        write_tokenizer(self.model)
        shutil.copytree(self.model / "adapter", self.dir / "models/mine")
        shutil.rmtree(self.model / "adapter")

    def give_positions(self, count):
        config = json.loads((self.model / "config.json").read_text())
        config["max_position_embeddings"] = count
        (self.model / "config.json").write_text(json.dumps(config))

    def write_prompts(self, rows=ROWS):
        source = random.Random(5)
        path = self.dir / "prompts.jsonl"
        with open(path, "w") as out:
            for number in range(rows):
                text = "".join(chr(source.randrange(33, 127)) for _ in range(source.randrange(1, 40)))
                out.write(json.dumps({"id": f"row {number}", "prompt": text}) + "\n")
        return path

    def write_job(self, ranks=1, adapter="", generate="", tokens=NEW_TOKENS, nodes=1):
        job = self.dir / f"generate-{ranks}.toml"
        job.write_text(f"""
[job]
kind = "generate"
model = "small"
adapter = "{adapter}"
data = "prompts.jsonl"
[compute]
gpu_type = "H100"
gpu_count = {ranks}
nodes = {nodes}
gpus_per_node = {ranks // nodes}
[generate]
max_new_tokens = {tokens}
{generate or "temperature = 0.9"}
seed = 3
""")
        return job

    def submit_generate(self, *arguments, **options):
        result = self.sftctl("submit", self.write_job(**options), "--json", *arguments)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)["job"]

    def ranks(self):
        return harness.processes_with("sft-rank generate --launch " + str(self.dir))

    def answers(self, job):
        result = self.sftctl("wait", job, "--timeout", f"{harness.DEADLINE_S}s")
        self.assertEqual(result.returncode, SUCCEEDED, f"{result.stderr}{self.sftctl('logs', job).stdout}")
        folder = self.dir / f"answers-{job}"
        result = self.sftctl("download", job, "-o", folder)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertEqual([path.name for path in folder.iterdir()], ["answers.jsonl"])
        return (folder / "answers.jsonl").read_text()

    def test_any_number_of_ranks_delivers_the_same_answers(self):
        self.write_prompts()
        self.start_server()
        self.start_worker(gpus="H100:4", engine=True)
        adapter = str(self.dir / "models/mine")
        whole = self.answers(self.submit_generate(ranks=1, adapter=adapter))
        rows = [json.loads(line) for line in whole.splitlines()]
        self.assertEqual([row["id"] for row in rows], [f"row {number}" for number in range(ROWS)])
        self.assertGreater(len({row["answer"] for row in rows}), ROWS // 2)
        for ranks in (2, 4):
            job = self.submit_generate(ranks=ranks, adapter=adapter)
            self.assertEqual(self.answers(job), whole, ranks)
        status = self.status(job)
        self.assertEqual(status["kind"], "generate")
        self.assertEqual(status["progress"]["step"], ROWS)
        self.assertEqual(status["progress"]["total_steps"], ROWS)
        shown = self.sftctl("status", job).stdout
        self.assertIn(f"{ROWS}/{ROWS} answers", shown)
        self.assertNotIn("loss", shown)
        self.assertIn(f"{ROWS}/{ROWS} answers", self.sftctl("list").stdout)
        base = self.answers(self.submit_generate(ranks=2))
        self.assertNotEqual(base, whole, "the base alone answers otherwise")
        left = list(self.dir.glob("node-a/checkpoints/*/answers"))
        self.assertEqual(left, [], "delivered answers do not stay on the node")
        narrow = self.submit_generate(ranks=1, generate="temperature = 0.9\nnf4 = true")
        self.sftctl("wait", narrow, "--timeout", f"{harness.DEADLINE_S}s")
        self.assertIn("none has a multiple of 64 inputs", json.dumps(self.status(narrow)))

    def test_a_search_gives_the_same_answers_on_any_number_of_ranks(self):
        self.write_prompts(rows=60)
        self.start_server()
        self.start_worker(gpus="H100:3", engine=True)
        beams = "num_beams = 4\nnum_return_sequences = 3\nno_repeat_ngram = 2\nlength_penalty = 0.7\nbatch = 5"
        whole = self.answers(self.submit_generate(generate=beams))
        rows = [json.loads(line) for line in whole.splitlines()]
        self.assertEqual([(row["id"], row["sample"]) for row in rows],
                         [(f"row {row}", sample) for row in range(60) for sample in range(3)])
        self.assertGreater(len({(row["id"], row["answer"]) for row in rows}), 150)
        # Shares that begin within the answers to a prompt.
        self.assertEqual(self.answers(self.submit_generate(ranks=3, generate=beams)), whole)
        greedy = [json.loads(line)["answer"] for line in
                  self.answers(self.submit_generate(generate="no_repeat_ngram = 2")).splitlines()]
        self.assertNotEqual(greedy, [row["answer"] for row in rows if row["sample"] == 0])
        for keys, said in (("num_beams = 2\ntemperature = 0.5", "draws tokens"),
                           ("num_beams = 2\nnum_samples = 3", "a search with 2 beams finds 2 answers")):
            refused = self.sftctl("submit", self.write_job(generate=keys))
            self.assertEqual(refused.returncode, USAGE)
            self.assertIn(said, refused.stderr)

    def test_samples_of_a_prompt_differ_and_are_numbered(self):
        self.write_prompts(rows=7)
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True)
        rows = [json.loads(line) for line in
                self.answers(self.submit_generate(ranks=2, generate="temperature = 0.9\nnum_samples = 3")).splitlines()]
        self.assertEqual([(row["id"], row["sample"]) for row in rows],
                         [(f"row {row}", sample) for row in range(7) for sample in range(3)])
        self.assertGreater(len({row["answer"] for row in rows}), 14)

    def test_a_killed_rank_worker_and_server_repeat_and_lose_no_line(self):
        self.give_positions(2 * LONG)
        self.write_prompts()
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True)
        long = f"temperature = 0.9\nmin_new_tokens = {LONG}\n"
        whole = self.answers(self.submit_generate(ranks=1, tokens=LONG, generate=long))
        # One at a time, which changes no answer, and is slow.
        job = self.submit_generate(ranks=2, tokens=LONG, generate=long + "batch = 1")
        # Each kill waits for answers that are news: there is something to lose and to repeat.
        for kill, what in enumerate(("rank", "node-a", "rank", "server", "rank")):
            self.wait_for_step(job, step=(kill + 1) * ROWS // 10)
            attempt = self.status(job)["attempt"]
            if what == "rank":
                os.kill(self.ranks()[0], signal.SIGKILL)
                harness.wait_until("the next attempt", lambda: self.status(job)["attempt"] > attempt)
            elif what == "server":
                self.kill("server")
                self.start_server()
            else:
                self.kill("node-a")
                self.start_worker(gpus="H100:2", engine=True)
        self.assertEqual(self.answers(job), whole)
        attempts = self.status(job)["attempts"]
        self.assertEqual(len(attempts), 4, attempts)
        self.assertIn("answers are there already", "".join(
            self.sftctl("logs", job, "--rank", rank, "--attempt", 2).stdout for rank in (0, 1)))

    def start_two_workers(self):
        for node in ("node-a", "node-b"):
            self.start_worker(node, gpus="H100:2", engine=True)

    def test_ranks_of_two_nodes_killed_five_times_deliver_the_same_file(self):
        self.give_positions(2 * LONG)
        self.write_prompts()
        self.start_server()
        self.start_two_workers()
        long = f"temperature = 0.9\nmin_new_tokens = {LONG}\n"
        whole = self.answers(self.submit_generate(ranks=1, tokens=LONG, generate=long))
        job = self.submit_generate(ranks=4, nodes=2, tokens=LONG, generate=long + "batch = 1")
        for kill, what in enumerate(("first rank", "node-b", "last rank", "server", "node-a")):
            self.wait_for_step(job, step=(kill + 1) * ROWS // 10)
            attempt = self.status(job)["attempt"]
            if what.endswith("rank"):
                ranks = sorted(self.ranks(), key=lambda pid: int(self.argument(pid, "--rank")))
                os.kill(ranks[0 if what == "first rank" else -1], signal.SIGKILL)
                harness.wait_until("the next attempt", lambda: self.status(job)["attempt"] > attempt)
            elif what == "server":
                self.kill("server")
                self.start_server()
            else:
                self.kill(what)
                self.start_worker(what, gpus="H100:2", engine=True)
        self.assertEqual(self.answers(job), whole)
        status = self.status(job)
        self.assertEqual(len(status["attempts"]), 3, status["attempts"])
        self.assertEqual(sorted(status["nodes"]), ["node-a", "node-b"])
        # Whichever node comes first in the second attempt, both had answers of these ranks.
        for rank in (2, 3):
            self.assertIn("answers are there already", self.sftctl("logs", job, "--rank", rank, "--attempt", 2).stdout)
        harness.wait_until("no answers on the nodes",
                           lambda: not list(self.dir.glob("node-*/checkpoints/*/answers")))

    @staticmethod
    def argument(pid, name):
        words = open(f"/proc/{pid}/cmdline", "rb").read().decode().split("\0")
        return words[words.index(name) + 1]

    def test_an_adapter_that_a_job_delivered_answers(self):
        prompts = self.write_prompts(rows=5)
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        trained = self.submit_training(steps=3)
        refused = self.sftctl("submit", self.write_job(adapter="job-nobody"))
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("job.adapter", refused.stderr)
        self.assert_ends(trained, SUCCEEDED)
        answered = self.answers(self.submit_generate(adapter=trained))
        self.assertEqual(self.sftctl("download", trained, "-o", self.dir / "models/trained").returncode, SUCCEEDED)
        self.assertEqual(self.answers(self.submit_generate(adapter=str(self.dir / "models/trained"))), answered)
        self.assertNotEqual(self.answers(self.submit_generate()), answered)
        self.assertEqual(len(answered.splitlines()), len(prompts.read_text().splitlines()))

        # One prompt by itself; the tiny model has no chat template.
        def one(*who):
            result = self.sftctl("generate", *who, "--raw", "--prompt", "hello", "--max-new-tokens", 12, "--json")
            self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
            return json.loads(result.stdout)["answer"]
        self.assertNotEqual(one(trained), one("--model", "small"))
        self.assertEqual(one(trained), one(trained))
        refused = self.sftctl("generate", trained, "--prompt", "hello")
        self.assertEqual(refused.returncode, USER_FAILURE, refused.stderr)
        self.assertIn("chat template", refused.stderr)

    def submit_training(self, steps, extra=""):
        train = self.dir / "train.toml"
        train.write_text(f"""
[job]
model = "small"
data = "rows.jsonl"
[compute]
gpu_type = "H100"
gpu_count = 1
[training]
mode = "lora"
[hyperparameters]
max_steps = {steps}
learning_rate = 0.1
sequence_length = 32
per_device_batch = 1
{extra}
""")
        (self.dir / "rows.jsonl").write_text((json.dumps({"text": "hello there"}) + "\n") * 4)
        result = self.sftctl("submit", train, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)["job"]

    def checkpoints(self, job):
        return json.loads(self.sftctl("checkpoints", job, "--json").stdout)

    def test_a_checkpoint_answers_while_its_job_runs_and_after(self):
        config = json.loads((self.model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True)
        job = self.submit_training(steps=10000000)
        self.wait_for_step(job, step=5)
        early = self.sftctl("chat", job, "--checkpoint", "latest")
        self.assertEqual(early.returncode, USAGE, early.stderr)
        self.assertIn("has no checkpoint yet", early.stderr)
        self.assertEqual(self.sftctl("checkpoint", job).returncode, SUCCEEDED)
        harness.wait_until("a checkpoint", lambda: self.checkpoints(job))
        step = self.checkpoints(job)[0]["step"]
        said = self.chat(job, "--checkpoint", "latest", "--base", lines=["hello"])
        self.assertEqual(said.returncode, SUCCEEDED, said.stderr)
        labels = [line[:line.index("]") + 1] for line in said.stdout.splitlines()]
        self.assertEqual(labels, [f"[step {step}]", "[base]"])
        answers = [line[line.index("]") + 2:] for line in said.stdout.splitlines()]
        self.assertNotEqual(*answers)
        self.assertEqual(self.status(job)["state"], "RUNNING")
        self.sftctl("cancel", job)
        self.assert_ends(job, 12)
        again = self.chat(job, "--checkpoint", step, lines=["hello"])
        self.assertEqual(again.stdout, answers[0] + "\n", again.stderr)

    def test_the_last_checkpoint_answers_as_what_was_delivered(self):
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        job = self.submit_training(steps=3, extra="[checkpoint]\nsave_strategy = \"steps\"\nsave_steps = 1")
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.checkpoints(job)[0]["step"], 3)
        def one(*which):
            result = self.sftctl("generate", job, *which, "--raw", "--prompt", "hello", "--max-new-tokens", 12, "--json")
            self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
            return json.loads(result.stdout)
        delivered, last = one(), one("--checkpoint", "latest")
        self.assertEqual(last["answer"], delivered["answer"])
        self.assertIn(f"step 3 of {job}", self.sftctl("status", last["job"]).stdout)
        step = self.checkpoints(job)[-1]["step"]
        self.assertIn(f"step {step} of {job}", self.sftctl("status", one("--checkpoint", step)["job"]).stdout)

    def chat(self, *arguments, lines):
        return subprocess.run(
            [str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "chat", *map(str, arguments)],
            input="".join(line + "\n" for line in lines), capture_output=True, text=True,
            timeout=harness.DEADLINE_S, check=False)

    def test_a_job_that_serves_is_talked_with_and_its_base_beside_it(self):
        config = json.loads((self.model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        job = self.submit_serving()
        first = self.chat(job, "--base", lines=["hello", "again"])
        self.assertEqual(first.returncode, SUCCEEDED, first.stderr)
        said = first.stdout.splitlines()
        self.assertEqual([line.split(" ")[0] for line in said], ["[trained]", "[base]"] * 2, first.stdout)
        self.assertNotEqual(said[0][len("[trained] "):], said[1][len("[base] "):])
        # The same question gets the same answer, from whoever asks beside.
        both = [self.chat(job, lines=["hello"]) for _ in range(2)]
        self.assertEqual({each.stdout for each in both}, {said[0][len("[trained] "):] + "\n"})
        self.assertEqual(self.status(job)["state"], "RUNNING")
        refused = self.chat(job, "--top-p", "2", lines=["hello"])
        self.assertIn("top_p is 2", refused.stderr)
        self.assertEqual(refused.returncode, 5, refused.stderr)
        # The conversation goes on after a question that failed.
        mixed = self.chat(job, lines=["hello", "x" * 1000, "again"])
        self.assertIn("the model takes 64 with the answer", mixed.stderr)
        self.assertIn("questions that were not answered: 1", mixed.stderr)
        self.assertEqual(mixed.stdout.splitlines(), [said[0][len("[trained] "):], "", said[2][len("[trained] "):]])
        # The model's 64 positions for each of four at once; longer answers get what there is.
        self.assertIn("keeps keys and values of 256 tokens", self.sftctl("logs", job).stdout)
        most = self.chat(job, "--max-new-tokens", 1000000, lines=["hello"])
        self.assertEqual(most.returncode, SUCCEEDED, most.stderr)
        self.sftctl("cancel", job)
        self.assert_ends(job, 12)
        # A chat without a job makes its own, and ends it.
        own = self.chat("--model", "small", "--max-new-tokens", 5, lines=["hello"])
        self.assertEqual(own.returncode, SUCCEEDED, own.stderr)
        made = json.loads(self.sftctl("list", "--json").stdout)[0]
        self.assertEqual(made["kind"], "serve")
        self.assert_ends(made["job"], 12)

    def ask(self, job, tokens):
        """What a program gets, without a second try."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v1/completions", headers={"Content-Type": "application/json"},
            data=json.dumps({"model": job, "prompt": "hello", "max_tokens": tokens, "temperature": 0.9, "seed": 7}).encode())
        try:
            with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as answer:
                return json.load(answer)["choices"][0]["text"]
        except urllib.error.HTTPError as error:
            return f"{error.code}: {error.read().decode()}"

    def await_processes(self, job, attempt):
        """Until all four of the attempt hold their model."""
        harness.wait_until("the attempt", lambda: self.status(job)["attempt"] == attempt)
        for rank in range(4):
            harness.wait_until(f"rank {rank}", lambda: f"rank {rank} of world size 4 serves" in self.sftctl(
                "logs", job, "--rank", rank, "--attempt", attempt).stdout)
        self.wait_for_state(job, "RUNNING")

    def test_a_job_that_serves_on_two_nodes_spreads_questions_and_loses_none_with_a_process(self):
        self.give_positions(4 * LONG)
        self.http = harness.free_port()
        self.start_server("--restart-delay", "0s", http=f"127.0.0.1:{self.http}")
        for node in ("node-a", "node-b"):
            self.start_worker(node, gpus="H100:2", engine=True, grace=harness.DEADLINE_S)
        job = self.submit_serving(compute="nodes = 2\ngpus_per_node = 2", generate=f"min_new_tokens = {LONG}")
        self.await_processes(job, attempt=1)
        alone = self.ask(job, LONG)
        self.assertGreater(len(alone), LONG)
        # Of four questions at once each process has one.
        ranks = sorted(self.ranks(), key=lambda pid: int(self.argument(pid, "--rank")))
        self.assertEqual(len(ranks), 4)
        for pid in ranks[:3]:
            os.kill(pid, signal.SIGSTOP)
            self.addCleanup(self.go_on, pid)
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(self.ask, job, LONG) for _ in range(4)]
            first = concurrent.futures.wait(answers, harness.DEADLINE_S, concurrent.futures.FIRST_COMPLETED)
            self.assertEqual([each.result() for each in first.done], [alone])
            os.kill(ranks[1], signal.SIGCONT)
            os.kill(ranks[2], signal.SIGCONT)
            harness.wait_until("two more answers", lambda: sum(each.done() for each in answers) >= 3)
            os.kill(ranks[0], signal.SIGKILL)
            self.assertEqual([each.result() for each in answers], [alone] * 4)
        # One dies amid its answers: another goes on with them, and the rest are ended before theirs stop.
        self.await_processes(job, attempt=2)
        whole = self.ask(job, 3 * LONG)
        self.assertTrue(whole.startswith(alone))
        last = max(self.ranks(), key=lambda pid: int(self.argument(pid, "--rank")))
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            answers = [threads.submit(self.ask, job, 3 * LONG) for _ in range(8)]
            concurrent.futures.wait(answers, harness.DEADLINE_S, concurrent.futures.FIRST_COMPLETED)
            os.kill(last, signal.SIGKILL)
            self.assertEqual([each.result() for each in answers], [whole] * 8)
        self.await_processes(job, attempt=3)
        self.assertEqual(self.ask(job, LONG), alone)

    @staticmethod
    def go_on(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def test_a_bad_prompt_is_named_before_the_queue_and_a_bad_option_too(self):
        self.write_prompts(rows=3)
        with open(self.dir / "prompts.jsonl", "a") as out:
            out.write('{"prompt": ""}\n')
        self.start_server()
        self.start_worker(gpus="H100:1", engine=True)
        refused = self.sftctl("submit", self.write_job())
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("prompts.jsonl: line 4: \"prompt\" is empty", refused.stderr)
        refused = self.sftctl("submit", self.write_job(generate="top_p = 2"))
        self.assertIn("generate.top_p", refused.stderr)
        # Of a file that the server cannot see the node finds it, before the model is loaded.
        shutil.copy(self.dir / "prompts.jsonl", self.dir / "models/prompts.jsonl")
        job = self.submit_generate("--dataset", f"node:{self.dir}/models/prompts.jsonl")
        self.assert_ends(job, USER_FAILURE)
        verdict = self.status(job)["verdict"]
        self.assertEqual(verdict["code"], "bad_prompt")
        self.assertIn("models/prompts.jsonl, line 4: \"prompt\" is empty", verdict["message"])
        self.assertEqual(verdict["process"], "prepare")


if __name__ == "__main__":
    harness.run_tests()
