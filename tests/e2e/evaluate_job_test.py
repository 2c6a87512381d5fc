#!/usr/bin/env python3
"""Jobs of kind "evaluate" and validation by answers, under the real service: what a job trained is graded
beside its base on held-out rows, by the command that a user types."""

import json
import os
import signal

import harness
from families_test import copy_small_model

SUCCEEDED, USAGE, USER_FAILURE = 0, 2, 10
# Three answers that the tiny model can learn; its tokenizer, of letters, decodes them with spaces between.
ROWS = [("ab?", "yes"), ("cd?", "no"), ("ef?", "42")]


def rows_of(count):
    return [{"prompt": ROWS[i % 3][0], "completion": ROWS[i % 3][1]} for i in range(count)]


class EvaluateJobTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "models/small"
        copy_small_model(self.model)
        self.held_out = self.write("heldout.jsonl", rows_of(12))
        self.write("rows.jsonl", rows_of(30))

    def write(self, name, rows):
        path = self.dir / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def start_both(self, gpus=2):
        self.start_server()
        self.start_worker(gpus=f"H100:{gpus}", engine=True)

    def train(self, ranks=1, rest="", **options):
        job = self.dir / "train.toml"
        job.write_text(f"""
[job]
model = "small"
data = "rows.jsonl"
[compute]
gpu_type = "H100"
gpu_count = {ranks}
[training]
mode = "lora"
[hyperparameters]
max_steps = {options.get("steps", 60)}
learning_rate = 0.03
sequence_length = 32
per_device_batch = 6
{options.get("hyper", "")}
[lora]
r = 8
modules_to_save = {options.get("whole", "[]")}
{rest}
""")
        return self.sftctl("submit", job, "--json")

    def trained(self, **options):
        result = self.train(**options)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        job = json.loads(result.stdout)["job"]
        self.assert_ends(job, SUCCEEDED)
        return job

    def evaluate(self, *arguments):
        result = self.sftctl("evaluate", *arguments, "--max-new-tokens", 4, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)

    def test_what_was_trained_is_graded_beside_its_base(self):
        self.start_both()
        job = self.trained()
        metrics = "exact_match,number,f1,rouge_l,bleu,chrf"
        report = self.evaluate(job, "--data", self.held_out, "--metrics", metrics)
        found = {metric["name"]: metric for metric in report["metrics"]}
        self.assertEqual(list(found), metrics.split(",") + ["loss", "perplexity", "bits_per_byte"])
        self.assertEqual(report["rows"], 12)
        exact = found["exact_match"]
        self.assertEqual((exact["base"], exact["tuned"]), (0, 100), report["samples"][:3])
        self.assertEqual((exact["only_base"], exact["only_tuned"]), (0, 12))
        self.assertAlmostEqual(exact["mcnemar_p"], 2 / 2**12)
        self.assertLess(found["loss"]["tuned"], found["loss"]["base"] / 2)
        self.assertLess(found["loss"]["high"], 0)
        # Only one row in three has a number as its reference.
        self.assertEqual((found["number"]["rows"], found["number"]["ungraded"]), (4, 8))
        self.assertIn("line 1: the reference holds no number", found["number"]["first_ungraded"])
        sample = report["samples"][2]
        self.assertEqual((sample["line"], sample["prompt"], sample["reference"]), (3, "e f ?", "4 2"))
        self.assertEqual(sample["tuned"]["answer"], "4 2")
        # The table and the rows side by side, once more and from the job.
        shown = self.sftctl("evaluate", report["job"], "--samples", 1)
        self.assertEqual(shown.returncode, SUCCEEDED, shown.stderr)
        self.assertRegex(shown.stdout, r"exact_match +0\.0000 +100\.00 +\+100\.00 +\+100\.00 to \+100\.00")
        self.assertIn("with 12 rows a difference below about 29 points cannot be told from chance", shown.stdout)
        self.assertRegex(shown.stdout, r"line 1\n +prompt +a b \?\n +reference +y e s\n +base ")
        self.assertEqual(shown.stdout.count("\nline "), 1)
        status = self.status(report["job"])
        self.assertEqual((status["kind"], status["progress"]["total_steps"]), ("evaluate", 12))
        # Several evaluations beside each other.
        base = self.evaluate("--model", "small", "--gpu-type", "H100", "--data", self.held_out)
        self.assertNotIn("tuned", base["metrics"][0])
        both = self.sftctl("compare", report["job"], base["job"])
        self.assertEqual(both.returncode, SUCCEEDED, both.stderr)
        self.assertRegex(both.stdout, r"exact_match +100\.00 +0\.0000")
        self.assertRegex(both.stdout, rf"exact_match +{base['job']} +-100\.00 +-100\.00 to -100\.00 .* 12/0 +12")
        self.assertIn("\nline 1\n", both.stdout)

    def test_scores_do_not_depend_on_ranks_nodes_or_kills(self):
        self.start_both()
        job = self.trained(steps=5)
        held_out = self.write("many.jsonl", rows_of(600))

        def scores(evaluation):
            folder = self.dir / f"scores-{evaluation}"
            self.assertEqual(self.sftctl("download", evaluation, "-o", folder).returncode, SUCCEEDED)
            self.assertEqual(sorted(path.name for path in folder.iterdir()), ["evaluation.json", "scores.jsonl"])
            return (folder / "scores.jsonl").read_text()
        whole = scores(self.evaluate(job, "--data", held_out)["job"])
        self.assertEqual(len(whole.splitlines()), 600)

        def killed(nodes):
            text = self.dir / "evaluate.toml"
            text.write_text(f"""
[job]
kind = "evaluate"
model = "small"
adapter = "{job}"
data = "many.jsonl"
[compute]
gpu_type = "H100"
gpu_count = 2
nodes = {nodes}
[generate]
max_new_tokens = 4
batch = 1
""")
            result = self.sftctl("submit", text, "--json")
            self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
            evaluation = json.loads(result.stdout)["job"]
            self.wait_for_step(evaluation, step=100)
            os.kill(harness.processes_with("sft-rank generate --launch " + str(self.dir))[0], signal.SIGKILL)
            self.assert_ends(evaluation, SUCCEEDED)
            return evaluation
        self.assertEqual(scores(killed(nodes=1)), whole)
        self.start_worker("node-b", gpus="H100:2", engine=True)
        of_nodes = killed(nodes=2)
        self.assertEqual(scores(of_nodes), whole)
        self.assertEqual(sorted(self.status(of_nodes)["nodes"]), ["node-a", "node-b"])

    def test_an_adapter_that_replaces_tensors_is_graded_after_its_base(self):
        self.start_both()
        job = self.trained(steps=20, whole='["lm_head"]')
        report = self.evaluate(job, "--data", self.held_out)
        loss = {metric["name"]: metric for metric in report["metrics"]}["loss"]
        self.assertEqual(loss["rows"], 12)
        self.assertLess(loss["tuned"], loss["base"])

    def test_what_is_wrong_is_named_when_it_is_submitted(self):
        self.start_both()
        job = self.trained(steps=2)
        for arguments, key, says in [
                (("--metrics", "rogue_l"), "evaluate.metrics", '"rogue_l" is no metric of answers; there are'),
                (("--metrics", "regex"), "evaluate.metrics", "regex reads a pattern: set evaluate.pattern"),
                (("--metrics", "regex", "--pattern", "(a"), "evaluate.pattern", "missing )"),
                (("--pattern", "a"), "evaluate.pattern", "is read by the metric regex alone"),
                (("--set", "generate.num_samples=2"), "generate.num_samples", "grades one answer to each row"),
                (("--set", "lora.r=2"), "lora.r", "trains nothing")]:
            refused = self.sftctl("evaluate", job, "--data", self.held_out, *arguments)
            self.assertEqual(refused.returncode, USAGE, refused.stderr)
            self.assertIn(key, refused.stderr)
            self.assertIn(says, refused.stderr)
        refused = self.sftctl("evaluate", job)
        self.assertIn("is no evaluation: name the held-out rows", refused.stderr)
        text = self.write("text.jsonl", [{"text": "hello there"}])
        failed = self.sftctl("evaluate", job, "--data", text)
        self.assertEqual(failed.returncode, USER_FAILURE, failed.stderr)
        self.assertIn("no row has a question and its answer", failed.stderr)

    def test_validation_answers_rows_and_the_best_of_them_is_delivered(self):
        self.start_both()
        validation = """
[data]
val = "heldout.jsonl"
[training.validation]
predict_with_generate = true
eval_steps = 10
generate_max_new_tokens = 4
generate_num_beams = 2
metric_for_best_model = "exact_match"
save_best_model_at_end = true
early_stopping_patience = 2
"""
        job = self.trained(ranks=2, steps=200, hyper="gradient_accumulation_steps = 1", rest=validation)
        log = self.sftctl("logs", job).stdout
        self.assertRegex(log, r"val\.exact_match 0\.0000, val\.rouge_1 .* over 12 answers")
        self.assertRegex(log, r"val\.exact_match 100\.0000, .* over 12 answers")
        self.assertRegex(log, r"the training ends after step \d+: no val\.exact_match better than 100")
        self.assertRegex(log, r"delivering the weights of step \d+, whose val\.exact_match is the best: 100")
        history = self.sftctl("events", job).stdout
        self.assertRegex(history, r"after step 0: val\.exact_match 0\.0000.* over 12 answers, val\.loss")
        self.assert_curves(job)
        report = self.evaluate(job, "--data", self.held_out)
        self.assertEqual(report["metrics"][0]["tuned"], 100)
        refused = self.train(rest="[data]\nval = \"heldout.jsonl\"\n[training.validation]\n"
                                  "metric_for_best_model = \"val.rouge_l\"\n")
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("metric_for_best_model", refused.stderr)
        self.assertIn("predict_with_generate", refused.stderr)

    def assert_curves(self, job):
        lines = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        validations = [line for line in lines if line["type"] == "validation"]
        names = [f"val.{name}" for name in ("exact_match", "rouge_1", "rouge_2", "rouge_l", "rouge_lsum",
                                          "perplexity", "bits_per_byte")]
        for line in validations:
            self.assertEqual([key for key in line if key.startswith("val.") and key != "val.loss"], names)
        self.assertEqual(validations[0]["val.exact_match"], 0)
        self.assertEqual(max(line["val.exact_match"] for line in validations), 100)
        last = validations[-1]["val.exact_match"]
        table = self.sftctl("metrics", job).stdout.splitlines()
        self.assertIn("VAL.EXACT_MATCH", table[0])
        self.assertTrue(any("100.00" in line for line in table))
        self.assertEqual(self.status(job)["progress"]["val.exact_match"], last)
        self.assertIn(f"val.exact_match {last:.2f}", self.sftctl("status", job).stdout)
        runs = json.loads(self.sftctl("compare", job, job, "--json").stdout)["runs"]
        self.assertEqual(runs[0]["val.rouge_l"], validations[-1]["val.rouge_l"])
        self.assertRegex(self.sftctl("compare", job, job).stdout, rf"val\.exact_match +{last:.2f} +{last:.2f}")
        folder = self.dir / "curves"
        self.sftctl("metrics", job, "--tensorboard", folder)
        events = b"".join(path.read_bytes() for path in (folder / job).iterdir())
        self.assertEqual(events.count(b"eval/exact_match"), len(validations))

    def test_programs_of_the_users_grade_beside_the_metrics(self):
        roots = self.dir / "graders"
        roots.mkdir()
        program = roots / "score"
        program.write_text("""#!/usr/bin/env python3
import json, os, socket, sys
row = json.load(sys.stdin)
answer = row["sample"]["output_text"].replace(" ", "")
if row["item"]["line"] == 5:
    sys.exit("not this one")
open("scratch", "w").write(answer)
try:
    socket.create_connection(("127.0.0.1", 1), 1)
except OSError as error:
    said = str(error)
print(json.dumps({"score": 10 if answer == row["item"]["reference"].replace(" ", "") else 0,
                  "text": f"{said}, {sorted(os.environ)}"}))
""")
        program.chmod(0o755)
        grader = f"""
[[evaluate.grader]]
type = "command"
name = "mine"
command = ["{program}"]
high = 10
"""
        self.start_server()
        self.start_worker(gpus="H100:2", engine=True, options=("--grader-root", roots))
        job = self.trained()
        file = self.dir / "evaluate.toml"
        text = f"""
[job]
kind = "evaluate"
model = "small"
adapter = "{job}"
data = "heldout.jsonl"
[compute]
gpu_type = "H100"
gpu_count = 2
[generate]
max_new_tokens = 4
num_beams = 3
[evaluate]
metrics = ["exact_match"]
"""
        file.write_text(text + grader)
        result = self.sftctl("submit", file, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        evaluation = json.loads(result.stdout)["job"]
        self.assert_ends(evaluation, SUCCEEDED)
        report = json.loads(self.sftctl("evaluate", evaluation, "--json").stdout)
        found = {metric["name"]: metric for metric in report["metrics"]}
        self.assertEqual(list(found), ["exact_match", "mine", "loss", "perplexity", "bits_per_byte"])
        self.assertEqual((found["mine"]["base"], found["mine"]["tuned"]), (0, 100))
        self.assertEqual(found["mine"]["rows"], 11)
        self.assertEqual(found["mine"]["ungraded"], 1)
        self.assertEqual(found["mine"]["first_ungraded"], "line 5: mine ended with exit code 1: not this one")
        self.assertIn("mine", self.sftctl("evaluate", evaluation).stdout)
        said = report["samples"][0]["tuned"]["said"]["mine"]
        self.assertIn("Permission denied, ['HOME', 'LANG', 'PATH', 'TMPDIR']", said)
        self.assertEqual(report["samples"][4]["base"]["ungraded"],
                         {"mine": "mine ended with exit code 1: not this one"})
        for command, why in (("/bin/true", "is no program below"), (str(roots / "none"), "is no program below")):
            file.write_text(text + grader.replace(str(program), command))
            refused = json.loads(self.sftctl("submit", file, "--json").stdout)["job"]
            self.assert_ends(refused, USER_FAILURE)
            self.assertIn(why, json.dumps(self.status(refused)))

    def test_programs_run_only_where_an_operator_lets_them(self):
        self.start_both()
        file = self.dir / "evaluate.toml"
        file.write_text("""
[job]
kind = "evaluate"
model = "small"
data = "heldout.jsonl"
[compute]
gpu_type = "H100"
[[evaluate.grader]]
type = "command"
name = "mine"
command = ["/bin/true"]
""")
        refused = self.sftctl("submit", file)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("evaluate.grader", refused.stderr)
        self.assertIn("--grader-root FOLDER", refused.stderr)

    def test_answers_that_take_too_long_do_not_count_and_become_fewer(self):
        self.start_both()
        self.write("heldout.jsonl", rows_of(60))
        # Before the training no answer ends by itself.
        job = self.trained(ranks=2, rest="""
[data]
val = "heldout.jsonl"
[training.validation]
predict_with_generate = true
eval_steps = 30
generate_max_new_tokens = 20000
generate_seconds = 1
""")
        history = self.sftctl("events", job).stdout
        for rank in (0, 1):
            self.assertRegex(history, f"rank {rank}: validation answers took longer than generate_seconds = 1: those "
                                      r"of this validation do not count, and from now on this rank answers \d+ of its "
                                      r"30 rows")
        self.assertNotIn("after step 0", history)
        self.assertRegex(history, r"after step 60: val\.exact_match .* over \d+ answers")


if __name__ == "__main__":
    harness.run_tests()
