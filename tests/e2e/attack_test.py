#!/usr/bin/env python3
"""What attackers of the web address try, against a real server: a page of another site in a real browser, a name that leads to
this machine, requests that two programs read differently, and requests in pieces over TLS."""

import base64
import contextlib
import hashlib
import http.server
import json
import re
import socket
import ssl
import subprocess
import threading
import urllib.parse
import urllib.request
import warnings

import browser
import harness

SITE, REBOUND = "evil.example", "rebound.example"
SERVER = harness.BUILD / "bin/sft-server"

# All that a page may send without asking, and what it may ask for; `base` is the server. The page says what it could read.
FOREIGN_PAGE = """<!doctype html><title>another site</title><body><script>
const base = %(base)s, job = %(job)s, read = [];
const form = (path, type, fields) => new Promise((done) => {
  const frame = document.createElement('iframe');
  const each = document.createElement('form');
  frame.name = each.target = 'frame' + path + type;
  Object.assign(each, { method: 'POST', action: base + path, enctype: type });
  for (const [name, value] of Object.entries(fields)) {
    const input = document.createElement('input');
    Object.assign(input, { type: 'hidden', name, value });
    each.append(input);
  }
  document.body.append(frame, each);
  frame.onload = () => done();
  each.submit();
  setTimeout(done, 2000);
});
const ask = async (what, path, options) => {
  try {
    const answer = await fetch(base + path, options);
    const text = await answer.text();
    if (answer.type !== 'opaque' || text) read.push(what + ' ' + answer.status + ' ' + text.slice(0, 80));
  } catch (error) { /* refused by the browser */ }
};
(async () => {
  const cancel = JSON.stringify({ name: job });
  const call = '/api/v1/JobService/CancelJob';
  for (const mode of ['no-cors', 'cors']) {
    for (const type of ['text/plain', 'application/json', 'application/x-www-form-urlencoded']) {
      await ask('call', call, { method: 'POST', mode, credentials: 'include', body: cancel, headers: { 'Content-Type': type } });
    }
    for (const path of ['/api/v1/feed?jobs=1', '/api/v1/openapi.json', '/metrics', '/healthz', '/v1/models', '/']) {
      await ask('read', path, { mode, credentials: 'include', signal: AbortSignal.timeout(2000) });
    }
    const file = new FormData();
    file.append('purpose', 'fine-tune');
    file.append('file', new File(['{"text": "planted"}\\n'], 'planted.jsonl'));
    await ask('file', '/v1/files', { method: 'POST', mode, credentials: 'include', body: file });
    await ask('end', '/session', { method: 'DELETE', mode, credentials: 'include' });
    await ask('raw', '/api/v1/DataService/UploadBlob?purpose=DATASET&size=2', { method: 'POST', mode, body: new Blob(['{}']) });
  }
  navigator.sendBeacon(base + call, new Blob([cancel], { type: 'text/plain' }));
  await form(call, 'text/plain', { [cancel.slice(0, -1) + ',"reason":"']: '"}' });
  await form('/v1/files', 'multipart/form-data', { purpose: 'fine-tune' });
  await form('/session', 'text/plain', { '{"token":"': '"}' });
  await form('/oauth/token', 'application/x-www-form-urlencoded', { grant_type: 'x' });
  await form('/v1/fine_tuning/jobs/' + job + '/cancel', 'text/plain', { a: 'b' });
  await new Promise((done) => {
    const events = new EventSource(base + '/api/v1/feed?jobs=1');
    events.onopen = events.onerror = (event) => { if (event.type === 'open') read.push('events'); events.close(); done(); };
  });
  await new Promise((done) => {
    const script = document.createElement('script');
    script.onload = script.onerror = done;
    script.src = base + '/api/v1/openapi.json';
    document.body.append(script);
  });
  window.read = read;
})();
</script>"""


class OtherSite:
    """A web server of somebody else, reached by any name."""

    def __init__(self):
        self.page = ""
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = site.page.encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://{SITE}:{self.server.server_port}/"

    def stop(self):
        self.server.shutdown()
        self.server.server_close()


class AttackTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.http = harness.free_port()

    def open_browser(self):
        """A browser for which every name is this machine."""
        if browser.why_not():
            self.skipTest(browser.why_not())
        playwright = browser.sync_playwright().start()
        self.addCleanup(playwright.stop)
        program = playwright.chromium.launch(executable_path=browser.CHROMIUM,
                                             args=[f"--host-resolver-rules=MAP {SITE} 127.0.0.1,MAP {REBOUND} 127.0.0.1"])
        self.addCleanup(program.close)
        context = program.new_context()
        context.set_default_timeout(browser.DEADLINE_MS)
        return context.new_page()

    def attack(self, page, site, base, job):
        """Opens the other site's page; what it could read of the server."""
        site.page = FOREIGN_PAGE % {"base": json.dumps(base), "job": json.dumps(job)}
        page.goto(site.url)
        page.wait_for_function("window.read", timeout=browser.DEADLINE_MS)
        return page.evaluate("window.read")

    def test_a_page_of_another_site_changes_and_reads_nothing_of_a_server_without_tokens(self):
        page = self.open_browser()
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker(gpus="H100:2")
        job = self.submit("wait", ranks=1)
        self.wait_for_step(job)
        site = OtherSite()
        self.addCleanup(site.stop)
        changes = lambda: [each for each in map(json.loads, self.sftctl("admin", "audit", "--json").stdout.splitlines())
                           if each["outcome"] == "OK"]
        base = f"http://127.0.0.1:{self.http}"

        def refused():
            """Requests over HTTP that were answered 4xx."""
            with urllib.request.urlopen(base + "/metrics", timeout=harness.DEADLINE_S) as answer:
                counts = re.findall(r'^sft_http_request_duration_seconds_count\{.*status="4xx"\} (\d+)$', answer.read().decode(), re.M)
            return sum(map(int, counts))

        before, refused_before = changes(), refused()
        self.assertEqual(self.attack(page, site, base, job), [])
        self.assertEqual(self.status(job)["state"], "RUNNING")
        self.assertEqual(changes(), before)
        self.assertGreaterEqual(refused() - refused_before, 20, "what the page sent did not arrive")
        # The same requests of the page's own do what they say, so it is who asks that was refused.
        page.goto(base + "/jobs")
        taken = page.evaluate("""async (name) => {
          const file = new FormData();
          file.append('purpose', 'fine-tune');
          file.append('file', new File(['{"text": "mine"}\\n'], 'mine.jsonl'));
          const asked = [await fetch('/v1/files', { method: 'POST', body: file }), await fetch('/api/v1/JobService/CancelJob', {
            method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ name }) })];
          return asked.map((answer) => answer.status);
        }""", job)
        self.assertEqual(taken, [200, 200])
        self.assert_ends(job, 12)
        self.assertGreater(len(changes()), len(before))
        with urllib.request.urlopen(base + "/v1/files", timeout=harness.DEADLINE_S) as answer:
            self.assertEqual([each["filename"] for each in json.load(answer)["data"]], ["mine.jsonl"])

    def test_a_session_serves_its_own_page_even_from_a_link_and_no_other_site(self):
        page = self.open_browser()
        made = subprocess.run([str(SERVER), "init", "--data-dir", str(self.dir / "server"), "--name", "127.0.0.1"],
                              capture_output=True, text=True, check=True).stdout
        token = re.search(r"^admin token +(\S+)", made, re.M).group(1)
        self.start("server", SERVER, "--listen", f"0.0.0.0:{self.port}", "--http", f"127.0.0.1:{self.http}", "--data-dir",
                   self.dir / "server")
        harness.wait_until("the page", lambda: "web page: " in (self.dir / "server.log").read_text())
        base = f"http://127.0.0.1:{self.http}"
        page.goto(base + "/jobs")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.get_by_text("There is no job yet").wait_for()
        cookie, = page.context.cookies(base)
        self.assertEqual((cookie["name"], cookie["httpOnly"], cookie["secure"], cookie["sameSite"], cookie["path"]),
                         ("__Host-sft", True, True, "Strict", "/"))
        site = OtherSite()
        self.addCleanup(site.stop)
        self.assertEqual(self.attack(page, site, base, "job-none"), [])
        site.page = f'<a href="{base}/jobs">a link in a chat</a>'
        page.goto(site.url)
        page.get_by_role("link").click()
        page.get_by_text("There is no job yet").wait_for()
        changed = page.evaluate("""() => fetch('/api/v1/AuthService/ListAuditRecords', { method: 'POST',
            headers: { 'Content-Type': 'application/json' }, body: '{}' }).then((answer) => answer.json())""")
        self.assertEqual([each["method"] for each in changed["records"] if each["outcome"] == "OK"], [])

    def test_a_name_of_others_that_leads_to_this_machine_is_not_served(self):
        page = self.open_browser()
        self.start_server(http=f"127.0.0.1:{self.http}")
        for path in ("/", "/jobs", "/metrics", "/healthz", "/api/v1/openapi.json", "/v1/models", "/session", "/login/company"):
            answer = page.goto(f"http://{REBOUND}:{self.http}{path}")
            self.assertEqual(answer.status, 421, path)
        read = page.evaluate("""() => Promise.all(['/api/v1/JobService/ListJobs', '/v1/files'].map((path) => fetch(path, {
            method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' }).then((answer) => answer.status)))""")
        self.assertEqual(read, [421, 421])

    def start_closed_server(self):
        """A server with tokens whose page has TLS; the admin's token."""
        made = subprocess.run([str(SERVER), "init", "--data-dir", str(self.dir / "server"), "--name", "127.0.0.1"],
                              capture_output=True, text=True, check=True).stdout
        self.start("server", SERVER, "--listen", f"127.0.0.1:{self.port}", "--require-token", "--http",
                   f"0.0.0.0:{self.http}", "--data-dir", self.dir / "server")
        harness.wait_until("the page", lambda: "web page: " in (self.dir / "server.log").read_text())
        return re.search(r"^admin token +(\S+)", made, re.M).group(1)

    def connect(self, version):
        context = ssl.create_default_context(cafile=self.dir / "server/tls/ca.crt")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of versions that are out of date
            context.minimum_version = context.maximum_version = version
        plain = socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return context.wrap_socket(plain, server_hostname="127.0.0.1")

    def answer_of(self, connection, so_far=b""):
        """Status and body of one answer, and what came behind it."""
        while b"\r\n\r\n" not in so_far:
            more = connection.recv(65536)
            self.assertTrue(more, so_far)
            so_far += more
        head, _, rest = so_far.partition(b"\r\n\r\n")
        size = int(re.search(rb"(?i)\r\ncontent-length: (\d+)", head)[1])
        while len(rest) < size:
            rest += connection.recv(65536)
        return int(head.split()[1]), rest[:size], rest[size:]

    def test_each_split_of_a_request_is_read_alike_over_tls_1_2_and_1_3(self):
        token = self.start_closed_server()
        for coding in ("Content-Length: 2\r\n\r\n{}", "Transfer-Encoding: chunked\r\n\r\n1;a=b\r\n{\r\n1\r\n}\r\n0\r\nT: u\r\n\r\n"):
            request = (f"POST /api/v1/AuthService/WhoAmI HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
                       f"Content-Type: application/json\r\n{coding}").encode()
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                with self.connect(version) as connection:
                    self.assertEqual(connection.version(), {ssl.TLSVersion.TLSv1_2: "TLSv1.2"}.get(version, "TLSv1.3"))
                    for split in range(1, len(request)):
                        connection.sendall(request[:split])
                        connection.sendall(request[split:])
                        status, body, rest = self.answer_of(connection)
                        self.assertEqual((status, json.loads(body)["user"]["name"], rest), (200, "admin", b""), split)
                    for byte in request:
                        connection.sendall(bytes([byte]))
                    self.assertEqual(self.answer_of(connection)[0], 200)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.connect(ssl.TLSVersion.TLSv1_1)
        # Who speaks no TLS there is told nothing.
        with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                self.assertNotIn(b"HTTP/", plain.recv(4096))

    def test_what_proxies_read_differently_hides_no_second_request(self):
        self.start_server(http=f"127.0.0.1:{self.http}")
        hidden = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        post = b"POST /api/v1/ClusterService/GetServerInfo HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        size = b"%d" % (len(hidden) + 5)
        chunked = b"Transfer-Encoding: chunked\r\n"
        heads = {
            "both lengths, chunks first": post + chunked + b"Content-Length: " + size + b"\r\n\r\n0\r\n\r\n",
            "both lengths, chunks last": post + b"Content-Length: 5\r\n" + chunked + b"\r\n0\r\n\r\n",
            "two lengths": post + b"Content-Length: 2\r\nContent-Length: " + size + b"\r\n\r\n{}",
            "the same length twice": post + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
            "a list of lengths": post + b"Content-Length: 2, 2\r\n\r\n{}",
            "a length with a sign": post + b"Content-Length: +2\r\n\r\n{}",
            "a length below none": post + b"Content-Length: -2\r\n\r\n{}",
            "a length of 2^64": post + b"Content-Length: 18446744073709551618\r\n\r\n{}",
            "two codings": post + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
            "a coding that is none": post + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
            "a coding behind a tab": post + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
            "a coding behind a space": post + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
            "a folded coding": post + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
            "a folded field": post + b"X: a\r\n Content-Length: 2\r\n\r\n{}",
            "a bare line feed": post + b"X: a\nContent-Length: 2\r\n\r\n{}",
            "a bare carriage return": post + b"X: a\rContent-Length: 2\r\n\r\n{}",
            "a zero in a field": post + b"X: a\0Content-Length: 2\r\n\r\n{}",
            "chunks in HTTP/1.0": post.replace(b"/1.1", b"/1.0") + chunked + b"\r\n0\r\n\r\n",
            "a chunk of 2^64": post + chunked + b"\r\n10000000000000000\r\n",
            "a chunk with a sign": post + chunked + b"\r\n+0\r\n\r\n",
            "a chunk in C's hexadecimal": post + chunked + b"\r\n0x0\r\n\r\n",
            "a chunk that ends with a line feed": post + chunked + b"\r\n0\n\r\n",
            "a chunk longer than it says": post + chunked + b"\r\n1\r\n{}\r\n0\r\n\r\n",
            "a chunk with too much to say": post + chunked + b"\r\n0;" + b"x" * 300 + b"\r\n\r\n",
            "a zero in a path": b"GET /healthz%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a path upwards": b"GET /assets/..%2f..%2fserver.db HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "another server's address": b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "two hosts": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
            "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
            "a tunnel": b"CONNECT localhost:22 HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a line before the request": b"\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        }
        for what, head in heads.items():
            with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as connection:
                connection.sendall(head + hidden)
                received = b""
                try:
                    while more := connection.recv(65536):
                        received += more
                except ConnectionResetError:
                    pass  # what it has not read is thrown away
                self.assertEqual((re.findall(rb"HTTP/1\.1 (\d+)", received), b"ok\n" in received), ([b"400"], False),
                                 f"{what}: {received[:300]}")
        # Two that follow each other are two.
        with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as connection:
            connection.sendall(hidden + hidden)
            status, body, rest = self.answer_of(connection)
            self.assertEqual((status, body), (200, b"ok\n"))
            self.assertEqual(self.answer_of(connection, rest)[:2], (200, b"ok\n"))
        # What a browser would take for a tunnel of its own is an ordinary request.
        key = base64.b64encode(hashlib.sha256(b"key").digest()[:16]).decode()
        with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as connection:
            connection.sendall(f"GET /api/v1/feed?jobs=1&{urllib.parse.quote('a=' + chr(1))} HTTP/1.1\r\nHost: localhost\r\n"
                               f"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                               f"Sec-WebSocket-Key: {key}\r\nOrigin: http://{SITE}\r\n\r\n".encode())
            self.assertEqual(self.answer_of(connection)[0], 403)


if __name__ == "__main__":
    harness.run_tests()
