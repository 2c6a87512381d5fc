#!/usr/bin/env python3
"""A model hub for tests: Hugging Face's protocol on loopback, with faults.

Two servers, as there: the hub itself, and under another name the store that large files are redirected to. What tests
switch on is an attribute; what they look at is `log`. The real huggingface_hub client works against it (hub_test.py).

By hand: hub.py ID=FOLDER... prints the address (HF_ENDPOINT) and serves until it is ended.
"""
import hashlib
import http.server
import json
import socket
import ssl
import sys
import threading
import time
import urllib.parse

from hub_push import PushRoutes, PushState

SMALL = 1 << 16  # larger files, and weights, are LFS files


class Repo:
    def __init__(self):
        self.commits = {}  # commit -> {path: bytes}
        self.refs = {}


class Hub(PushState):
    def __init__(self, certificate=None):
        """`certificate`: a PEM file with key and certificate for 127.0.0.1 and localhost; then over TLS."""
        self.repos = {}
        self.certificate = certificate
        self.scheme = "https" if certificate else "http"
        self.tokens = {"hf_right": {}}  # every token that is good
        self.gated = set()  # repositories that no token may read
        self.private = set()  # those that need a good token
        self.page = 2  # files on a page of the listing
        self.log = []  # (server, method, path, token, range)
        # Faults. Numbers are of answers that still fail.
        self.too_many = 0  # 429
        self.retry_after = "0"
        self.broken = 0  # 503
        self.cut = {}  # path -> [bytes that are sent before the connection breaks, ...] in turn
        self.no_range = False
        self.expired = 0  # 403 of the store
        self.flip = {}  # path -> times that its first byte is another
        self.oids = {}  # path -> what the listing calls it instead of its hash
        self.rate = 0  # bytes a second of each connection; 0: all at once
        self.start_pushes()
        self.lock = threading.Lock()
        self.hub = self._serve("hub")
        self.store = self._serve("store")
        self.url = "%s://127.0.0.1:%d" % (self.scheme, self.hub.server_address[1])

    def _serve(self, name):
        handler = type("Handler", (_Handler,), {"owner": self, "server_name": name})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that was killed
        if self.certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        for server in (self.hub, self.store):
            server.shutdown()
            server.server_close()

    def add(self, name, files, ref="main"):
        """A commit with these files; returns its hash. `ref` then means it."""
        repo = self.repos.setdefault(name, Repo())
        whole = hashlib.sha1(name.encode())
        for path in sorted(files):
            whole.update(path.encode() + b"\0" + hashlib.sha256(files[path]).digest())
        commit = whole.hexdigest()
        repo.commits[commit] = dict(files)
        repo.refs[ref] = commit
        return commit

    def asked(self, what, server=None):
        return [line for line in self.log if what in line[2] and server in (None, line[0])]

    def take(self, counter):
        """True while a fault of that name is left."""
        with self.lock:
            left = getattr(self, counter)
            if left > 0:
                setattr(self, counter, left - 1)
            return left > 0


class Proxy:
    """An HTTP proxy that connects (CONNECT); `asked` has the addresses."""

    def __init__(self):
        self.asked = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:%d" % self.socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client = self.socket.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client):
        head = b""
        while b"\r\n\r\n" not in head:
            head += client.recv(1000) or b"\r\n\r\n"
        method, address = head.decode().split()[:2]
        self.asked.append((method, address))
        host, _, port = address.rpartition(":")
        with client, socket.create_connection((host, int(port))) as server:
            client.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            back = threading.Thread(target=self._pass, args=(server, client), daemon=True)
            back.start()
            self._pass(client, server)
            back.join()

    @staticmethod
    def _pass(source, target):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self):
        self.socket.close()


