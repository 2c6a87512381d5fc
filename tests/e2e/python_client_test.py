#!/usr/bin/env python3
"""The Python package `sft` against a stand-in for the server's HTTP: retries, cut streams, errors, addresses, and what
people see. python_sdk_test.py has the real server."""

import base64
import contextlib
import hashlib
import http.server
import io
import json
import math
import os
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
import unittest
import unittest.mock
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "client/python"))
import sft  # noqa: E402
from sft import _address, _http, _show, _submit  # noqa: E402
from sft.export import _scalars, _tensorboard  # noqa: E402

ID = "job-abcdefghjk"


def job_json(state="RUNNING", step=1, **more):
    return {"name": f"projects/default/jobs/{ID}", "kind": "SFT", "state": state, "reason": "", "display_name": "mine",
            "owner": "ann", "project": "default", "attempt": 1, "checkpoint_step": "0", "resolved": [], "warnings": [],
            "create_time": "2026-11-27T12:00:00Z",
            "progress": {"step": str(step), "total_steps": "4", "loss": 1.5, "tokens_per_second": 640, "eta_seconds": 70,
                         "gpu_memory_bytes": "0", "trainable_parameters": "1", "total_parameters": "2", "mfu": 0,
                         "has_val_loss": False, "phase": "", "values": []}, **more}


def metric(step, is_eval=False, **more):
    return {"step": str(step), "loss": 1 / step, "lr": 0, "grad_norm": "NaN", "tokens": "64", "tokens_per_second": 640,
            "gpu_memory_bytes": "1000000000", "mfu": 0, "val_loss": 0.5, "is_eval": is_eval, "step_seconds": 0.1,
            "total_steps": "4", "attempt": 1, "epoch": 0, "of_limit": 0, "values": [],
            "time": f"2026-11-27T12:00:{step:02}.5Z", **more}


def event(name, data, cursor=""):
    return (f"event: {name}\n" + (f"id: {cursor}\n" if cursor else "") + f"data: {json.dumps(data)}\n\n").encode()


class StandIn(http.server.ThreadingHTTPServer):
    """Answers with what `script` holds for a path, one after the other; the last again and again. An answer is (status,
    body, headers), bytes of an event stream, or None: the connection is cut without an answer."""

    daemon_threads = True

    def __init__(self, script):
        self.script, self.calls = script, []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that has gone

    def bodies(self, path):
        return [body for asked, body, _ in self.calls if asked == path]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0].replace("/api/v1/", "")
        if self.headers.get("Content-Type") == "application/octet-stream":
            told = (dict(urllib.parse.parse_qsl(self.path.partition("?")[2])), body)
        else:
            told = json.loads(body) if body else None
        self.server.calls.append((path, told, dict(self.headers)))
        answers = self.server.script[path]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            self.close_connection = True
            return
        if isinstance(answer, bytes):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(answer)
            self.close_connection = True
            return
        status, content, headers = answer
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST


def ok(content):
    return 200, content, {}


def refused(status, code, message="no", details=(), **headers):
    return status, {"code": code, "message": message, "details": list(details)}, {
        name.replace("_", "-"): value for name, value in headers.items()}


