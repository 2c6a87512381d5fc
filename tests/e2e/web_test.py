#!/usr/bin/env python3
"""The web front as scripts and browsers use it: REST with curl and http.client, the page's feed over a killed server,
TLS, sessions that `sftctl web` opens, and readers who do not read."""

import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.parse

import harness

SUCCEEDED = 0
MOST_STREAMS = 1200
FEW_BYTES = 64 << 10 if not harness.SANITIZED else 1 << 20
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))


class Events:
    """Reads an event stream, as EventSource does: (name, id, data), one after the other."""

    def __init__(self, port, path, last_id=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=harness.DEADLINE_S)
        headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
        self.connection.request("GET", path, headers=headers)
        self.response = self.connection.getresponse()
        self.status = self.response.status

    def __iter__(self):
        event = {}
        try:
            while line := self.response.readline():
                field, _, value = line.decode().rstrip("\n").partition(": ")
                if line == b"\n":
                    if "data" in event:
                        yield event.get("event", "message"), event.get("id"), json.loads(event["data"])
                    event = {}
                elif field:
                    event[field] = value
        except (http.client.HTTPException, OSError):
            return  # the server has gone

    def close(self):
        self.connection.close()


class WebTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.http = harness.free_port()

    def start_all(self):
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker()

    def post(self, method, body, connection=None, **headers):
        """One call over REST: the status and the answer."""
        own = connection or http.client.HTTPConnection("127.0.0.1", self.http, timeout=harness.DEADLINE_S)
        own.request("POST", f"/api/v1/{method}", json.dumps(body), {"Content-Type": "application/json", **headers})
        response = own.getresponse()
        content = response.read()
        if connection is None:
            own.close()
        return response.status, json.loads(content)

    def test_curl_and_http_client_call_methods_and_keep_their_connection(self):
        self.start_all()
        job = self.submit("wait", ranks=1)
        self.wait_for_step(job)
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=harness.DEADLINE_S)
        connection.connect()
        first = connection.sock
        for _ in range(20):
            status, listed = self.post("JobService/ListJobs", {}, connection)
            self.assertEqual((status, len(listed["jobs"])), (200, 1))
        self.assertIs(connection.sock, first, "the connection was not kept")
        status, error = self.post("JobService/GetJob", {"name": "job-none"}, connection)
        self.assertEqual((status, error["code"]), (404, "NOT_FOUND"))
        # A body of unknown length comes in chunks.
        connection.request("POST", "/api/v1/JobService/GetJob", iter([b'{"name":', f'"{job}"}}'.encode()]),
                           {"Content-Type": "application/json"}, encode_chunked=True)
        self.assertTrue(json.loads(connection.getresponse().read())["name"].endswith(job))
        connection.close()
        if not shutil.which("curl"):
            self.skipTest("curl is missing")
        base = f"http://127.0.0.1:{self.http}"
        curl = lambda *arguments: subprocess.run(
            ["curl", "--silent", "--show-error", "--fail-with-body", *arguments], capture_output=True, text=True,
            timeout=harness.DEADLINE_S, check=False)
        harness.wait_until("the job to run", lambda: self.status(job)["state"] == "RUNNING")
        asked = curl("--json", json.dumps({"name": job}), f"{base}/api/v1/JobService/GetJob")
        self.assertEqual((asked.returncode, json.loads(asked.stdout)["state"]), (0, "RUNNING"), asked.stderr)
        # curl waits for leave to send what is large; HTTP/1.0 and --head work, too.
        (self.dir / "large.json").write_text(json.dumps({"name": "x" * 500_000}))
        large = curl("--json", f"@{self.dir}/large.json", f"{base}/api/v1/JobService/GetJob")
        self.assertEqual(json.loads(large.stdout)["code"], "INVALID_ARGUMENT", large.stderr)
        # A data set, as docs/rest.md sends it; what is large waits for leave, too.
        (self.dir / "rows.jsonl").write_text(json.dumps({"text": "x" * 1000}) + "\n" + (json.dumps({"text": "y" * 1000}) + "\n") * 3000)
        sent = curl("-T", str(self.dir / "rows.jsonl"), "-X", "POST", "-H", "Content-Type: application/octet-stream",
                    f"{base}/api/v1/DataService/UploadBlob?purpose=DATASET&display_name=rows.jsonl")
        self.assertEqual((sent.returncode, json.loads(sent.stdout)["rows"]), (0, "3001"), sent.stdout + sent.stderr)
        self.assertEqual(curl("--http1.0", f"{base}/healthz").stdout, "ok\n")
        self.assertIn("text/html", curl("--head", f"{base}/jobs/{job}").stdout)
        self.assertIn('"state":"RUNNING"', curl("--max-time", "5", "--no-buffer", "--json", json.dumps({"name": job}),
                                                f"{base}/api/v1/JobService/WatchJob").stdout)
        page = curl("--compressed", f"{base}/").stdout
        for asset in set(re.findall(r'"(/assets/[^"]+)"', page)):
            self.assertEqual(curl("--compressed", "--output", str(self.dir / "asset"), base + asset).returncode, 0, asset)

    def test_text_that_cannot_be_seen_is_refused_wherever_it_is_entered(self):
        self.start_all()
        job = self.submit("wait", ranks=1)
        text = (self.dir / "job.toml").read_text()
        named = {"source_text": text, "file_name": "job.toml"}
        for hidden in ("\x1b[31m", "\0", "\u202e", "\u200b", "\u200f", "\U000e0041"):
            shown = f"U+{ord(hidden[0]):04X}"
            bad = f"a{hidden}b"
            quoted = json.dumps(bad) if ord(hidden[0]) < 0x10000 else '"a\\U000E0041b"'
            for method, request in (
                ("JobService/CancelJob", {"name": job, "reason": bad}),
                ("SchedulingService/HoldJob", {"name": job, "reason": bad}),
                ("OperatorService/HoldNode", {"node": "node-a", "mode": "CORDON", "reason": bad}),
                ("OperatorService/SetPrice", {"gpu_type": bad, "micros_per_hour": "1", "currency": "EUR"}),
                ("OperatorService/SetPrice", {"gpu_type": "H100", "micros_per_hour": "1", "currency": bad}),
                ("AuthService/PutUser", {"user": {"name": bad, "roles": [{"project": "p", "role": "VIEWER"}]}}),
                ("AuthService/PutUser", {"user": {"name": "u", "roles": [{"project": bad, "role": "VIEWER"}]}}),
                ("AuthService/CreateToken", {"kind": "JOIN", "comment": bad}),
                ("WebhookService/AddWebhook", {"url": f"https://h.example/{bad}"}),
                ("WebhookService/AddWebhook", {"url": f"mailto:{bad}@h.example"}),
                ("WebhookService/AddWebhook", {"url": "https://h.example/a", "events": [bad]}),
                ("SchedulingService/SetProject", {"name": bad, "share": 1}),
                ("SchedulingService/SetProject", {"name": "p", "max_priority": bad}),
                ("StorageService/SetStorageQuota", {"project": bad, "dataset_bytes": "1"}),
                ("ClusterService/PullModel", {"model": f"o/{bad}"}),
                ("JobService/SubmitJob", {**named, "file_name": bad}),
                ("JobService/SubmitJob", {**named, "request_id": bad}),
                ("JobService/SubmitJob", {**named, "project": bad}),
                ("JobService/SubmitJob", {**named, "metadata": {"k": bad}}),
                ("JobService/SubmitJob", {**named, "metadata": {bad: "v"}}),
                ("JobService/SubmitJob", {**named, "source_text": text.replace("[job]", f"[job]\nname = {quoted}")}),
                ("JobService/SubmitJob", {**named, "source_text": text.replace('"tiny"', quoted)}),
                ("JobService/SubmitJob", {**named, "source_text": text.replace("[job]", f"[job]\n{quoted} = 1")}),
                ("JobService/SubmitJob", {**named, "overrides": [{"key": bad, "value": "1", "kind": "SET"}]}),
                ("JobService/SubmitJob", {**named, "files": [{"key": "job.data", "client_path": bad}]}),
            ):
                with self.subTest(method=method, request=request):
                    status, answer = self.post(method, request)
                    self.assertEqual(status, 400, answer)
                    self.assertEqual(answer["code"], "INVALID_ARGUMENT")
                    if "reason" in request and request["reason"] == bad:
                        self.assertIn(f"reason holds {shown}", answer["message"])

    def test_the_description_is_openapi(self):
        python = DEPS / "clients/bin/python"
        if not python.exists():
            self.skipTest(f"{python} is missing: deploy/bootstrap --clients installs openapi-spec-validator")
        self.start_server(http=f"127.0.0.1:{self.http}")
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=harness.DEADLINE_S)
        connection.request("GET", "/api/v1/openapi.json")
        (self.dir / "openapi.json").write_bytes(connection.getresponse().read())
        checked = subprocess.run([python, "-m", "openapi_spec_validator", self.dir / "openapi.json"],
                                 capture_output=True, text=True, check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)

    def test_the_feed_goes_on_over_a_killed_server_without_gap_or_double(self):
        self.start_all()
        job = self.submit("lines 300 10", ranks=1)
        self.wait_for_step(job)
        path = f"/api/v1/feed?job={job}&metrics=0&log=0:0"
        points, log, last_id, ended = [], "", None, False
        for life in range(20):
            feed = Events(self.http, path, last_id)
            self.assertEqual(feed.status, 200)
            seen = 0
            for name, event_id, data in feed:
                last_id = event_id or last_id
                seen += 1
                if name == "metrics":
                    points += data["points"]
                    self.assertEqual(data["next"], len(points))
                elif name == "log":
                    log += data["text"]
                    self.assertEqual(data["next"], len(log.encode()))
                elif name == "end":
                    ended = True
                    break
                # Killed in the middle twice, and left by the client once.
                if life < 2 and points and seen > 2:
                    self.kill("server")
                    self.start_server(http=f"127.0.0.1:{self.http}")
                    break
                if life == 2 and seen > 4:
                    break
            feed.close()
            if ended:
                break
        self.assertTrue(ended)
        self.assertGreater(life, 1)
        self.assert_ends(job, SUCCEEDED)
        curve = [json.loads(line) for line in self.sftctl("metrics", job, "--json").stdout.splitlines()]
        self.assertEqual([int(point["step"]) for point in points], [point["step"] for point in curve])
        self.assertEqual(len(set(int(point["step"]) for point in points)), len(points))
        self.assertEqual(log, self.sftctl("logs", job).stdout)

    def test_changes_of_the_lists_are_told_and_a_slow_reader_delays_nobody(self):
        self.start_all()
        lists = Events(self.http, "/api/v1/feed?jobs=1&nodes=1")
        told = iter(lists)
        # A reader of a long log who reads nothing.
        flood = self.submit(f"flood 20 {self.dir}/go", ranks=1)
        changed = next(data["changed"] for name, _, data in told if name == "jobs")
        self.assertIn(flood, changed)
        self.wait_for_step(flood)
        slow = socket.create_connection(("127.0.0.1", self.http))
        self.addCleanup(slow.close)
        slow.sendall(f"GET /api/v1/feed?job={flood}&log=0:0 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        other = self.submit("ok", ranks=1, name="other")
        # (Several changes may be told at once.)
        while other not in next(data["changed"] for name, _, data in told if name == "jobs"):
            pass
        self.assertEqual(self.sftctl("nodes", "cordon", "node-a").returncode, 0)
        next(data for name, _, data in told if name == "nodes")
        self.assertEqual(self.post("JobService/ListJobs", {})[0], 200)
        (self.dir / "go").write_text("")
        self.assertEqual(self.sftctl("cancel", flood).returncode, 0)
        lists.close()

    def used(self):
        """Memory and processor time of the server so far: bytes and seconds."""
        of_process = pathlib.Path(f"/proc/{self.processes['server'].pid}")
        pages = int((of_process / "statm").read_text().split()[1])
        ticks = (of_process / "stat").read_text().rpartition(") ")[2].split()[11:13]
        return pages * os.sysconf("SC_PAGE_SIZE"), sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def open_stream(self, stack):
        stream = stack.enter_context(socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S))
        stream.sendall(b"GET /api/v1/feed?jobs=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return stream

    def test_many_idle_streams_and_slow_heads_keep_nobody_out(self):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if most < 3000:
            self.skipTest(f"a process may have {most} open files here, 3,000 are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        self.start_all()
        threads_before = len(os.listdir(f"/proc/{self.processes['server'].pid}/task"))
        self.post("JobService/ListJobs", {})
        memory_before, _ = self.used()
        with contextlib.ExitStack() as stack:
            streams = [self.open_stream(stack) for _ in range(1000)]
            for stream in streams:
                self.assertIn(b"200 OK", stream.recv(4096))
            for _ in range(100):
                dripping = stack.enter_context(socket.create_connection(("127.0.0.1", self.http)))
                dripping.sendall(b"POST /api/v1/JobService/ListJobs HT")
            self.assertEqual(len(os.listdir(f"/proc/{self.processes['server'].pid}/task")), threads_before)
            self.assertEqual(self.post("ClusterService/GetServerInfo", {})[0], 200)
            memory, time_before = self.used()
            self.assertLess((memory - memory_before) / 1100, FEW_BYTES, "memory of a stream")
            time.sleep(3)  # nothing happens
            idle = self.used()[1] - time_before
            self.assertLess(idle, 1.5, "processor time of idle streams in 3 s")
            job = self.submit("ok", ranks=1)
            for stream in streams:
                received = b""
                while job.encode() not in received:
                    received += stream.recv(4096)
            self.assert_ends(job, SUCCEEDED)
            print(f"1,000 streams: {(memory - memory_before) / 1100 / 1024:.1f} KiB each, {idle:.2f} s of idle time in 3 s")
            # More than there may be are told so at once, and leave calls their room.
            heads = [self.open_stream(stack).recv(4096) for _ in range(MOST_STREAMS - 1000 + 50)]
            self.assertEqual([b"200 OK" in head for head in heads], [True] * (MOST_STREAMS - 1000) + [False] * 50)
            self.assertIn(b"429 Too Many Requests", heads[-1])
            self.assertEqual(self.post("JobService/ListJobs", {})[0], 200)
            streams[0].close()
            harness.wait_until("room for a stream", lambda: b"200 OK" in self.open_stream(stack).recv(4096))

    def sftctl_as(self, *arguments, **options):
        return subprocess.run([str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}",
                               *map(str, arguments)], capture_output=True, text=True, check=False,
                              env={**os.environ, "XDG_CONFIG_HOME": str(self.dir / "home")}, **options)

    def test_a_browser_logs_in_over_tls_with_the_code_of_sftctl(self):
        made = subprocess.run([str(harness.BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", "127.0.0.1"], capture_output=True, text=True, check=True).stdout
        fingerprint = re.search(r"^fingerprint +(\S+)", made, re.M).group(1)
        token = re.search(r"^admin token +(\S+)", made, re.M).group(1)
        (self.dir / "admin.token").write_text(token + "\n")
        (self.dir / "admin.token").chmod(0o600)
        tls = self.dir / "server/tls"
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--require-token",
                   "--http", f"0.0.0.0:{self.http}", "--data-dir", self.dir / "server")
        harness.wait_until("the admin to be let in", lambda: self.sftctl_as(
            "login", "--fingerprint", fingerprint, "--token-file", self.dir / "admin.token").returncode == 0)
        opened = self.sftctl_as("web", "--json")
        self.assertEqual(opened.returncode, 0, opened.stderr)
        url = urllib.parse.urlsplit(json.loads(opened.stdout)["url"])
        self.assertEqual((url.scheme, url.port, url.fragment[:5]), ("https", self.http, "code="))
        self.assertNotIn(token, opened.stdout)

        def ask(method, path, body=None, **headers):
            connection = http.client.HTTPSConnection("127.0.0.1", self.http, timeout=harness.DEADLINE_S,
                                                     context=ssl.create_default_context(cafile=tls / "ca.crt"))
            if body is not None:
                headers["Content-Type"] = "application/json"
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return response, response.read()
        whoami = "/api/v1/AuthService/WhoAmI"
        self.assertEqual(ask("POST", whoami, "{}")[0].status, 401)
        self.assertEqual(ask("GET", "/healthz")[0].status, 200)
        self.assertEqual(ask("GET", "/metrics")[0].status, 401)
        code = json.dumps({"code": url.fragment[5:]})
        response, _ = ask("POST", "/session", code)
        self.assertEqual(response.status, 204)
        cookie = response.headers["Set-Cookie"].partition(";")[0]
        self.assertEqual(json.loads(ask("POST", whoami, "{}", Cookie=cookie)[1])["user"]["name"], "admin")
        self.assertEqual(ask("GET", "/metrics", Cookie=cookie)[0].status, 200)
        self.assertEqual(ask("GET", "/metrics", Authorization=f"Bearer {token}")[0].status, 200)
        # Figures are of all projects.
        self.assertEqual(self.sftctl_as("admin", "user", "set", "ann", "--project", "vision=submitter").returncode, 0)
        of_ann = self.sftctl_as("admin", "token", "create", "ann", "--expires", "1d").stdout.strip()
        self.assertEqual(json.loads(ask("POST", whoami, "{}", Authorization=f"Bearer {of_ann}")[1])["user"]["name"], "ann")
        self.assertEqual(ask("GET", "/metrics", Authorization=f"Bearer {of_ann}")[0].status, 403)
        self.assertEqual(ask("POST", "/session", code)[0].status, 401)
        self.assertEqual(ask("DELETE", "/session", Cookie=cookie)[0].status, 204)
        self.assertEqual(ask("POST", whoami, "{}", Cookie=cookie)[0].status, 401)
        # Who does not know the authority is told by TLS itself.
        with self.assertRaises(ssl.SSLCertVerificationError):
            http.client.HTTPSConnection("127.0.0.1", self.http).request("GET", "/")
        log = (self.dir / "server.log").read_text()
        for secret in (token, url.fragment[5:], cookie.partition("=")[2]):
            self.assertNotIn(secret, log)
        # Without keys others on the network are not served, be it through a proxy.
        for why, *options in (("only loopback is served", "--http", f"0.0.0.0:{harness.free_port()}"),
                              ("may not be reached as sft.example.org", "--http-name", "sft.example.org")):
            refused = subprocess.run([str(harness.BUILD / "bin/sft-server"), "--listen",
                                      f"127.0.0.1:{harness.free_port()}", "--data-dir", str(self.dir / "open"), *options],
                                     capture_output=True, text=True, timeout=harness.DEADLINE_S, check=False)
            self.assertEqual(refused.returncode, 1)
            self.assertIn(why, refused.stderr)

    def test_calls_of_several_threads_are_answered_side_by_side(self):
        self.start_all()
        statuses = []

        def call():
            for _ in range(20):
                statuses.append(self.post("JobService/ListJobs", {})[0])
        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(statuses, [200] * 160)


if __name__ == "__main__":
    harness.run_tests()