def git_id(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def is_lfs(path, data):
    return path.endswith((".safetensors", ".bin")) or len(data) > SMALL


class _Handler(PushRoutes, http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner = None
    server_name = ""

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.owner
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        hub.log.append((self.server_name, self.command, self.path, token, self.headers.get("Range")))
        parts = urllib.parse.urlsplit(self.path)
        path = parts.path.strip("/").split("/")
        if self.server_name == "store":
            return self._store(path)
        if hub.take("too_many"):
            return self._answer(429, b"", {"Retry-After": hub.retry_after})
        if hub.take("broken"):
            return self._answer(503, b"")
        if path[:2] == ["api", "whoami-v2"]:
            return self._answer(200 if token in hub.tokens else 401, b'{"name": "somebody"}')
        if path[:2] == ["api", "models"]:
            return self._api(path[2:], token, urllib.parse.parse_qs(parts.query))
        if len(path) >= 5 and path[2] == "resolve":
            return self._resolve("/".join(path[:2]), path[3], "/".join(path[4:]), token)
        return self._answer(404, b"")

    def _refused(self, name, token):
        """The error code for this caller; None: it may."""
        hub = self.owner
        if token and token not in hub.tokens:
            return 401, "RepoNotFound"
        if name not in hub.repos or (name in hub.private and not token):
            return (404 if token else 401), "RepoNotFound"
        return None

    def _commit(self, name, revision):
        repo = self.owner.repos[name]
        revision = urllib.parse.unquote(revision)
        return repo.refs.get(revision) or (revision if revision in repo.commits else None)

    def _error(self, status, code):
        self._answer(status, b"{}", {"X-Error-Code": code, "X-Error-Message": "refused by the test"})

    def _api(self, path, token, query):
        name = "/".join(path[:2])
        refused = self._refused(name, token)
        if refused:
            return self._error(*refused)
        commit = self._commit(name, path[3]) if len(path) > 3 else self._commit(name, "main")
        if commit is None:
            return self._error(404, "RevisionNotFound")
        files = self.owner.repos[name].commits[commit]
        if len(path) > 2 and path[2] == "tree":
            return self._tree(name, commit, files, int(query.get("cursor", ["0"])[0]))
        siblings = [{"rfilename": each} for each in sorted(files)]
        body = json.dumps({"id": name, "sha": commit, "siblings": siblings, "private": name in self.owner.private, "tags": [],
                           "downloads": 0, "likes": 0}).encode()
        return self._answer(200, body, {"Content-Type": "application/json"})

    def _tree(self, name, commit, files, first):
        entries = []
        for each in sorted(files):
            data = files[each]
            entry = {"type": "file", "path": each, "size": len(data),
                     "oid": self.owner.oids.get(each, git_id(data))}
            if is_lfs(each, data):
                entry["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                entry["oid"] = git_id(b"pointer " + each.encode())
            entries.append(entry)
        page = entries[first:first + self.owner.page]
        headers = {"Content-Type": "application/json"}
        if first + self.owner.page < len(entries):
            headers["Link"] = '<%s/api/models/%s/tree/%s?recursive=true&expand=false&cursor=%d>; rel="next"' % (
                self.owner.url, name, commit, first + self.owner.page)
        self._answer(200, json.dumps(page).encode(), headers)

    def _resolve(self, name, revision, path, token):
        refused = self._refused(name, token)
        if refused:
            return self._error(*refused)
        path = urllib.parse.unquote(path)
        commit = self._commit(name, revision)
        if commit is None:
            return self._error(404, "RevisionNotFound")
        if name in self.owner.gated:
            return self._error(403 if token else 401, "GatedRepo")
        data = self.owner.repos[name].commits[commit].get(path)
        if data is None:
            return self._error(404, "EntryNotFound")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if not is_lfs(path, data):
            headers["ETag"] = '"%s"' % git_id(data)
            return self._bytes(path, data, headers)
        headers.update({
            "X-Linked-Etag": '"%s"' % hashlib.sha256(data).hexdigest(), "X-Linked-Size": str(len(data)),
            "Location": "%s://localhost:%d/%s/%s/%s?signature=secret" % (
                self.owner.scheme, self.owner.store.server_address[1], name, commit, urllib.parse.quote(path))})
        self._answer(302, b"", headers)

    def _store(self, path):
        if self.owner.take("expired"):
            return self._answer(403, b"expired")
        files = self.owner.repos["/".join(path[:2])].commits[path[2]]
        name = urllib.parse.unquote("/".join(path[3:]))
        self._bytes(name, files[name], {"ETag": '"of-the-store"'})

    def _bytes(self, path, data, headers):
        hub = self.owner
        with hub.lock:
            if hub.flip.get(path, 0) > 0 and self.command == "GET":
                hub.flip[path] -= 1
                data = bytes([data[0] ^ 1]) + data[1:]
        status, asked = 200, self.headers.get("Range")
        if asked and not hub.no_range:
            begin = int(asked.removeprefix("bytes=").split("-")[0])
            if begin >= len(data):
                return self._answer(416, b"", {"Content-Range": "bytes */%d" % len(data)})
            headers["Content-Range"] = "bytes %d-%d/%d" % (begin, len(data) - 1, len(data))
            status, data = 206, data[begin:]
        self._answer(status, data, headers, cut=self._cut(path))

    def _cut(self, path):
        with self.owner.lock:
            cuts = self.owner.cut.get(path)
            return cuts.pop(0) if cuts and self.command == "GET" else None

    def _answer(self, status, body, headers=None, cut=None):
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is not None:
            body = body[:cut]
            self.close_connection = True
        try:
            rate = self.owner.rate
            if not rate or len(body) < SMALL:
                self.wfile.write(body)
            else:
                piece = max(1, rate // 20)
                for at in range(0, len(body), piece):
                    self.wfile.write(body[at:at + piece])
                    time.sleep(0.05)
        except OSError:
            self.close_connection = True
        if cut is not None:
            self.connection.close()


def read_folder(folder):
    import pathlib
    root = pathlib.Path(folder)
    return {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}


if __name__ == "__main__":
    served = Hub()
    for argument in sys.argv[1:]:
        repository, _, source = argument.partition("=")
        print(repository, served.add(repository, read_folder(source)))
    print("HF_ENDPOINT=" + served.url, flush=True)
    threading.Event().wait()