class PythonClientTest(unittest.TestCase):
    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="sft-python-"))
        self.addCleanup(shutil.rmtree, self.dir)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("SFT")}
        patch = unittest.mock.patch.dict(os.environ, {**variables, "XDG_CONFIG_HOME": str(self.dir)}, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        # Pauses between attempts are counted, not waited for.
        self.pauses = []
        patch = unittest.mock.patch.object(_http.time, "sleep", self.pauses.append)
        patch.start()
        self.addCleanup(patch.stop)

    def serve(self, **script):
        """The stand-in and a client of it."""
        server = StandIn({name.replace("__", "/"): answers for name, answers in script.items()})
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        client = sft.Client(web=f"http://127.0.0.1:{server.server_port}")
        self.addCleanup(client.close)
        return server, client

    def test_a_call_is_tried_again_where_server_and_method_allow_it(self):
        busy = refused(503, "UNAVAILABLE", Retry_After="5")
        server, client = self.serve(JobService__GetJob=[busy, None, ok(job_json())])
        self.assertEqual(client.job(ID).id, ID)
        self.assertEqual(len(server.calls), 3)
        self.assertEqual(self.pauses, [5.0, 1.0])

    def test_what_may_not_be_repeated_is_sent_once(self):
        server, client = self.serve(
            WebhookService__CreateWebhook=[refused(503, "UNAVAILABLE"), None],
            JobService__GetJob=[refused(429, "RESOURCE_EXHAUSTED", x_should_retry="false")])
        with self.assertRaises(sft.Unavailable):
            client.call("WebhookService/CreateWebhook", {})
        with self.assertRaisesRegex(sft.Unavailable, "may have been done all the same"):
            client.call("WebhookService/CreateWebhook", {})
        with self.assertRaises(sft.ResourceExhausted):
            client.job(ID)
        self.assertEqual(len(server.calls), 3)

    def test_a_submit_that_is_tried_again_has_the_same_request_id(self):
        resolved = {"problems": [], "warnings": [], "resolved": [], "needed_files": [], "plan": {}}
        server, client = self.serve(JobService__ResolveJob=[ok(resolved)],
                                    JobService__SubmitJob=[None, refused(503, "UNAVAILABLE"), ok(job_json("PENDING"))])
        job = client.submit({"job": {"model": "m"}}, name="mine", set={"lora.r": 8, "data.packing": True, "lora.x": ["a", "b"]})
        self.assertEqual(job.state, "PENDING")
        sent = server.bodies("JobService/SubmitJob")
        self.assertEqual(len(sent), 3)
        self.assertEqual(len({each["request_id"] for each in sent}), 1)
        self.assertTrue(sent[0]["request_id"])
        self.assertEqual(json.loads(sent[0]["source_text"]), {"job": {"model": "m"}})
        self.assertEqual([(each["key"], each["value"]) for each in sent[0]["overrides"]],
                         [("job.name", "mine"), ("lora.r", "8"), ("data.packing", "true"), ("lora.x", "a,b")])

    def test_errors_have_class_code_message_and_details(self):
        details = [{"field": "lora.r", "description": "line 3: must be > 0"}]
        _, client = self.serve(JobService__GetJob=[
            refused(404, "NOT_FOUND", "no such job"), refused(400, "INVALID_ARGUMENT", "1 problem", details),
            refused(500, "DATA_LOSS", "bad"), (421, b"no such host", {})])
        with self.assertRaises(sft.NotFound) as told:
            client.job(ID)
        self.assertEqual((told.exception.code, told.exception.message), ("NOT_FOUND", "no such job"))
        with self.assertRaises(sft.InvalidArgument) as told:
            client.job(ID)
        self.assertEqual(told.exception.details, details)
        self.assertIn("lora.r: line 3: must be > 0", str(told.exception))
        with self.assertRaises(sft.Error) as told:
            client.job(ID)
        self.assertEqual(told.exception.code, "DATA_LOSS")
        with self.assertRaisesRegex(sft.Error, "answered 421: no such host"):
            client.job(ID)

    def test_a_server_that_is_not_there_is_named_with_what_to_do(self):
        client = sft.Client("127.0.0.1:9", web="http://127.0.0.1:10")
        with self.assertRaisesRegex(sft.Unavailable, r"http://127.0.0.1:10.*SFT_WEB.*sft-server --dev"):
            client.job(ID)
        self.assertEqual(len(self.pauses), 3)

    def test_a_connection_is_kept_and_one_that_the_server_closed_is_made_anew(self):
        closing = (200, job_json(), {"Connection": "close"})
        server, client = self.serve(JobService__GetJob=[ok(job_json()), ok(job_json()), closing, ok(job_json())])
        client.job(ID)
        kept = client._transport._kept.connection
        client.job(ID)
        self.assertIs(client._transport._kept.connection, kept)
        client.job(ID)
        client.job(ID)
        self.assertEqual((len(server.calls), self.pauses), (4, []))

    def test_a_cut_feed_goes_on_from_its_cursor_without_gap_or_double(self):
        first = (event("job", job_json(), "m0") + event("metrics", {"points": [metric(1), metric(2)], "next": 2}, "m2")
                 + b": ping\n\n" + event("metrics", {"points": [metric(3)], "next": 3}, "m3")[:-9])
        second = event("metrics", {"points": [metric(3)], "next": 3}, "m3") + event(
            "error", {"code": "UNAVAILABLE", "message": "stops"})
        third = event("metrics", {"points": [metric(4)], "next": 4}, "m4") + event("end", {})
        server, client = self.serve(feed=[first, None, second, refused(503, "UNAVAILABLE"), third],
                                    JobService__GetJob=[ok(job_json())])
        points = list(client.job(ID).follow())
        self.assertEqual([each["step"] for each in points], [1, 2, 3, 4])
        self.assertEqual([headers.get("Last-Event-ID") for path, _, headers in server.calls if path == "feed"],
                         [None, "m2", "m2", "m3", "m3"])
        self.assertEqual((points[0]["tokens"], points[0]["gpu_memory_bytes"]), (64, 10 ** 9))
        self.assertNotEqual(points[0]["grad_norm"], points[0]["grad_norm"], "NaN is a number here")

    def test_a_feed_ends_with_an_error_that_will_not_go_away(self):
        _, client = self.serve(feed=[event("job", job_json(), "m0") + event(
            "error", {"code": "PERMISSION_DENIED", "message": "the role was taken away"})], JobService__GetJob=[ok(job_json())])
        with self.assertRaisesRegex(sft.PermissionDenied, "taken away"):
            list(client.job(ID).follow())

    def test_a_feed_gives_up_on_a_server_that_stays_away(self):
        _, client = self.serve(feed=[None], JobService__GetJob=[ok(job_json())])
        job = client.job(ID)
        with unittest.mock.patch.object(_http, "PATIENCE_S", -1), self.assertRaises(sft.Unavailable):
            list(job.follow())

    def test_wait_calls_back_and_leaves_out_what_fails(self):
        events = (event("job", job_json(step=1)) + event("metrics", {"points": [metric(1), metric(1, True)], "next": 2})
                  + event("job", job_json(step=2, checkpoint_step="2"))
                  + event("metrics", {"points": [metric(2)], "next": 3})
                  + event("job", job_json("SUCCEEDED", 4, checkpoint_step="2")) + event("end", {}))
        _, client = self.serve(feed=[events], JobService__GetJob=[ok(job_json())])
        told = []

        class Notes:
            def on_log(self, job, point):
                told.append(("log", point["step"]))

            def on_evaluate(self, job, point):
                told.append(("evaluate", point["val_loss"]))

            def on_save(self, job, step):
                told.append(("save", step))

            def on_train_end(self, job):
                told.append(("end", job.state))

        class Broken:
            calls = 0

            def on_log(self, job, point):
                Broken.calls += 1
                raise OSError("the tracker is down")
        with contextlib.redirect_stderr(io.StringIO()) as err:
            job = client.job(ID).wait(callbacks=[Broken(), Notes()])
        self.assertEqual(told, [("log", 1), ("evaluate", 0.5), ("save", 2), ("log", 2), ("end", "SUCCEEDED")])
        self.assertEqual((Broken.calls, job.state), (1, "SUCCEEDED"))
        self.assertIn("Broken.on_log failed", err.getvalue())
        self.assertIn(f"{ID} SUCCEEDED", err.getvalue())
        self.assertIn("4/4  loss 1.5000  640 tok/s", err.getvalue())

    def test_wait_has_a_limit_and_ctrl_c_says_how_to_come_back(self):
        server, client = self.serve(feed=[event("job", job_json(), "m0")], JobService__GetJob=[ok(job_json())])
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(TimeoutError, "not ended after 0.2 s"):
            client.job(ID).wait(timeout=0.2)
        view = _show.view_of(False)
        view.show = unittest.mock.Mock(side_effect=KeyboardInterrupt)
        with contextlib.redirect_stderr(io.StringIO()) as err, self.assertRaises(KeyboardInterrupt), \
                unittest.mock.patch.object(_show, "view_of", lambda _: view):
            client.job(ID).wait()
        self.assertIn(f'sft.Client().job("{ID}").wait()', err.getvalue())
        self.assertEqual([path for path, _, _ in server.calls if "Cancel" in path], [])

    def test_lists_are_read_page_by_page(self):
        pages = [ok({"jobs": [job_json()] * 3, "next_page_token": "a"}), ok({"jobs": [job_json()] * 3, "next_page_token": ""})]
        server, client = self.serve(JobService__ListJobs=pages + pages)
        self.assertEqual(len(client.jobs(state="RUNNING", owner="ann")), 6)
        self.assertEqual(server.bodies("JobService/ListJobs"), [
            {"states": ["RUNNING"], "owner": "ann"}, {"states": ["RUNNING"], "owner": "ann", "page_token": "a"}])
        self.assertEqual(len(client.jobs(limit=4, filter="state=running llama")), 4)
        self.assertEqual(server.bodies("JobService/ListJobs")[2], {"filter": "state=running llama", "page_size": 4})

    def test_addresses_tokens_and_authorities_are_found_as_sftctl_finds_them(self):
        folder = self.dir / "sft"
        folder.mkdir()
        self.assertEqual(_address.find(None, None, None, None).web, "http://127.0.0.1:7071")
        kept = folder / "credentials.json"
        kept.write_text(json.dumps({"server": "sft.example.org:7070", "servers": {
            "sft.example.org:7070": {"authority": "PEM", "token": "sft_a"}, "[::1]:99": {"token": "sft_b"}}}))
        with self.assertRaisesRegex(sft.FailedPrecondition, "chmod 600"):
            _address.find(None, None, None, None)
        kept.chmod(0o600)
        found = _address.find(None, None, None, None)
        self.assertEqual((found.web, found.token, found.authority), ("https://sft.example.org:7071", "sft_a", "PEM"))
        (folder / "config.toml").write_text('# ours\nserver = "[::1]:99"  # here\n')
        found = _address.find(None, None, None, None)
        self.assertEqual((found.web, found.token), ("http://[::1]:100", "sft_b"))
        os.environ.update(SFT_SERVER="127.0.0.1:5", SFT_TOKEN="sft_c", SFT_WEB="https://page.example.org/")
        found = _address.find(None, None, None, None)
        self.assertEqual((found.server, found.web, found.token), ("127.0.0.1:5", "https://page.example.org", "sft_c"))
        self.assertEqual(_address.find("localhost:6", "sft_d", None, "http://127.0.0.1:8").token, "sft_d")
        # Of several, with commas, the one that serves.
        with socket.create_server(("127.0.0.1", 0)) as second:
            serving = f"127.0.0.1:{second.getsockname()[1]}"
            self.assertEqual(_address.find(f"127.0.0.1:1,{serving}", None, None, None).server, serving)
        self.assertEqual(_address.find(f"127.0.0.1:1,{serving}", None, None, None).server, "127.0.0.1:1")
        with self.assertRaises(sft.InvalidArgument):
            _address.find(f"127.0.0.1:1,,{serving}", None, None, None)
        with self.assertRaisesRegex(sft.FailedPrecondition, "without TLS"):
            _address.find(None, None, None, "http://page.example.org")
        with self.assertRaisesRegex(sft.InvalidArgument, "no HOST:PORT"):
            _address.find("https://sft.example.org", None, None, None)
        (folder / "config.toml").write_text("sever = 1\n")
        del os.environ["SFT_SERVER"]
        with self.assertRaisesRegex(sft.InvalidArgument, "config.toml:1"):
            _address.find(None, None, None, None)

    def test_a_token_goes_with_each_call_and_each_stream(self):
        server = StandIn({"JobService/GetJob": [ok(job_json())], "feed": [event("end", {})]})
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        with sft.Client(token="sft_x", web=f"http://127.0.0.1:{server.server_port}") as client:
            list(client.job(ID).follow())
        self.assertEqual([headers["Authorization"] for _, _, headers in server.calls], ["Bearer sft_x"] * 2)

    def test_local_data_is_sent_from_where_the_server_has_it(self):
        data = self.dir / "rows.jsonl"
        data.write_text('{"text": "a"}\n')
        content, sha = data.read_bytes(), hashlib.sha256(data.read_bytes()).hexdigest()
        (self.dir / "job.toml").write_text("[job]\n")
        needed = {"key": "job.data", "path": "rows.jsonl", "from_override": False, "line": 3}
        resolved = {"problems": [], "warnings": [], "resolved": [], "needed_files": [needed], "plan": {}}

        def has(received, complete=False):
            return ok({"complete": complete, "received": str(received)})
        uploaded = ok({"blob": {"sha256": sha, "size": str(len(content))}, "rows": "1"})
        server, client = self.serve(
            JobService__ResolveJob=[ok(resolved)], JobService__SubmitJob=[ok(job_json())],
            DataService__StatBlob=[has(0), has(4), has(9), has(0, complete=True), has(0)],
            # One that breaks, one that comes before the server has seen that, and one that is done.
            DataService__UploadBlob=[None, refused(409, "ABORTED", x_should_retry="false"), uploaded,
                                     refused(400, "INVALID_ARGUMENT", "line 1: no")])
        client.submit(self.dir / "job.toml")
        self.assertEqual(len(self.pauses), 2)
        sent = server.bodies("DataService/UploadBlob")
        self.assertEqual([body for _, body in sent], [content, content[4:], content[9:]])
        self.assertEqual(sent[2][0], {"sha256": sha, "size": str(len(content)), "offset": "9", "purpose": "DATASET",
                                      "display_name": "rows.jsonl"})
        client.submit(self.dir / "job.toml")
        self.assertEqual(len(server.bodies("DataService/UploadBlob")), 3, "the server has it")
        self.assertEqual(server.bodies("JobService/SubmitJob")[1]["files"], [{
            "key": "job.data", "sha256": sha, "size": str(len(content)), "client_path": str(data)}])
        with self.assertRaises(sft.InvalidArgument) as told:
            client.submit(self.dir / "job.toml")
        self.assertEqual(told.exception.details, [{"field": "job.data", "description": f"{data}: line 1: no"}])
        data.unlink()
        with self.assertRaisesRegex(sft.InvalidArgument, "must be a file of this machine"):
            client.submit(self.dir / "job.toml")

    def test_an_upload_without_progress_ends_and_one_to_an_earlier_server_needs_sftctl(self):
        (self.dir / "rows.jsonl").write_text('{"text": "a"}\n')
        (self.dir / "job.toml").write_text("[job]\n")
        needed = {"key": "job.data", "path": "rows.jsonl", "from_override": False, "line": 3}
        resolved = {"problems": [], "warnings": [], "resolved": [], "needed_files": [needed], "plan": {}}
        server, client = self.serve(JobService__ResolveJob=[ok(resolved)], DataService__UploadBlob=[None],
                                    DataService__StatBlob=[ok({"complete": False, "received": "3"})])
        with self.assertRaises(sft.Unavailable):
            client.submit(self.dir / "job.toml")
        self.assertEqual(len(server.bodies("DataService/UploadBlob")), 5)
        server.script["DataService/UploadBlob"] = [refused(404, "NOT_FOUND")]
        with unittest.mock.patch.dict(os.environ, {"PATH": ""}), \
                self.assertRaisesRegex(sft.FailedPrecondition, "rows.jsonl.*sftctl, which is not in PATH"):
            client.submit(self.dir / "job.toml")

    def test_a_refused_job_has_all_problems_and_a_dry_run_tells_them(self):
        problems = [{"key": "lora.r", "line": 2, "message": "must be > 0"}, {"key": "job.foo", "line": 0, "message": "unknown"}]
        server, client = self.serve(JobService__ResolveJob=[ok(
            {"problems": problems, "warnings": [], "resolved": [{"key": "lora.r", "value": "0", "origin": "x"}],
             "needed_files": []})])
        plan = client.submit("[lora]\nr = 0\n", dry_run=True)
        self.assertEqual((plan.valid, plan.values), (False, {"lora.r": "0"}))
        with self.assertRaises(sft.InvalidArgument) as told:
            client.submit("[lora]\nr = 0\n")
        self.assertEqual(told.exception.details, [{"field": "lora.r", "description": "line 2: must be > 0"},
                                                  {"field": "job.foo", "description": "unknown"}])
        self.assertEqual(server.bodies("JobService/SubmitJob"), [])

    def test_a_training_config_gives_what_differs_from_its_defaults(self):
        class Config:
            def __init__(self, **values):
                self._values = {"learning_rate": 2e-5, "num_train_epochs": 3.0, "output_dir": "out", "fp16": False,
                                "logging_dir": None, **values}

            def to_dict(self):
                return dict(self._values)
        self.assertEqual(_submit.values_of_config(Config(learning_rate=1e-4, output_dir="here")), {"learning_rate": 1e-4})

    def artifact(self, content, path="adapter/model.bin"):
        return {"name": "artifacts/artifact-a", "kind": "adapter", "files": [
            {"path": path, "blob": {"sha256": hashlib.sha256(content).hexdigest(), "size": str(len(content))}}]}

    def test_a_download_goes_on_where_it_broke_and_is_held_against_its_hash(self):
        content = os.urandom(5000)

        def chunk(begin, end, data=content):
            return b"data: " + json.dumps({"offset": str(begin), "total_size": "5000",
                                           "data": base64.b64encode(data[begin:end]).decode()}).encode() + b"\n\n"
        server, client = self.serve(
            JobService__GetJob=[ok(job_json("SUCCEEDED"))], DataService__GetArtifact=[ok(self.artifact(content))],
            DataService__DownloadArtifactFile=[
                chunk(0, 2000), chunk(2000, 5000, bytes(5000)) + event("end", {}), chunk(0, 5000) + event("end", {})])
        folder = client.job(ID).adapter(str(self.dir / "out"))
        self.assertEqual((pathlib.Path(folder) / "adapter/model.bin").read_bytes(), content)
        self.assertEqual([each["offset"] for each in server.bodies("DataService/DownloadArtifactFile")], [0, 2000, 0])
        # There, it is not fetched again; another folder of that name is left alone.
        client.job(ID).adapter(folder)
        self.assertEqual(len(server.bodies("DataService/DownloadArtifactFile")), 3)
        (pathlib.Path(folder) / "adapter/model.bin").write_bytes(b"mine")
        with self.assertRaises(sft.AlreadyExists):
            client.job(ID).adapter(folder)
        self.assertEqual(sorted(os.listdir(self.dir)), ["out"])

    def test_a_download_writes_nothing_outside_its_folder(self):
        for name in ("../x", "/tmp/x", "a/../../x", "a\\..\\x", "c:x", ""):
            _, client = self.serve(JobService__GetJob=[ok(job_json("SUCCEEDED"))],
                                   DataService__GetArtifact=[ok(self.artifact(b"x", name))])
            with self.assertRaisesRegex(sft.Error, "none below a folder"):
                client.job(ID).download(str(self.dir / "out"))
        self.assertEqual(os.listdir(self.dir), [])

    def test_what_notebooks_show_is_escaped_and_has_no_script(self):
        evil = "<script>alert(1)</script>\x1b[2J"
        _, client = self.serve(JobService__GetJob=[ok(job_json("FAILED", display_name=evil, reason=evil, verdict={
            "code": "bad", "message": evil, "advice": evil}))])
        job = client.job(ID)
        for shown in (job._repr_html_(), sft.JobList([job])._repr_html_()):
            self.assertNotIn("<script", shown)
            self.assertIn("&lt;script&gt;", shown)
        self.assertNotIn("\x1b", repr(job))
        curve = _show.html_of(job, [{"step": step, "loss": 1 / step} for step in range(1, 2000)])
        self.assertLess(len(curve), 20000)
        self.assertIn("<polyline", curve)

    def test_a_notebook_has_one_display_that_is_updated_once_a_second(self):
        handle = unittest.mock.Mock()
        display = unittest.mock.Mock(return_value=handle)
        _, client = self.serve(JobService__GetJob=[ok(job_json())])
        view, job = _show._Notebook(display), client.job(ID)
        for _ in range(100):
            view.show(job, [])
        self.assertEqual((display.call_count, handle.update.call_count), (1, 0))
        view.finish(job, [])
        self.assertEqual((display.call_count, handle.update.call_count), (1, 1))
        self.assertIn("text/html", display.call_args[0][0])

    def test_a_bar_is_drawn_on_terminals(self):
        _, client = self.serve(JobService__GetJob=[ok(job_json(step=2))])
        terminal = io.StringIO()
        terminal.isatty = lambda: True
        with unittest.mock.patch.object(sys, "stderr", terminal):
            view = _show.view_of(True)
            view.finish(client.job(ID), [])
        self.assertIn("\r[############............] 2/4  loss 1.5000", terminal.getvalue())
        self.assertEqual([_show.duration(each) for each in (5, 70, 3700, 90000, float("nan"))],
                         ["5s", "1m 10s", "1h 01m", "1d 1h", "?"])

    def test_the_package_has_the_version_of_the_tree(self):
        tree = (pathlib.Path(__file__).parents[2] / "CMakeLists.txt").read_text()
        self.assertIn(f"VERSION {sft.__version__}", tree)

    def test_what_axes_cost_has_the_names_of_the_command_line(self):
        traffic = [{"axis": "shard", "exposed_share": 0.125, "gigabytes_per_second": 41.5},
                   {"axis": "replicate", "exposed_share": 0.25, "gigabytes_per_second": "NaN"}]
        point = sft.job.point_of(metric(1, traffic=traffic))
        self.assertEqual(point["comm.exposed_share"], 0.375)
        self.assertEqual(point["comm.shard.GBps"], 41.5)
        self.assertEqual(point["comm.replicate.exposed_share"], 0.25)
        self.assertTrue(math.isnan(point["comm.replicate.GBps"]))
        told = _scalars.scalars_of(point)
        self.assertEqual((told["train/comm/exposed_share"], told["train/comm/shard/GBps"]), (0.375, 41.5))
        self.assertNotIn("comm.exposed_share", sft.job.point_of(metric(1)))

    def test_event_files_go_on_behind_a_torn_record(self):
        points = [sft.job.point_of(metric(step)) for step in range(1, 6)]
        once, torn = self.dir / "once", self.dir / "torn"
        for folder, parts in ((once, (points,)), (torn, (points[:3], points))):
            for part in parts:
                writer = _tensorboard._Writer(folder)
                writer.write(part)
                writer.close()
                path, = folder.iterdir()
                if folder is torn and part is not points:
                    path.write_bytes(path.read_bytes()[:-5])
        self.assertEqual(next(torn.iterdir()).read_bytes(), next(once.iterdir()).read_bytes())
        self.assertEqual(_tensorboard._masked_crc32c(b"123456789"), (0xE3069283 >> 15 | 0xE3069283 << 17 & 0xFFFFFFFF)
                         + 0xA282EAD8 & 0xFFFFFFFF)


if __name__ == "__main__":
    unittest.main(verbosity=1)
