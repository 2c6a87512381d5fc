"""Mail with real processes, taken by a real SMTP server (aiosmtpd): of projects, of the server and of jobs that ask for
it; with STARTTLS; over a relay that is down, that puts off and that refuses; names that would be headers."""

import email
import email.policy
import json
import os
import pathlib
import shutil
import socket
import subprocess
import unittest

from harness import ServiceCase, free_port, run_tests, wait_until

SUCCEEDED, USAGE, UNREACHABLE, REFUSED, USER_FAILURE = 0, 2, 4, 5, 10
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PYTHON = DEPS / "clients/bin/python"
RELAY = pathlib.Path(__file__).parent / "mail_relay.py"


class MailTest(ServiceCase):

    def setUp(self):
        super().setUp()
        probe = subprocess.run([str(PYTHON), "-c", "import aiosmtpd"], capture_output=True, check=False) \
            if PYTHON.exists() else None
        if probe is None or probe.returncode != 0:
            self.skipTest(f"aiosmtpd is missing in {PYTHON}: deploy/bootstrap --clients installs it")
        self.relay_port = free_port()
        self.taken = self.dir / "mails.jsonl"

    def start_relay(self, *options):
        self.start("relay", PYTHON, RELAY, self.relay_port, self.taken, *options)

        def answers():
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.relay_port)) == 0

        wait_until("the relay", answers)

    def start_mailing_server(self, *options):
        self.start_server("--restart-delay", "0s", "--mail-relay", f"127.0.0.1:{self.relay_port}", "--mail-from",
                          "sft@example.com", *options)

    def mails(self):
        """(envelope, message) of each that came, in their order."""
        if not self.taken.exists():
            return []
        lines = [json.loads(line) for line in self.taken.read_text().splitlines()]
        return [(line, email.message_from_string(line["data"], policy=email.policy.default)) for line in lines]

    def subjects(self):
        return [message["Subject"] for _, message in self.mails()]

    def add(self, address, *arguments):
        result = self.sftctl("webhook", "add", f"mailto:{address}", "--json", *arguments)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return json.loads(result.stdout)

    def deliveries(self, hook):
        return json.loads(self.sftctl("webhook", "deliveries", hook, "--json").stdout)

    def test_a_project_the_server_and_a_job_are_told_by_mail(self):
        self.start_relay()
        self.start_mailing_server()
        self.start_worker(gpus="H100:2")
        hook = self.add("team@example.com", "--events", "job.started,job.succeeded")
        self.assertEqual((hook["format"], hook["secret"]), ("mail", ""))
        self.add("ops@example.com", "--of-server", "--events", "job.failed")
        job = self.submit("ok", ranks=1, name="mine",
                          tables='[notify]\nmail = ["ann@example.com"]\nevents = ["job.queued", "job.succeeded"]')
        self.assert_ends(job, SUCCEEDED)
        wait_until("the mails", lambda: len(self.mails()) == 4)
        told = sorted((envelope["to"][0], message["Subject"]) for envelope, message in self.mails())
        title = f": mine ({job}) in project default"
        self.assertEqual(told, [("ann@example.com", "job.queued" + title), ("ann@example.com", "job.succeeded" + title),
                                ("team@example.com", "job.started" + title), ("team@example.com", "job.succeeded" + title)])
        envelope, message = self.mails()[-1]
        self.assertEqual(envelope["from"], "sft@example.com")
        self.assertFalse(envelope["tls"], "in the clear on this machine")
        self.assertEqual(message["Auto-Submitted"], "auto-generated")
        self.assertIn(f"sftctl status {job}", message.get_content())
        ids = [message["Message-ID"] for _, message in self.mails()]
        self.assertEqual(len(set(ids)), 4)
        # Another job does not ask for it; a failed one concerns the server's.
        failed = self.submit("user_error", ranks=1, name="other")
        self.assert_ends(failed, USER_FAILURE)
        wait_until("the failure", lambda: any(envelope["to"] == ["ops@example.com"] for envelope, _ in self.mails()))
        self.assertEqual([to["to"] for to, _ in self.mails()].count(["ann@example.com"]), 2)
        listed = json.loads(self.sftctl("webhook", "list", "--json").stdout)
        self.assertEqual(sorted((each["url"], each["of_jobs"]) for each in listed),
                         [("mailto:ann@example.com", True), ("mailto:team@example.com", False)])
        result = self.sftctl("webhook", "rotate", hook["id"])
        self.assertEqual((result.returncode, "mail has no secret" in result.stderr), (REFUSED, True), result.stderr)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl")
    def test_a_relay_is_told_nothing_before_tls_with_a_good_certificate(self):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
                        "-days", "2", "-subj", "/CN=relay", "-addext", "subjectAltName=IP:127.0.0.1"],
                       check=True, capture_output=True, cwd=self.dir)
        self.start_relay("--tls", self.dir / "cert.pem", self.dir / "key.pem")
        self.start_mailing_server("--mail-tls", "starttls")
        hook = self.add("ann@example.com")
        result = self.sftctl("webhook", "test", hook["id"])
        self.assertEqual(result.returncode, UNREACHABLE)
        self.assertIn("certificate is not good", result.stdout)
        self.kill("server")
        self.start_mailing_server("--mail-tls", "starttls", "--mail-ca", self.dir / "cert.pem")
        wait_until("the mail", self.mails)
        self.assertTrue(self.mails()[0][0]["tls"])
        # A relay without it gets nothing.
        self.kill("relay")
        self.taken.unlink()
        self.start_relay()
        self.assertEqual(self.sftctl("webhook", "test", hook["id"]).returncode, UNREACHABLE)
        self.assertIn("does not offer STARTTLS", self.deliveries(hook["id"])[0]["error"])
        self.assertEqual(self.mails(), [])

    def test_what_a_relay_that_was_down_missed_comes_though_the_server_was_killed(self):
        self.start_mailing_server()
        self.start_worker(gpus="H100:2")
        hook = self.add("ann@example.com", "--events", "job.queued")
        self.submit("ok", ranks=1, name="mine")
        wait_until("a try", lambda: self.deliveries(hook["id"])[0]["tries"] > 0)
        self.assertIn("the mail relay 127.0.0.1", self.deliveries(hook["id"])[0]["error"])
        self.kill("server")
        self.start_relay()
        self.start_mailing_server()
        wait_until("the mail", self.mails)
        wait_until("the delivery", lambda: self.deliveries(hook["id"])[0]["state"] == "delivered")
        self.assertEqual(len(self.mails()), 1)

    def test_a_mail_that_is_put_off_comes_later_and_once(self):
        self.start_relay("--defer", 1)
        self.start_mailing_server()
        self.start_worker(gpus="H100:2")
        hook = self.add("ann@example.com", "--events", "job.queued")
        self.submit("ok", ranks=1, name="mine")
        wait_until("a try", lambda: self.deliveries(hook["id"])[0]["http_status"] == 451)
        self.assertIn("Come back later", self.deliveries(hook["id"])[0]["error"])
        wait_until("the delivery", lambda: self.deliveries(hook["id"])[0]["state"] == "delivered")
        self.assertEqual(len(self.mails()), 1)

    def test_a_mailbox_that_is_not_there_is_put_off_and_others_are_not(self):
        self.start_relay("--refuse", "gone@example.com")
        self.start_mailing_server()
        gone, there = self.add("gone@example.com"), self.add("ann@example.com")
        self.assertEqual(self.sftctl("webhook", "test", gone["id"]).returncode, UNREACHABLE)
        self.assertEqual(self.sftctl("webhook", "test", there["id"]).returncode, SUCCEEDED)
        states = {each["url"]: each["off_reason"] for each in json.loads(self.sftctl("webhook", "list", "--json").stdout)}
        self.assertIn("550 to RCPT TO: 5.1.1 There is no such mailbox", states["mailto:gone@example.com"])
        self.assertEqual(states["mailto:ann@example.com"], "")

    def test_names_are_text_and_never_headers(self):
        self.start_relay()
        self.start_mailing_server()
        self.start_worker(gpus="H100:2")
        self.add("ann@example.com", "--events", "job.queued")
        names = ["Bcc: eve@example.com", "=?UTF-8?B?Zm9v?=", "Größe 模型 " * 8, ".", "x" * 128]
        for name in names:
            result = self.sftctl("submit", self.write_job("ok", ranks=1), "--set", f"job.name={name.strip()}")
            self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        wait_until("all mails", lambda: len(self.mails()) == len(names))
        for name, (envelope, message) in zip(names, self.mails()):
            self.assertEqual(envelope["to"], ["ann@example.com"])
            self.assertEqual(sorted(message.keys()), sorted(
                ["Date", "From", "To", "Message-ID", "Subject", "Auto-Submitted", "MIME-Version", "Content-Type",
                 "Content-Transfer-Encoding"]))
            self.assertIn(name.strip(), message["Subject"].replace("\n", ""))
            self.assertIn(name.strip(), message.get_content())
            self.assertLessEqual(max(len(line) for line in envelope["data"].splitlines()), 998)
        job = self.write_job("ok", ranks=1)
        for bad in ("ann@example.com\nBcc: eve@example.com", "ann", "a b@example.com", "<ann@example.com>"):
            result = self.sftctl("submit", job, "--set", f"notify.mail={bad}")
            self.assertEqual(result.returncode, USAGE, bad)
            self.assertIn("notify.mail", result.stderr)
            self.assertEqual(self.sftctl("webhook", "add", "mailto:" + bad).returncode, USAGE, bad)

    def test_only_domains_that_an_operator_names_get_mail_and_none_without_a_relay(self):
        self.start_mailing_server("--mail-to", "example.com")
        self.start_worker(gpus="H100:2")
        self.add("ann@team.example.com")
        job = self.write_job("ok", ranks=1)
        for other in ("ann@example.org", "ann@badexample.com"):
            result = self.sftctl("webhook", "add", "mailto:" + other)
            self.assertEqual((result.returncode, "example.com alone" in result.stderr), (USAGE, True), result.stderr)
            result = self.sftctl("submit", job, "--set", f"notify.mail={other}")
            self.assertEqual((result.returncode, "example.com alone" in result.stderr), (USAGE, True), result.stderr)
        self.kill("server")
        self.start_server()
        result = self.sftctl("webhook", "add", "mailto:ann@example.com")
        self.assertEqual((result.returncode, "--mail-relay" in result.stderr), (REFUSED, True), result.stderr)
        result = self.sftctl("submit", job, "--set", "notify.mail=ann@example.com")
        self.assertEqual((result.returncode, "--mail-relay" in result.stderr), (USAGE, True), result.stderr)


if __name__ == "__main__":
    run_tests()
