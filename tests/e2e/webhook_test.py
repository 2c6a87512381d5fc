"""Webhooks with real processes: what a receiver gets of a job, verified by the library of Standard Webhooks; a receiver
that was down while the server was killed; what is refused."""

import base64
import hmac
import http.server
import json
import os
import pathlib
import re
import subprocess
import threading
import time

import harness
from harness import ServiceCase, free_port, run_tests, wait_until

SUCCEEDED, USAGE, UNREACHABLE, REFUSED, USER_FAILURE, CANCELLED = 0, 2, 4, 5, 10, 12
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PYTHON = DEPS / "clients/bin/python"
VERIFY = pathlib.Path(__file__).parent / "webhook_verify.py"
UNWRAP = pathlib.Path(__file__).parent / "webhook_unwrap.py"
ALLOW = ("--webhook-allow", "127.0.0.0/8", "--restart-delay", "0s")


class Receiver:
    """Keeps what comes, and answers with `status`."""

    def __init__(self, port):
        self.got = []
        self.status = 204
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body.decode()))
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def types(self):
        return [json.loads(body)["type"] for _, _, body in self.got]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


def signed(secret, headers, body, minutes):
    """The head of a delivery of that many minutes from now, signed as the server does."""
    at = int(time.time()) + 60 * minutes
    key = base64.b64decode(secret.removeprefix("whsec_"))
    digest = hmac.new(key, f"{headers['webhook-id']}.{at}.{body}".encode(), "sha256").digest()
    return {**headers, "webhook-timestamp": str(at), "webhook-signature": "v1," + base64.b64encode(digest).decode()}


