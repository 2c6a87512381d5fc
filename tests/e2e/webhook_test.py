"""Webhooks with real processes: what a receiver gets of a job, verified by the library of Standard Webhooks; a receiver
that was down while the server was killed; what is refused."""

import base64
import hmac
import http.server
import json
import os
import pathlib
import subprocess
import threading
import time

import harness
from harness import ServiceCase, free_port, run_tests, wait_until

SUCCEEDED, UNREACHABLE, REFUSED = 0, 4, 5
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PYTHON = DEPS / "clients/bin/python"
VERIFY = pathlib.Path(__file__).parent / "webhook_verify.py"
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

    def verified(self, secret, deliveries):
        lines = "".join(json.dumps([secret, headers, body]) + "\n" for _, headers, body in deliveries)
        result = subprocess.run([str(PYTHON), str(VERIFY)], input=lines, capture_output=True, text=True, check=False,
                                timeout=harness.DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout.split()

    def test_the_stock_library_verifies_what_a_receiver_gets_of_a_job(self):
        probe = subprocess.run([str(PYTHON), "-c", "import standardwebhooks"], capture_output=True, check=False) \
            if PYTHON.exists() else None
        if probe is None or probe.returncode != 0:
            self.skipTest(f"standardwebhooks is missing in {PYTHON}: deploy/bootstrap --clients installs it")
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
