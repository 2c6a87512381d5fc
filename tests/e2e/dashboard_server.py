"""The dashboard's files and the calls that its pages make, answered from a `Fleet` in memory.

What a real service cannot be brought to in a test is made here: thousands of jobs, curves of 100,000
points, hostile names, a server that is gone at a chosen moment. dashboard_test.py runs against the real one.
"""

import base64
import datetime
import gzip
import hashlib
import http.server
import json
import math
import pathlib
import re
import threading
import time
import urllib.parse

DASHBOARD = pathlib.Path(__file__).parents[2] / "server/dashboard"
# As the server sends them.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
ENDED = {"SUCCEEDED", "FAILED", "CANCELLED"}
POINTS_A_MESSAGE = 2000
FEED_S = 0.25


def at(seconds):
    """A time of the wire, `seconds` from now."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + seconds))


def name_of(job):
    return f"projects/default/jobs/{job}"


class Fleet:
    """Jobs, nodes and what else the pages ask for; tests change it under `lock`."""

    def __init__(self):
        self.lock = threading.RLock()
        self.jobs = {}  # id -> Job as JSON; the newest last
        self.points = {}  # id -> list of Metric
        self.ranks = {}  # id -> {rank: [(step, loss, bytes of memory)]}
        self.logs = {}  # (id, rank) -> bytes
        self.events = {}  # id -> list of JobEvent
        self.checkpoints = {}
        self.artifacts = {}
        self.waits = {}  # id -> WaitExplanation
        self.plan_wait = None  # of every job file
        # node -> what its slots did a number of seconds ago: use(slot, seconds) -> GpuUse without its time, or None
        self.gpu_use = {}
        self.nodes = []
        self.variants = []
        self.storage = {}
        self.stats = {}
        self.audit = []
        self.problems = []  # of every job file
        self.needed = []  # files that every job file names, as NeededFile
        self.blobs = {}  # sha256 -> bytes of data sets, whole or in part
        self.uploads = []  # their queries
        self.token = ""  # what a login takes; empty: none is needed
        self.company = ""  # the provider of a company login; empty: there is none
        self.calls = []  # (method, request) of what changes something, and of some others
        self.feeds = []  # addresses of the streams that were opened
        self.spoil = lambda answer: answer  # what is done to each answer before it is sent

    def add_job(self, job, state="PENDING", **fields):
        with self.lock:
            self.jobs[job] = {
                "name": name_of(job),
                "kind": "SFT",
                "state": state,
                "reason": "",
                "display_name": "",
                "owner": "ada",
                "project": "default",
                "variant": "H100-4x",
                "create_time": at(-3600),
                "nodes": [],
                "attempt": 0,
                "artifacts": [],
                "attempts": [],
                "resolved": [],
                "warnings": [],
                "after": [],
                "held": False,
                "checkpoint_step": "0",
                "priority": "normal",
                "sweep": "",
                "group": "",
                "resumed_from": "",
                "source_text": "",
                "resolved_json": "{}",
                **fields,
            }
            self.points.setdefault(job, [])
        return self.jobs[job]

    def add_points(self, job, count, loss=lambda step: 2.2 * math.exp(-step / 400) + 0.6, **fields):
        with self.lock:
            points = self.points[job]
            for step in range(len(points) + 1, len(points) + 1 + count):
                points.append(
                    {
                        "step": str(step),
                        "loss": loss(step),
                        "lr": 2e-4 * min(1, step / 50),
                        "grad_norm": 0.8,
                        "tokens": "65536",
                        "tokens_per_second": 21000.0,
                        "gpu_memory_bytes": "61000000000",
                        "mfu": 0.42,
                        "time": at(step - 4000),
                        "val_loss": 0.0,
                        "is_eval": False,
                        "step_seconds": 1.0,
                        "attempt": 1,
                        "of_limit": 0.71,
                        "values": [],
                        **fields,
                    }
                )

    def job(self, name):
        return self.jobs.get(name.rsplit("/", 1)[-1])


VALUES = ("loss", "lr", "grad_norm", "tokens_per_second", "mfu", "of_limit", "gpu_memory_bytes")


def stamp(seconds):
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc).isoformat().replace("+00:00", "Z")


def seconds_of(time):
    return datetime.datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def drawn(name, rank, curve, limits, most, half):
    """A series of an answer to GetCurve."""
    if half:
        keep, total, weight, mean = 0.5 ** (1 / half), 0.0, 0.0, []
        for x, y in curve:
            total, weight = keep * total + (1 - keep) * y, keep * weight + (1 - keep)
            mean.append((x, total / weight))
        curve = mean
    inside = [i for i, (x, _) in enumerate(curve) if limits[0] <= x <= limits[1]]
    curve = curve[max(0, inside[0] - 1) : inside[-1] + 2] if inside else []
    count, parts = len(curve), 0
    if count > 2 * most:
        kept, parts = [], most
        for part in range(most):
            own = curve[count * part // most : count * (part + 1) // most]
            real = [each for each in own if math.isfinite(each[1])]
            gaps = [each for each in own if not math.isfinite(each[1])][:1]
            value = lambda each: each[1]
            kept += sorted({min(real, key=value), max(real, key=value), *gaps} if real else gaps)
        curve = sorted({curve[0], *kept, curve[-1]}, key=lambda each: each[0])
    return {
        "name": name,
        "rank": rank,
        "x": [x for x, _ in curve],
        "y": [y if math.isfinite(y) else "NaN" for _, y in curve],
        "points": str(count),
        "parts": parts,
    }


def matches(job, words):
    """ListJobsRequest.filter, without quotes."""
    for word in words.split():
        key, value = (re.split("[=:]", word, maxsplit=1) + [""])[:2]
        if key == "state":
            if job["state"] not in value.upper().split(","):
                return False
        elif key in ("owner", "project", "group", "sweep"):
            if job[key] != value:
                return False
        elif "=" in word:
            raise Refused(400, "INVALID_ARGUMENT", f"filter: there is no {key}=; there are state=, owner=")
        elif not any(word.lower() in job[key].lower() for key in ("name", "display_name", "owner", "variant", "reason")):
            return False
    return True


class Refused(Exception):
    def __init__(self, status, code, message, details=()):
        super().__init__(message)
        self.status, self.body = status, {"code": code, "message": message, "details": list(details)}


class Calls:
    """The methods, by name; each gets the request and returns the answer, or yields several."""

    def __init__(self, fleet):
        self.fleet = fleet

    def _job(self, request):
        job = self.fleet.job(request["name"])
        if job is None:
            raise Refused(404, "NOT_FOUND", f"no job \"{request['name']}\"")
        return job

    def who_am_i(self, _):
        return {
            "user": {"name": "ada", "admin": True, "roles": []},
            "token_id": self.fleet.token and "abcdefgh",
            "server_time": at(0),
        }

    def list_jobs(self, request):
        known = list(reversed(self.fleet.jobs.values()))
        begin, size = int(request.get("page_token") or 0), min(int(request.get("page_size") or 50), 500)
        if request.get("after"):
            known = known[[job["name"] for job in known].index(request["after"]) + 1 :]
        jobs = [
            job
            for job in known
            if (not request.get("states") or job["state"] in request["states"])
            and all(not request.get(key) or job[key] == request[key] for key in ("project", "sweep", "group"))
            and matches(job, request.get("filter", ""))
        ]
        more = begin + size < len(jobs)
        page = jobs[begin : begin + size]
        if request.get("fields"):
            page = [{key: job[key] for key in ("name", *request["fields"]) if job.get(key)} for job in page]
            return {"jobs": page, **({"next_page_token": str(begin + size)} if more else {})}
        return {"jobs": page, "next_page_token": str(begin + size) if more else ""}

    def get_job(self, request):
        return self._job(request)

    def read_metrics(self, request):
        job = self._job(request)["name"].rsplit("/", 1)[-1]
        index, points = int(request.get("index") or 0), self.fleet.points[job]
        while index < len(points):
            end = min(index + POINTS_A_MESSAGE, len(points))
            yield {"metrics": points[index:end], "next_index": str(end)}
            index = end

    def get_curve(self, request):
        """As the server draws it, in parts of as many points."""
        job = self._job(request)["name"].rsplit("/", 1)[-1]
        wanted, ranks = request.get("values") or [], self.fleet.ranks.get(job, {})
        most, half = request.get("max_parts") or 1000, request.get("half_life") or 0
        steps, series, validations, at = {}, {}, {}, {}
        points = self.fleet.points[job]
        first = {}
        for point in points:
            if not point["is_eval"]:
                first.setdefault(point["attempt"], int(point["step"]))
        begin, tokens, last = 0.0, 0, 0
        for point in points:
            step, attempt = int(point["step"]), point["attempt"]
            if any(later > attempt and start <= step for later, start in first.items()):
                continue
            time = seconds_of(point["time"])
            begin = begin or time - point["step_seconds"]
            if not point["is_eval"]:
                tokens += int(point["tokens"]) * (step - last)
                last = step
            x = {"TOKENS": tokens, "SECONDS": time - begin}.get(request.get("axis", "STEP"), step)
            if point["is_eval"]:
                for name, value in [("val_loss", point["val_loss"])] + [(v["name"], v["value"]) for v in point["values"]]:
                    validations.setdefault(name, []).append((x, value))
                continue
            at[step] = x
            for name in VALUES:
                steps.setdefault(name, []).append((x, float(point[name])))
            if preference := point.get("preference"):
                margin = preference["rewards_chosen"] - preference["rewards_rejected"]
                steps.setdefault("margin", []).append((x, margin))
                steps.setdefault("accuracy", []).append((x, preference["rewards_accuracies"]))
        for name, curve in {**steps, **validations}.items():
            if not wanted or name in wanted:
                series[name, 0] = curve
        for rank, told in ranks.items():
            for name, key in (("rank_loss", 1), ("rank_memory", 2)):
                if name in wanted:
                    series[name, rank] = [(at[each[0]], each[key]) for each in told if each[0] in at]
        limits = request.get("begin", -math.inf), request.get("end", math.inf)
        xs = list(at.values())
        return {
            "series": [drawn(name, rank, curve, limits, most, half) for (name, rank), curve in series.items() if curve],
            "next_index": str(len(points)),
            "first_x": xs[0] if xs else 0,
            "last_x": xs[-1] if xs else 0,
            "last_step": str(last),
            "last_tokens": str(tokens),
            "last_attempt": points[-1]["attempt"] if points else 0,
            **({"begin_time": stamp(begin)} if points else {}),
        }

    def read_log(self, request):
        job = self._job(request)["name"].rsplit("/", 1)[-1]
        attempt = self._job(request)["attempt"]
        if request.get("attempt") not in (None, 0, attempt):
            attempt, job = request["attempt"], f"{job}/{request['attempt']}"
        log = self.fleet.logs.get(
            (job, request.get("rank", 0) if request.get("stream") != "prepare" else "prepare"), b""
        )
        offset = int(request.get("offset") or 0)
        if "tail_lines" in request:
            lines = log.split(b"\n")
            offset = max(0, len(log) - len(b"\n".join(lines[-request["tail_lines"] - 1 :])))
        while offset < len(log):
            chunk = log[offset : offset + (1 << 20)]
            yield {
                "offset": str(offset),
                "data": base64.b64encode(chunk).decode(),
                "end_of_file": False,
                "attempt": attempt,
            }
            offset += len(chunk)

    def list_events(self, request):
        job = self._job(request)["name"].rsplit("/", 1)[-1]
        return {"events": self.fleet.events.get(job, []), "next_page_token": ""}

    def list_checkpoints(self, request):
        job = self._job(request)["name"].rsplit("/", 1)[-1]
        return {"checkpoints": self.fleet.checkpoints.get(job, [])}

    def get_artifact(self, request):
        return self.fleet.artifacts[request["name"]]

    def _changed(self, method, request, **fields):
        job = self._job(request)
        with self.fleet.lock:
            self.fleet.calls.append((method, request))
            job.update(fields)
        return job

    def cancel_job(self, request):
        return self._changed("CancelJob", request, state="CANCELLED", reason="cancelled by ada", end_time=at(0))

    def hold_job(self, request):
        paused = {"state": "PENDING"} if request.get("pause") else {}
        return self._changed("HoldJob", request, held=True, reason="held by ada", **paused)

    def release_job(self, request):
        return self._changed("ReleaseJob", request, held=False, reason="")

    def explain_wait(self, request):
        job = self._job(request)
        if job["state"] != "PENDING":
            raise Refused(400, "FAILED_PRECONDITION", f"{request['name']} does not wait")
        return self.fleet.waits.get(job["name"].rsplit("/", 1)[-1], {"reason": job["reason"]})

    def checkpoint_job(self, request):
        return {"job": self._changed("CheckpointJob", request), "step": "120"}

    def hold_node(self, request):
        with self.fleet.lock:
            self.fleet.calls.append(("HoldNode", request))
            node = next(node for node in self.fleet.nodes if node["name"].endswith("/" + request["node"]))
            node["hold"] = {
                "mode": request["mode"],
                "reason": request.get("reason", ""),
                "who": "ada",
                "time": at(0),
                "jobs": [],
            }
        return node

    def release_node(self, request):
        with self.fleet.lock:
            self.fleet.calls.append(("ReleaseNode", request))
            node = next(node for node in self.fleet.nodes if node["name"].endswith("/" + request["node"]))
            node.pop("hold", None)
        return node

    def list_nodes(self, _):
        return {"nodes": self.fleet.nodes, "next_page_token": "", "warning": ""}

    def list_variants(self, _):
        return {"variants": self.fleet.variants, "next_page_token": ""}

    def get_node_history(self, request):
        """As the server does, in whole steps of what it keeps."""
        since, until = request["since_seconds"], request.get("until_seconds") or 0
        with self.fleet.lock:
            self.fleet.calls.append(("GetNodeHistory", request))
        if not 0 <= until < since <= 7 * 86400:
            raise Refused(400, "INVALID_ARGUMENT", f"of {since} to {until} seconds ago")
        node = next((node for node in self.fleet.nodes if node["name"] == f"nodes/{request['node']}"), None)
        if node is None:
            raise Refused(404, "NOT_FOUND", f"no node \"{request['node']}\"")
        kept = 10 if since <= 7200 else 60
        step = -(-(since - until) // request["max_points"] // kept) * kept
        now, use = time.time(), self.fleet.gpu_use.get(request["node"], lambda slot, seconds: None)
        times = range(-int(-(now - since) // step) * step, int(now - until) + 1, step)
        gpus = []
        for slot in node["slots"]:
            told = [(each, use(slot["index"], now - each)) for each in times]
            points = [{"time": stamp(each), **values} for each, values in told if values]
            if points:
                gpus.append({"slot": slot["index"], "points": points})
        return {"step_seconds": str(step), "gpus": gpus}

    def get_storage(self, _):
        return self.fleet.storage

    def get_stats(self, request):
        self.fleet.calls.append(("GetStats", request))
        return self.fleet.stats

    def list_audit_records(self, _):
        return {"records": self.fleet.audit, "next_page_token": ""}

    def resolve_job(self, request):
        plan = {
            "variant": "H100-4x",
            "nodes": 1,
            "ranks": 4,
            "placement": "it could start now",
            "batch": "1 x 4 x 16 = 64",
            "trainable_parameters": "20971520",
            "total_parameters": "8030261248",
            "memory": [
                {"category": "weights", "bytes": "16060000000"},
                {"category": "optimizer", "bytes": "252000000"},
            ],
            "memory_limit_bytes": "80000000000",
            "tokens_per_second": 21000.0,
            "execution": "",
            "note": "",
        }
        if request.get("explain_wait") and self.fleet.plan_wait:
            plan.update(placement=self.fleet.plan_wait["reason"], wait=self.fleet.plan_wait)
        return {
            "problems": self.fleet.problems,
            "warnings": [],
            "resolved": [
                {"key": "job.model", "value": "org/model", "origin": request.get("file_name", "") + ":3"},
                {"key": "lora.r", "value": "16", "origin": "default"},
            ],
            "resolved_json": "{}",
            "needed_files": self.fleet.needed,
            "plan": plan,
            "checked_for_submit": True,
        }

    def submit_job(self, request):
        self.fleet.calls.append(("SubmitJob", request))
        return self.fleet.add_job(
            f"job-new{len(self.fleet.jobs)}", reason="waiting for 4 x H100", source_text=request["source_text"]
        )

    def stat_blob(self, request):
        blob = self.fleet.blobs.get(request["sha256"], b"")
        complete = hashlib.sha256(blob).hexdigest() == request["sha256"]
        return {"complete": complete, "received": "0" if complete else str(len(blob))}

    def upload_blob(self, query, body):
        """As the server does, of data sets that are named by their hash; the rows are lines."""
        self.fleet.uploads.append(query)
        blob = self.fleet.blobs.get(query["sha256"], b"")
        if int(query["offset"]) != len(blob):
            raise Refused(409, "OUT_OF_RANGE", f"{len(blob)} bytes were received")
        blob = self.fleet.blobs[query["sha256"]] = blob + body
        if len(blob) != int(query["size"]) or hashlib.sha256(blob).hexdigest() != query["sha256"]:
            raise Refused(400, "INVALID_ARGUMENT", "what came has another hash")
        return {"blob": {"sha256": query["sha256"], "size": query["size"]}, "rows": str(blob.count(b"\n"))}


def snake(method):
    return "".join("_" + letter.lower() if letter.isupper() else letter for letter in method).lstrip("_")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _send(self, status, body, kind="application/json", extra=None):
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **(extra or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, status, value):
        self._send(status, json.dumps(value).encode())

    def _begin_stream(self):
        self.send_response(200)
        for name, value in {
            **HEADERS,
            "Content-Type": "text/event-stream",
            "Cache-Control": "no-store",
            "Connection": "close",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

    def _event(self, data, event="", identity=""):
        head = (f"event: {event}\n" if event else "") + (f"id: {identity}\n" if identity else "")
        self.wfile.write(f"{head}data: {json.dumps(self.server.fleet.spoil(data))}\n\n".encode())
        self.wfile.flush()

    def _is_allowed(self):
        token = self.server.fleet.token
        return not token or f"__Host-sft={token}" in self.headers.get("Cookie", "")

    def do_GET(self):  # pylint: disable=invalid-name
        path = urllib.parse.urlsplit(self.path)
        if path.path == "/api/v1/feed":
            if not self._is_allowed():
                self._json(401, {"code": "UNAUTHENTICATED", "message": "log in", "details": []})
                return
            self._feed(urllib.parse.parse_qs(path.query))
            return
        name = path.path[len("/assets/") :] if path.path.startswith("/assets/") else "index.html"
        file = (DASHBOARD / name).resolve()
        if DASHBOARD not in file.parents or not file.is_file():
            self._send(404, b"no such file", "text/plain")
            return
        self._send(200, gzip.compress(file.read_bytes(), 1), TYPES[file.suffix], {"Content-Encoding": "gzip"})

    def _upload(self, query, body):
        if not self._is_allowed():
            self._json(401, {"code": "UNAUTHENTICATED", "message": "log in", "details": []})
            return
        try:
            self._json(200, Calls(self.server.fleet).upload_blob(query, body))
        except Refused as refused:
            self._json(refused.status, refused.body)

    def do_DELETE(self):  # pylint: disable=invalid-name
        self._send(204, b"", extra={"Set-Cookie": "__Host-sft=; Secure; HttpOnly; SameSite=Strict; Path=/; Max-Age=0"})

    def do_POST(self):  # pylint: disable=invalid-name
        body = self.rfile.read(int(self.headers["Content-Length"]))
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/api/v1/DataService/UploadBlob":
            self._upload(dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True)), body)
            return
        request = json.loads(body)
        if self.path == "/session":
            if self.server.fleet.token not in (request.get("token"), request.get("code")):
                self._json(401, {"code": "UNAUTHENTICATED", "message": "the token is not valid", "details": []})
                return
            cookie = f"__Host-sft={self.server.fleet.token}; Secure; HttpOnly; SameSite=Strict; Path=/"
            self._send(204, b"", extra={"Set-Cookie": cookie})
            return
        if self.path == "/api/v1/AuthService/GetLoginOptions":
            company = self.server.fleet.company
            self._json(200, {"company": company != "", "issuer": company})
            return
        if not self._is_allowed():
            self._json(401, {"code": "UNAUTHENTICATED", "message": "log in", "details": []})
            return
        method = getattr(Calls(self.server.fleet), snake(self.path.rsplit("/", 1)[-1]), None)
        if method is None:
            self._json(404, {"code": "NOT_FOUND", "message": f"no method {self.path}", "details": []})
            return
        try:
            answer = method(request)
            if isinstance(answer, dict):
                self._json(200, self.server.fleet.spoil(answer))
                return
            answers = iter(answer)
            first = next(answers, None)
        except Refused as refused:
            self._json(refused.status, self.server.fleet.spoil(refused.body))
            return
        self._begin_stream()
        for message in ([first] if first is not None else []):
            self._event(message)
        for message in answers:
            self._event(message)
        self._event({}, "end")

    def _feed(self, query):
        """What the page does not have yet, then what comes, until the job has ended or the server stops."""
        fleet = self.server.fleet
        fleet.feeds.append(query)
        self._begin_stream()
        job, index = query.get("job", [""])[0], int(query.get("metrics", ["0"])[0])
        logs = {int(rank): int(offset) for rank, offset in (each.split(":") for each in query.get("log", []))}
        for part in filter(None, query.get("cursor", [""])[0].split(";")):
            if part[0] == "m" and "metrics" in query:
                index = int(part[1:])
            elif part[0] == "l":
                logs.update({int(part[1:].split(":")[0]): int(part.split(":")[2])} if "log" in query else {})
        cursor = lambda: ";".join([f"m{index}"] + [f"l{rank}:1:{offset}" for rank, offset in logs.items()])
        seen, sent_jobs = None, {name: json.dumps(each) for name, each in fleet.jobs.items()}
        try:
            while not self.server.stopping.wait(FEED_S if seen else 0):
                with fleet.lock:
                    now = json.dumps(fleet.jobs[job]) if job else "all"
                    points = fleet.points[job][index:] if job else []
                    texts = {rank: fleet.logs.get((job, rank), b"")[offset:] for rank, offset in logs.items()}
                    jobs = {name: json.dumps(each) for name, each in fleet.jobs.items()} if "jobs" in query else {}
                if job and now != seen:
                    self._event(json.loads(now), "job", cursor())
                seen = now
                if points and "metrics" in query:
                    index += len(points)
                    self._event({"points": points, "next": index}, "metrics", cursor())
                for rank, text in texts.items():
                    if text:
                        logs[rank] += len(text)
                        self._event(
                            {
                                "rank": rank,
                                "attempt": fleet.jobs[job]["attempt"],
                                "text": text.decode(errors="replace"),
                                "next": logs[rank],
                            },
                            "log",
                            cursor(),
                        )
                changed = [name for name, text in jobs.items() if sent_jobs.get(name) != text]
                if changed:
                    self._event({"changed": changed}, "jobs")
                    sent_jobs = jobs
                if job and json.loads(now)["state"] in ENDED:
                    self._event({}, "end")
                    return
                self.wfile.write(b": ping\n\n")
                self.wfile.flush()
        except OSError:
            pass  # the page has closed it


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, fleet, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.fleet = fleet
        self.stopping = threading.Event()
        self.open = set()
        self.port = self.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def process_request(self, request, client_address):
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request, client_address):
        pass  # a page that went away

    def stop(self):
        """As a kill does: no connection is ended in order."""
        self.stopping.set()
        self.shutdown()
        for connection in list(self.open):
            self.shutdown_request(connection)
        self.server_close()
