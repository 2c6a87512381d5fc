#!/usr/bin/env python3
"""Language models that grade answers of jobs of kind "evaluate": a local HTTP server plays the judge, and a serving job
of the same project is one. A judge that is away, busy or talks rubbish ends no evaluation, and its key is nowhere."""

import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import harness
from families_test import GOLDENS, write_tokenizer

SUCCEEDED, USAGE, USER_FAILURE = 0, 2, 10
KEY = "sk-nobody-may-see-this"


class FakeJudge:
    """Answers POST /v1/chat/completions as `reply(question, number)` says: a text, or (status, headers, body)."""

    def __init__(self, reply):
        judge = self
        self.asked, self.keys, self.lock = [], set(), threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with judge.lock:
                    judge.asked.append(body)
                    judge.keys.add(self.headers.get("Authorization"))
                    number = len(judge.asked)
                said = reply(body["messages"][0]["content"], number) if self.path == "/v1/chat/completions" else (404, {}, "")
                if isinstance(said, str):
                    said = (200, {}, json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}))
                status, headers, text = said
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments):
                pass

        class Server(ThreadingHTTPServer):
            request_queue_size = 128  # of 5, a busy machine resets what comes beyond

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class JudgeTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.model = self.dir / "models/small"
        shutil.copytree(GOLDENS / "families/qwen2_sliding_untied", self.model)
        shutil.copytree(self.model / "adapter", self.dir / "models/mine")
        shutil.rmtree(self.model / "adapter")
        write_tokenizer(self.model)
        config = json.loads((self.model / "tokenizer_config.json").read_text())
        config["chat_template"] = "{% for message in messages %}{{ message.content }}{% endfor %}"
        (self.model / "tokenizer_config.json").write_text(json.dumps(config))

    def make_tokens_numbers(self):
        """Every token of the tiny model that a judge's prompt does not need is a number."""
        path = self.model / "tokenizer.json"
        tokenizer = json.loads(path.read_text())
        needed = set("Question: q0? Answer: Right answer: r0 Grade it.0123456789")
        kept = {token: number for token, number in tokenizer["model"]["vocab"].items() if number < 4 or token in needed}
        numbers = {f"{number:03}": number for number in range(128) if number not in kept.values()}
        tokenizer["model"]["vocab"] = kept | numbers
        path.write_text(json.dumps(tokenizer))

    def start_judge(self, reply):
        judge = FakeJudge(reply)
        self.addCleanup(judge.close)
        return judge

    def start_both(self, *options):
        self.start_server("--restart-delay", "0s", *options)
        self.start_worker(gpus="H100:2", engine=True)

    def submit(self, grader, rows=6, more=""):
        rows = [{"prompt": f"q{i}?", "completion": f"r{i}"} for i in range(rows)]
        (self.dir / "heldout.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        file = self.dir / "evaluate.toml"
        file.write_text(f"""
[job]
kind = "evaluate"
model = "small"
data = "heldout.jsonl"
[compute]
gpu_type = "H100"
[generate]
max_new_tokens = 3
[evaluate]
metrics = ["exact_match"]
{more}
[[evaluate.grader]]
type = "judge"
name = "quality"
prompt = \"\"\"Question: {{prompt}}
Answer: {{answer}}
Right answer: {{reference}}
Grade it.\"\"\"
low = 0
high = 10
{grader}
""")
        return self.sftctl("submit", file, "--json")

    def report(self, *arguments, **options):
        result = self.submit(*arguments, **options)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        job = json.loads(result.stdout)["job"]
        self.assert_ends(job, SUCCEEDED)
        report = json.loads(self.sftctl("evaluate", job, "--json").stdout)
        return report, {metric["name"]: metric for metric in report["metrics"]}["quality"]

    def test_an_api_grades_with_a_projects_secret_that_is_nowhere_else(self):
        def reply(question, number):
            if number == 1:
                return 429, {"Retry-After": "1"}, json.dumps({"error": {"message": f"slow down, {KEY}"}})
            if "q3?" in question.replace(" ", ""):
                return "I cannot say."
            return "The reference says so.\nScore: 7"
        judge = self.start_judge(reply)
        self.start_both("--judge-url", judge.url)
        grader = f'url = "{judge.url}"\nmodel = "large"\nsecret = "judge_key"\nscore_pattern = "Score: ([0-9]+)"\n'
        refused = self.submit(grader)
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("sftctl admin project set default --secret judge_key=FILE", refused.stderr)
        (self.dir / "key").write_text(KEY + "\n")
        secret = self.sftctl("admin", "project", "set", "default", "--secret", f"judge_key={self.dir}/key", "--json")
        self.assertEqual(secret.returncode, SUCCEEDED, secret.stderr)
        self.assertEqual(json.loads(secret.stdout)[0]["secrets"], ["judge_key"])
        (self.dir / "key").unlink()
        report, quality = self.report(grader)
        self.assertEqual((quality["base"], quality["rows"], quality["ungraded"]), (70, 5, 1))
        self.assertIn("line 4: quality's reply holds no score", quality["first_ungraded"])
        self.assertEqual(report["samples"][0]["base"]["said"]["quality"], "The reference says so.\nScore: 7")
        self.assertEqual(len(judge.asked), 7, "six answers, one of them twice")
        self.assertEqual(judge.keys, {f"Bearer {KEY}"})
        asked = judge.asked[-1]
        self.assertEqual((asked["model"], asked["temperature"], asked["max_tokens"]), ("large", 0, 512))
        self.assertRegex(asked["messages"][0]["content"], r"^Question: q \d \?\nAnswer: .*\nRight answer: r \d\nGrade it\.$")
        backup = self.sftctl("admin", "backup")
        self.assertEqual(backup.returncode, SUCCEEDED, backup.stderr)
        holders = [path for path in self.dir.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
        self.assertEqual(holders, [self.dir / "server/secrets/default/judge_key"])
        self.assertEqual(holders[0].stat().st_mode & 0o777, 0o600)
        gone = self.sftctl("admin", "project", "set", "default", "--no-secret", "judge_key", "--json")
        self.assertEqual(json.loads(gone.stdout)[0]["secrets"], [])
        self.assertFalse(holders[0].exists())

    def test_a_judge_that_is_down_ends_no_evaluation_and_is_not_asked_for_ever(self):
        judge = self.start_judge(lambda question, number: (500, {}, "out of order"))
        self.start_both("--judge-url", judge.url)
        grader = f'url = "{judge.url}"\nmodel = "m"\nretries = 0\nscore_member = "score"\n'
        report, quality = self.report(grader, rows=60)
        self.assertEqual((quality["rows"], quality["ungraded"]), (0, 60))
        self.assertIn("line 1: quality gave no reply: it answers with HTTP status 500: out of order",
                      quality["first_ungraded"])
        self.assertIn("quality was not asked any more: ", json.dumps(report["samples"]))
        self.assertLess(len(judge.asked), 40, "those under way when it was given up are the most")
        judge.close()
        _, quality = self.report(grader, rows=2)
        self.assertRegex(quality["first_ungraded"], "line 1: quality gave no reply: .*[Cc]onn")

    def test_calls_have_a_budget_and_urls_are_the_operators(self):
        judge = self.start_judge(lambda question, number: (503, {}, "") if number % 2 else '{"score": "5"}')
        self.start_both("--judge-url", judge.url)
        grader = f'url = "{judge.url}"\nmodel = "m"\nretries = 5\nscore_member = "score"\nmax_calls = 6\n'
        _, quality = self.report(grader, rows=6)
        self.assertEqual(len(judge.asked), 6)
        self.assertEqual((quality["base"], quality["rows"]), (50, 3))
        self.assertIn("its 6 calls (max_calls) are used up", quality["first_ungraded"])
        result = self.submit(grader, rows=7)
        few = json.loads(result.stdout)["job"]
        self.assert_ends(few, USER_FAILURE)
        self.assertIn("7 answers are to be graded, and max_calls is 6", json.dumps(self.status(few)))
        refused = self.submit('url = "https://judge.example/v1"\nmodel = "m"\nscore_member = "score"\n')
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("--judge-url https://judge.example/v1", refused.stderr)

    def test_a_job_that_serves_is_a_judge(self):
        self.make_tokens_numbers()
        self.start_both()
        serving = self.submit_serving()
        # What the tiny model says is no sentence: the last digit of it is the score.
        grader = f'job = "{serving}"\nmax_tokens = 4\nscore_pattern = "([0-9])"\n'
        report, quality = self.report(grader)
        sides = [sample["base"] for sample in report["samples"]]
        digits = [re.findall("[0-9]", side.get("said", {}).get("quality", "")) for side in sides]
        scores = [10 * int(found[-1]) if found else None for found in digits]
        self.assertEqual([side["scores"].get("quality") for side in sides], scores)
        given = [score for score in scores if score is not None]
        self.assertTrue(given, sides)
        self.assertEqual((quality["rows"], quality.get("ungraded", 0)), (len(given), 6 - len(given)))
        self.assertAlmostEqual(quality["base"], sum(given) / len(given), delta=0.01)
        refused = self.submit('job = "job-bcdfghjkmn"\nscore_member = "score"\n')
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("job-bcdfghjkmn", refused.stderr)
        self.assertEqual(self.sftctl("cancel", serving).returncode, SUCCEEDED)


if __name__ == "__main__":
    harness.run_tests()