class WebhookTest(ServiceCase):

    def receiver(self, port):
        receiver = Receiver(port)
        self.addCleanup(receiver.stop)
        return receiver

    def add(self, port, *arguments):
        result = self.sftctl("webhook", "add", f"http://127.0.0.1:{port}/hook", "--json", *arguments)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)

    def taken(self, program, secret, deliveries):
        """What a receiver's program says of each."""
        lines = "".join(json.dumps([secret, headers, body]) + "\n" for _, headers, body in deliveries)
        result = subprocess.run([str(PYTHON), str(program)], input=lines, capture_output=True, text=True, check=False,
                                timeout=harness.DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.splitlines()

    def verified(self, secret, deliveries):
        return self.taken(VERIFY, secret, deliveries)

    def needs(self, package):
        probe = subprocess.run([str(PYTHON), "-c", f"import {package}"], capture_output=True, check=False) \
            if PYTHON.exists() else None
        if probe is None or probe.returncode != 0:
            self.skipTest(f"{package} is missing in {PYTHON}: deploy/bootstrap --clients installs it")

    def test_the_stock_library_verifies_what_a_receiver_gets_of_a_job(self):
        self.needs("standardwebhooks")
        self.start_server(*ALLOW)
        self.start_worker(gpus="H100:2")
        port = free_port()
        receiver = self.receiver(port)
        hook = self.add(port)
        job = self.submit("ok", ranks=1)
        self.assert_ends(job, SUCCEEDED)
        wait_until("the end of the job", lambda: "job.succeeded" in receiver.types())
        told = [kind for kind in receiver.types() if kind.startswith("job.")]
        self.assertEqual(told, ["job.queued", "job.started", "job.succeeded"])
        for _, _, body in receiver.got:
            self.assertEqual(json.loads(body)["data"]["id"], job)
        self.assertEqual(set(self.verified(hook["secret"], receiver.got)), {"good"})
        path, headers, body = receiver.got[-1]
        self.assertEqual(path, "/hook")
        other = json.loads(self.sftctl("webhook", "rotate", hook["id"], "--json").stdout)["secret"]
        self.assertEqual(self.verified(hook["secret"], [(path, headers, body.replace("succeeded", "failed"))]), ["bad"])
        self.assertEqual(self.verified(other, [(path, headers, body)]), ["bad"])
        # What somebody has kept and sends again is refused, though the signature is right: it is too old, or of a clock ahead.
        for minutes, verdict in ((-6, "bad"), (-4, "good"), (4, "good"), (6, "bad")):
            self.assertEqual(self.verified(hook["secret"], [(path, signed(hook["secret"], headers, body, minutes), body)]),
                             [verdict], minutes)
        # After the rotation receivers with either secret are content; a replay has its old id.
        delivered = json.loads(self.sftctl("webhook", "deliveries", hook["id"], "--json").stdout)
        self.assertEqual(delivered[0]["state"], "delivered")
        self.assertEqual(delivered[0]["id"], headers["webhook-id"])
        count = len(receiver.got)
        self.assertEqual(self.sftctl("webhook", "replay", hook["id"], delivered[0]["id"]).returncode, SUCCEEDED)
        wait_until("the replay", lambda: len(receiver.got) > count)
        again = receiver.got[-1]
        self.assertEqual((again[1]["webhook-id"], again[2]), (headers["webhook-id"], body))
        self.assertEqual(self.verified(hook["secret"], [again]) + self.verified(other, [again]), ["good", "good"])

    def test_a_jobs_webhook_hears_of_its_job_with_the_secret_that_the_submit_said(self):
        self.needs("standardwebhooks")
        self.start_server(*ALLOW)
        self.start_worker(gpus="H100:2")
        port = free_port()
        receiver = self.receiver(port)
        notify = f'[notify]\nwebhook = "http://127.0.0.1:{port}/mine"\nevents = ["job.queued", "job.succeeded"]'
        result = self.sftctl("submit", self.write_job("ok", ranks=1, tables=notify))
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        job = result.stdout.strip()
        secret = re.search(r"whsec_\S+(?=,)", result.stderr)[0]
        self.assert_ends(job, SUCCEEDED)
        other = self.submit("ok", ranks=1, name="other")
        self.assert_ends(other, SUCCEEDED)
        wait_until("the end of the job", lambda: "job.succeeded" in receiver.types())
        told = [(path, json.loads(body)["type"], json.loads(body)["data"]["id"]) for path, _, body in receiver.got]
        self.assertEqual(told, [("/mine", "job.queued", job), ("/mine", "job.succeeded", job)])
        self.assertEqual(self.verified(secret, receiver.got), ["good", "good"])
        # The next job of the same user goes by the same webhook, whose secret nothing says any more.
        result = self.sftctl("submit", self.write_job("ok", ranks=1, tables=notify), "--json")
        hook = json.loads(result.stdout)["hooks"][0]
        self.assertNotIn("secret", hook)
        wait_until("its end", lambda: receiver.types().count("job.succeeded") == 2)
        self.assertEqual(set(self.verified(secret, receiver.got)), {"good"})
        status = self.sftctl("status", job).stdout
        self.assertIn(f"told       http://127.0.0.1:{port}/mine ({hook['webhook']}): job.queued, job.succeeded", status)
        for shown in (status, self.sftctl("status", job, "--json").stdout, self.sftctl("webhook", "list", "--json").stdout,
                      self.sftctl("webhook", "deliveries", hook["webhook"], "--json").stdout):
            self.assertNotIn("whsec_", shown)
        listed = json.loads(self.sftctl("webhook", "list", "--json").stdout)
        self.assertEqual([(each["id"], each["of_jobs"]) for each in listed], [(hook["webhook"], True)])
        count = len(receiver.got)
        first = json.loads(self.sftctl("webhook", "deliveries", hook["webhook"], "--json").stdout)[-1]
        self.assertEqual(self.sftctl("webhook", "replay", hook["webhook"], first["id"]).returncode, SUCCEEDED)
        wait_until("the replay", lambda: len(receiver.got) > count)
        self.assertEqual(receiver.got[-1][1]["webhook-id"], first["id"])
        # Whoever removes it hears no more of the jobs that there are.
        self.assertEqual(self.sftctl("webhook", "remove", hook["webhook"]).returncode, SUCCEEDED)
        self.assertNotIn("told", self.sftctl("status", job).stdout)
        self.assertEqual(list((self.dir / "server/webhooks").iterdir()), [])

    def test_a_jobs_webhook_may_lead_nowhere_that_a_projects_may_not(self):
        self.start_server()
        self.start_worker(gpus="H100:2")
        for url in ("http://127.0.0.1:9/", "https://localhost/", "https://169.254.169.254/latest", "https://10.0.0.1/",
                    "https://[::1]/", "ftp://example.com/", "mailto:ann@example.com", "https://ann:pw@example.com/"):
            job = self.write_job("ok", ranks=1, tables=f'[notify]\nwebhook = "{url}"')
            for command in (("submit", job), ("submit", job, "--dry-run"),
                            ("submit", self.write_job("ok", ranks=1, name="set"), "--set", f"notify.webhook={url}")):
                result = self.sftctl(*command)
                self.assertEqual(result.returncode, USAGE, (command, result.stdout))
                self.assertIn("notify.webhook", result.stderr)
        self.assertEqual(json.loads(self.sftctl("list", "--json").stdout), [])
        self.assertFalse(any((self.dir / "server/webhooks").glob("*")))

    def test_the_stock_openai_client_unwraps_what_openais_format_sends(self):
        self.needs("openai")
        self.start_server(*ALLOW)
        self.start_worker(gpus="H100:2")
        port = free_port()
        receiver = self.receiver(port)
        hook = self.add(port, "--format", "openai")
        self.assertEqual(hook["format"], "openai")
        good = self.submit("ok", ranks=1, name="good")
        self.assert_ends(good, SUCCEEDED)
        bad = self.submit("user_error", ranks=1, name="bad")
        self.assert_ends(bad, USER_FAILURE)
        gone = self.submit("ok", ranks=1, name="gone", compute='[scheduling]\nhold = true')
        self.assertEqual(self.sftctl("cancel", gone).returncode, SUCCEEDED)
        wait_until("three events", lambda: len(receiver.got) == 3)
        self.assertEqual(self.taken(UNWRAP, hook["secret"], receiver.got),
                         [f"FineTuningJobSucceededWebhookEvent fine_tuning.job.succeeded {good}",
                          f"FineTuningJobFailedWebhookEvent fine_tuning.job.failed {bad}",
                          f"FineTuningJobCancelledWebhookEvent fine_tuning.job.cancelled {gone}"])
        path, headers, body = receiver.got[0]
        self.assertEqual(self.taken(UNWRAP, hook["secret"], [(path, headers, body.replace(good, bad))]), ["bad"])
        other = self.add(port, "--format", "openai", "--events", "fine_tuning.job.failed")["secret"]
        self.assertEqual(self.taken(UNWRAP, other, [(path, headers, body)]), ["bad"])
        # What somebody kept and sends again after 6 minutes, or made for later: the signature is right, its time is not.
        for minutes, taken in ((-6, False), (-4, True), (4, True), (6, False)):
            sent = [(path, signed(hook["secret"], headers, body, minutes), body)]
            self.assertEqual(self.taken(UNWRAP, hook["secret"], sent) != ["bad"], taken, minutes)
        result = self.sftctl("webhook", "add", f"http://127.0.0.1:{port}/", "--format", "openai", "--events", "job.failed")
        self.assertEqual((result.returncode, "fine_tuning.job.failed" in result.stderr), (USAGE, True), result.stderr)

    def test_what_happened_while_the_receiver_was_down_is_told_though_the_server_was_killed(self):
        self.start_server(*ALLOW)
        self.start_worker(gpus="H100:2")
        port = free_port()
        hook = self.add(port, "--events", "job.queued,job.failed")
        job = self.submit("user_error", ranks=1, name="mine")
        self.assert_ends(job, 10)
        tried = lambda: [each for each in json.loads(self.sftctl("webhook", "deliveries", hook["id"], "--json").stdout)
                         if each["tries"] > 0]
        wait_until("a try", tried)
        self.assertIn("refused", tried()[0]["error"])
        self.kill("server")
        receiver = self.receiver(port)
        self.start_server(*ALLOW)
        wait_until("both events", lambda: sorted(set(receiver.types())) == ["job.failed", "job.queued"])
        failed = next(json.loads(body)["data"] for _, _, body in receiver.got if json.loads(body)["type"] == "job.failed")
        self.assertEqual(failed["verdict"]["domain"], "user")
        receiver.status = 410
        result = self.sftctl("webhook", "test", hook["id"])
        self.assertEqual(result.returncode, UNREACHABLE)
        self.assertIn("410", result.stdout)
        self.assertIn("off: the receiver answered 410", self.sftctl("webhook", "list").stdout)
        receiver.status = 200
        self.assertEqual(self.sftctl("webhook", "test", hook["id"]).returncode, SUCCEEDED)
        listed = json.loads(self.sftctl("webhook", "list", "--json").stdout)
        self.assertIsNone(listed[0]["off_time"])
        self.assertEqual(self.sftctl("webhook", "remove", hook["id"]).returncode, SUCCEEDED)
        self.assertEqual(json.loads(self.sftctl("webhook", "list", "--json").stdout), [])
        self.assertEqual(list((self.dir / "server/webhooks").iterdir()), [])

    def test_an_address_inside_is_refused_where_no_operator_allows_it(self):
        self.start_server()
        for url in ("http://127.0.0.1:9/", "https://localhost/", "https://169.254.169.254/latest", "https://10.0.0.1/",
                    "https://[::1]/"):
            result = self.sftctl("webhook", "add", url)
            self.assertEqual(result.returncode, REFUSED, url + result.stdout)
            self.assertIn("--webhook-allow", result.stderr)
        self.assertEqual(json.loads(self.sftctl("webhook", "list", "--json").stdout), [])


if __name__ == "__main__":
    run_tests()
