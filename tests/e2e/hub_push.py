"""The half of the test hub (hub.py) that takes what is pushed: repositories, branches, large files and commits."""
import base64
import hashlib
import json
import urllib.parse


class PushState:
    """What tests switch on, and what was sent; a part of hub.Hub."""

    def start_pushes(self):
        self.readers = set()  # good tokens that may not write
        self.objects = {}  # sha256 -> bytes of large files that came whole
        self.parts = {}  # sha256 -> {number: bytes}
        self.commits = []  # (repository, branch, summary, [lines]) of commits that were made
        self.ignored = set()  # paths that the repository's .gitignore leaves out
        self.part_bytes = 0  # large files go in parts of this size; 0: whole
        # Faults. Numbers are of requests that still fail.
        self.put_broken = 0  # 503 of the store
        self.put_expired = 0  # 403 of the store
        self.put_cut = 0  # the connection ends within the bytes
        self.put_flip = 0  # the store keeps another byte than came
        self.commit_lost = 0  # the commit is made, but its answer does not arrive
        self.commit_overtaken = 0  # another commit comes first
        self.commit_broken = 0  # 503
        self.commit_refused = ""  # what the hub says of the commit, with 400


class PushRoutes:
    """POST and PUT of hub._Handler."""

    def do_POST(self):
        hub = self.owner
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        hub.log.append((self.server_name, self.command, self.path, token, None))
        body = self._body()
        if hub.take("too_many"):
            return self._answer(429, b"", {"Retry-After": hub.retry_after})
        path = urllib.parse.urlsplit(self.path).path.strip("/").split("/")
        if path == ["api", "validate-yaml"]:
            return self._json(200, {"errors": [], "warnings": []})
        if path[:1] == ["complete"]:  # signed: the real client sends no token there
            return self._complete(path[1], json.loads(body))
        if token not in hub.tokens:
            return self._json(401, {"error": "Invalid username or password."})
        if token in hub.readers:
            return self._json(403, {"error": "You must use a write token to upload to a repository."})
        if path == ["api", "repos", "create"]:
            return self._create(json.loads(body))
        name = "/".join(path[2:4]) if path[0] == "api" else path[0] + "/" + path[1].removesuffix(".git")
        refused = self._refused(name, token)
        if refused:
            return self._error(*refused)
        if path[2:] == ["info", "lfs", "objects", "batch"]:
            return self._batch(json.loads(body))
        if path[2:] == ["info", "lfs", "objects", "verify"]:
            asked = json.loads(body)
            there = len(hub.objects.get(asked["oid"], b"")) == asked["size"]
            return self._json(200 if there else 404, {"message": "object not found"})
        branch = urllib.parse.unquote(path[5]) if len(path) > 5 else ""
        if path[4:5] == ["branch"]:
            return self._branch(name, branch)
        if path[4:5] == ["preupload"]:
            return self._preupload(name, branch, json.loads(body))
        if path[4:5] == ["commit"]:
            return self._commit_lines(name, branch, [json.loads(line) for line in body.splitlines() if line])
        return self._answer(404, b"")

    def do_PUT(self):
        hub = self.owner
        hub.log.append((self.server_name, self.command, self.path, self.headers.get("Authorization", ""), None))
        path = urllib.parse.urlsplit(self.path).path.strip("/").split("/")
        if hub.take("put_cut"):
            self.rfile.read(1000)
            self.close_connection = True
            return self.connection.close()
        data = self._body()
        if hub.take("put_broken"):
            return self._answer(503, b"")
        if hub.take("put_expired"):
            return self._answer(403, b"expired")
        if hub.take("put_flip"):
            data = bytes([data[0] ^ 1]) + data[1:]
        oid = path[1]
        if len(path) > 2:
            hub.parts.setdefault(oid, {})[int(path[2])] = data
        elif hashlib.sha256(data).hexdigest() == oid:
            hub.objects[oid] = data
        else:
            return self._answer(400, b"BadDigest")
        return self._answer(200, b"", {"ETag": '"%s"' % hashlib.md5(data).hexdigest()})

    def _body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _json(self, status, value):
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _create(self, asked):
        name = "%s/%s" % (asked.get("organization") or "somebody", asked["name"])
        if asked.get("organization") not in (None, "somebody", "org"):
            return self._json(403, {"error": "You don't have the rights to create a model under this namespace"})
        if name in self.owner.repos:
            return self._json(409, {"error": "You already created this model repo",
                                    "url": "%s/%s" % (self.owner.url, name)})
        self.owner.add(name, {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"})
        if asked.get("private") or asked.get("visibility") == "private":
            self.owner.private.add(name)
        return self._json(200, {"url": "%s/%s" % (self.owner.url, name), "name": name, "id": name})

    def _branch(self, name, branch):
        repo = self.owner.repos[name]
        if branch in repo.refs:
            return self._json(409, {"error": "Reference already exists"})
        repo.refs[branch] = repo.refs["main"]
        return self._json(200, {})

    def _preupload(self, name, branch, asked):
        if self._commit(name, branch) is None:
            return self._error(404, "RevisionNotFound")
        files = []
        for file in asked["files"]:
            sample = base64.b64decode(file["sample"])
            large = file["path"].endswith((".safetensors", ".bin", ".gguf")) or file["size"] > 1 << 16 or b"\0" in sample
            files.append({"path": file["path"], "uploadMode": "lfs" if large else "regular",
                          "shouldIgnore": file["path"] in self.owner.ignored, "oid": None})
        self._json(200, {"files": files})

    def _batch(self, asked):
        hub, objects = self.owner, []
        store = "%s://localhost:%d/upload" % (hub.scheme, hub.store.server_address[1])
        for each in asked["objects"]:
            oid, size = each["oid"], each["size"]
            entry = {"oid": oid, "size": size, "authenticated": True}
            if oid not in hub.objects:
                upload = {"href": "%s/%s?signature=secret" % (store, oid), "header": {}}
                if hub.part_bytes and size > hub.part_bytes:
                    count = (size + hub.part_bytes - 1) // hub.part_bytes
                    upload = {"href": "%s/complete/%s" % (hub.url, oid), "header": {
                        "chunk_size": str(hub.part_bytes),
                        **{"%05d" % n: "%s/%s/%d?signature=secret" % (store, oid, n) for n in range(1, count + 1)}}}
                entry["actions"] = {"upload": upload, "verify": {
                    "href": "%s%s" % (hub.url, self.path.replace("/batch", "/verify")), "header": {}}}
            objects.append(entry)
        self._json(200, {"transfer": "multipart" if hub.part_bytes else "basic", "objects": objects})

    def _complete(self, oid, asked):
        parts = self.owner.parts.get(oid, {})
        tags = ['"%s"' % hashlib.md5(parts[part["partNumber"]]).hexdigest() for part in asked["parts"]]
        data = b"".join(parts[part["partNumber"]] for part in asked["parts"])
        if tags != [part["etag"] for part in asked["parts"]] or hashlib.sha256(data).hexdigest() != oid:
            return self._json(400, {"error": "the parts are not the file"})
        self.owner.objects[oid] = data
        return self._json(200, {})

    def _commit_lines(self, name, branch, lines):
        hub, header = self.owner, lines[0]["value"]
        if hub.take("commit_broken"):
            return self._answer(503, b"")
        if hub.commit_refused:
            return self._json(400, {"error": hub.commit_refused})
        if hub.take("commit_overtaken"):
            hub.add(name, {**hub.repos[name].commits[self._commit(name, branch)], "other": b"of somebody"}, branch)
        parent = self._commit(name, branch)
        if parent is None:
            return self._error(404, "RevisionNotFound")
        if header.get("parentCommit", parent) != parent:
            return self._json(412, {"error": "A commit has happened since. Please refresh and try again."})
        files = dict(hub.repos[name].commits[parent])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "lfsFile":
                if len(hub.objects.get(value["oid"], b"")) != value.get("size", len(hub.objects.get(value["oid"], b""))):
                    return self._json(400, {"error": "LFS pointer pointed to a file that does not exist"})
                files[value["path"]] = hub.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        commit = hub.add(name, files, branch)
        hub.commits.append((name, branch, header["summary"], lines))
        if hub.take("commit_lost"):
            self.close_connection = True
            return self.connection.close()
        self._json(200, {"success": True, "commitOid": commit, "commitUrl": "%s/%s/commit/%s" % (hub.url, name, commit),
                         "hookOutput": ""})
