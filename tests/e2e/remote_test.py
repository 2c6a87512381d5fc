"""Two teams and their nodes, each in a network of its own, with one server between them: TLS, tokens,
joining, and that neither sees nor touches what the other has."""

import json
import os
import re
import shutil
import stat
import subprocess

from harness import BUILD, DEADLINE_S, wait_until
from network import CutNetwork, Site, run_tests
from remote import RemoteCase

SUCCEEDED, USAGE, NOT_FOUND, UNREACHABLE, REFUSED, CANCELLED = 0, 2, 3, 4, 5, 12
OK, NOT_FOUND_CODE, PERMISSION_DENIED, FAILED_PRECONDITION, UNAUTHENTICATED = 0, 5, 7, 9, 16
HIDDEN = {NOT_FOUND_CODE, PERMISSION_DENIED}


class RemoteTest(RemoteCase):

    def setUp(self):
        super().setUp()
        missing = CutNetwork.missing()
        if missing:
            self.skipTest(missing)
        first = os.getpid() % 80 * 3
        self.sites = [Site(first + i) for i in range(3)]
        for site in self.sites:
            self.addCleanup(site.close)
            site.open()

    def add_user(self, site, name, *roles):
        """Makes a user with a token, who then logs in from its site."""
        flags = [part for role in roles for part in ("--project", role)]
        self.assertEqual(self.at(None, "admin", "admin", "user", "set", name, *flags).returncode, 0)
        made = self.at(None, "admin", "admin", "token", "create", name)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.secret(name, made.stdout)
        result = self.login(site, name, name)
        self.assertEqual(result.returncode, 0, result.stderr)

    def worker(self, site, node, token="join", name=None, wait=True, prefix=()):
        name = name or node
        self.start(name, *site.prefix(), *prefix, BUILD / "bin/sft-worker", "--dev", "--server",
                   f"{site.outside}:{self.port}", "--data-dir", self.dir / name, "--node", node, "--models",
                   self.dir / "models", "--simulate-gpus", "H100:2", "--cpu-slots", 0, "--grace", 1,
                   "--rank-binary", BUILD / "tests/sft-fake-rank",
                   *(["--join-token-file", self.dir / f"{token}.token"] if token else []))
        if wait:
            wait_until(f"{node} to be UP", lambda: self.node(node).get("state") == "UP")

    def submit_at(self, site, who, mode, name, **environment):
        job = self.write_job(mode, ranks=1, name=name)
        result = self.at(site, who, "submit", job, "--json", **environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["job"]

    def every_rpc(self, site, token, **fields):
        """Each rpc of the contract, called from a site with these values in its request."""
        result = subprocess.run(
            [*site.prefix(), str(BUILD / "tests/sft-call-every-rpc"), f"{site.outside}:{self.port}",
             str(self.dir / "server/tls/ca.crt"), str(self.dir / f"{token}.token") if token else "-",
             *[f"{key}={value}" for key, value in fields.items()]],
            capture_output=True, text=True, timeout=DEADLINE_S, check=True)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_two_tenants_share_a_fleet_and_see_nothing_of_each_other(self):
        self.serve(*[site.outside for site in self.sites])
        ann_site, bob_site, nodes_site = self.sites
        self.worker(nodes_site, "node-a")
        self.add_user(ann_site, "ann", "alpha=submitter")
        self.add_user(bob_site, "bob", "beta=submitter")
        # Each submits, follows, downloads and cancels.
        jobs = {}
        for site, who in ((ann_site, "ann"), (bob_site, "bob")):
            done = self.submit_at(site, who, "ok", f"{who}-done")
            followed = self.at(site, who, "logs", done, "--follow")
            self.assertEqual(followed.returncode, SUCCEEDED, followed.stderr)
            self.assertIn("rank 0 done", followed.stdout)
            result = self.at(site, who, "download", done, "-o", self.dir / f"{who}-adapter")
            self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
            self.assertTrue((self.dir / f"{who}-adapter").is_dir())
            gate = self.dir / f"{who}-gate"
            jobs[who] = self.submit_at(site, who, f"until {gate}", f"{who}-live")
            wait_until(f"{who}'s job to run", lambda: json.loads(
                self.at(site, who, "status", jobs[who], "--json").stdout)["state"] == "RUNNING")
        # Neither sees the other's.
        for site, who, other in ((ann_site, "ann", "bob"), (bob_site, "bob", "ann")):
            listed = [job["job"] for job in json.loads(self.at(site, who, "list", "--json").stdout)]
            self.assertEqual(len(listed), 2)
            self.assertNotIn(jobs[other], listed)
            for command in (["status"], ["logs"], ["events"], ["metrics"], ["cancel"], ["checkpoint"],
                            ["checkpoints"], ["resume"], ["wait", "--timeout", "0"],
                            ["download", "-o", self.dir / "stolen"]):
                result = self.at(site, who, command[0], jobs[other], *command[1:])
                self.assertEqual(result.returncode, NOT_FOUND, f"{command} {result.stdout}{result.stderr}")
                self.assertIn(f'no job "{jobs[other]}"', result.stderr)
            self.assertEqual(self.at(site, who, "list", "--project",
                                     "beta" if who == "ann" else "alpha").returncode, REFUSED)
            shown = self.at(site, who, "nodes", "--json").stdout
            self.assertNotIn(jobs[other], shown)
            self.assertIn("another project", shown)
        self.each_sees_and_removes_its_own(jobs)
        self.each_rpc_with_the_others_names(bob_site, jobs["ann"])
        result = self.at(bob_site, "bob", "status", jobs["ann"])
        self.assertEqual(self.at(None, "admin", "status", jobs["ann"]).returncode, 0, result.stderr)
        self.assertIn("RUNNING", self.at(ann_site, "ann", "status", jobs["ann"]).stdout)
        result = self.at(ann_site, "ann", "cancel", jobs["ann"])
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertEqual(self.at(ann_site, "ann", "wait", jobs["ann"]).returncode, CANCELLED)
        (self.dir / "bob-gate").touch()
        self.assertEqual(self.at(bob_site, "bob", "wait", jobs["bob"]).returncode, SUCCEEDED)
        self.check_audit(jobs)

    def each_sees_and_removes_its_own(self, jobs):
        stored = {}
        for site, who, project in ((self.sites[0], "ann", "alpha"), (self.sites[1], "bob", "beta")):
            stored[who] = json.loads(self.at(site, who, "storage", "--json", "--biggest", 1000).stdout)
            self.assertEqual([use["project"] for use in stored[who]["projects"]], [project])
            self.assertEqual({item["project"] for item in stored[who]["biggest"]}, {project})
            kinds = {item["kind"] for item in stored[who]["biggest"]}
            self.assertLessEqual({"DATASETS", "ARTIFACTS", "LOGS"}, kinds)
        names = {item["name"] for item in stored["bob"]["biggest"] if item["live_jobs"] == 0}
        for name in names - {item["name"] for item in stored["ann"]["biggest"]}:
            result = self.at(self.sites[0], "ann", "rm", name)
            self.assertEqual(result.returncode, NOT_FOUND, result.stderr)
        done = next(item["name"] for item in stored["bob"]["biggest"]
                    if item["kind"] == "LOGS" and item["name"] != jobs["bob"])
        self.assertEqual(self.at(self.sites[0], "ann", "rm", "backup:any").returncode, REFUSED)
        result = self.at(self.sites[1], "bob", "rm", done, "--logs")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertRegex(result.stdout, "freed [1-9]")
        left = json.loads(self.at(self.sites[1], "bob", "storage", "--json", "--biggest", 1000).stdout)["biggest"]
        self.assertNotIn((done, "LOGS"), [(item["name"], item["kind"]) for item in left])
        shared = self.dir / "shared.jsonl"
        shared.write_text(json.dumps({"prompt": "the same", "completion": "of both"}) + "\n")
        for site, who in ((self.sites[0], "ann"), (self.sites[1], "bob")):
            job = self.write_job("ok", ranks=1, name=f"{who}-shared")
            result = self.at(site, who, "submit", job, "--dataset", shared, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.at(site, who, "cancel", json.loads(result.stdout)["job"]).returncode, SUCCEEDED)
        sha256 = subprocess.run(["sha256sum", str(shared)], capture_output=True, text=True,
                                check=True).stdout.split()[0]
        # The survey is made anew every ten seconds.
        item = wait_until("the data set to be shown", lambda: next((item for item in json.loads(self.at(
            self.sites[0], "ann", "storage", "--json", "--biggest", 1000).stdout)["biggest"]
            if item["name"] == f"dataset:{sha256}"), None))
        self.assertEqual((item["project"], item["owner"], item["jobs"]), ("alpha", "", 0))
        # What ann has of it goes; bob's stays and can be used.
        result = self.at(self.sites[0], "ann", "rm", f"dataset:{sha256}")
        self.assertEqual(result.returncode, REFUSED, result.stderr)
        self.assertIn("named by 1 ended job (", result.stderr)
        result = self.at(self.sites[0], "ann", "rm", f"dataset:{sha256}", "--force")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertEqual(self.at(self.sites[0], "ann", "rm", f"dataset:{sha256}").returncode, NOT_FOUND)
        left = json.loads(self.at(self.sites[1], "bob", "storage", "--json", "--biggest", 1000).stdout)["biggest"]
        self.assertIn(f"dataset:{sha256}", [item["name"] for item in left])
        job = self.write_job("ok", ranks=1, name="bob-again")
        result = self.at(self.sites[1], "bob", "submit", job, "--dataset", shared, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("uploading", result.stderr)
        self.assertEqual(self.at(self.sites[1], "bob", "cancel", json.loads(result.stdout)["job"]).returncode, SUCCEEDED)

    def each_rpc_with_the_others_names(self, site, job):
        sha256 = subprocess.run(["sha256sum", str(self.dir / "ann-live.jsonl")], capture_output=True, text=True,
                                check=True).stdout.split()[0]
        artifacts = json.loads(self.at(None, "admin", "list", "--json").stdout)
        artifact = next(a for each in artifacts for a in each["artifacts"] if each["project"] == "alpha")
        touched = 0
        for name in (f"projects/alpha/jobs/{job}", job, artifact):
            for call in self.every_rpc(site, "bob", name=name, project="alpha", sha256=sha256, user="ann",
                                       id="nodes/node-a", node="node-a", path="adapter_config.json"):
                self.assertNotIn(job, call["answers"], call)
                self.assertNotIn("fake:until", call["answers"], call)
                # What tells nothing of any project, and the dry run of a file that is empty here.
                free = re.search(r"/(GetServerInfo|WhoAmI|ListNodes|ListVariants|ListModels|GetNodeHistory|ListPrices|ListProjects|ResolveJob|GetStorage|ListServedModels|CreateCode|"
                                 r"GetLoginOptions|StartLogin|FinishLogin|ExchangeToken)$",
                                 call["method"])
                if not free:
                    touched += 1
                    self.assertIn(call["code"], HIDDEN, call)
        print(f"{touched} calls with the other's names: all NOT_FOUND or PERMISSION_DENIED")

    def check_audit(self, jobs):
        rows = [json.loads(line) for line in
                self.at(None, "admin", "admin", "audit", "--limit", 1000, "--json").stdout.splitlines()]
        for number, who, project in ((0, "ann", "alpha"), (1, "bob", "beta")):
            mine = [row for row in rows if row["principal"] == who]
            done = {(row["method"], row["outcome"]) for row in mine}
            self.assertIn(("JobService.SubmitJob", "OK"), done)
            self.assertIn(("DataService.UploadBlob", "OK"), done)
            self.assertIn(("JobService.CancelJob", "NOT_FOUND"), done)
            self.assertIn(f"projects/{project}/jobs/{jobs[who]}", [row["object"] for row in mine])
            self.assertEqual({row["peer"].split(":")[1] for row in mine}, {self.sites[number].inside})
        self.assertIn(("nodes/node-a", "OK"), {(row["object"], row["outcome"]) for row in rows} |
                      {("nodes/" + row["object"], row["outcome"]) for row in rows if row["method"].endswith("Join")})
        self.assertEqual(self.at(self.sites[0], "ann", "admin", "audit").returncode, REFUSED)
        everything = "".join(path.read_text(errors="replace") for path in self.dir.glob("*.log"))
        for token in self.dir.glob("*.token"):
            secret = token.read_text().split("_")[2].strip()
            self.assertNotIn(secret, json.dumps(rows))
            self.assertNotIn(secret, everything)

    def test_off_loopback_nothing_is_served_without_tls_and_a_token(self):
        refused = subprocess.run([str(BUILD / "bin/sft-server"), "--listen", f"0.0.0.0:{self.port}",
                                  "--data-dir", str(self.dir / "bare")], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("sft-server init", refused.stderr)
        self.serve(*[site.outside for site in self.sites])
        site = self.sites[0]
        for call in self.every_rpc(site, None):
            # What logs people in through a company's provider, of which there is none here.
            login = re.search(r"/(StartLogin|FinishLogin|ExchangeToken|GetLoginOptions)$", call["method"])
            wanted = UNAUTHENTICATED if not login else OK if login.group(1) == "GetLoginOptions" else FAILED_PRECONDITION
            self.assertEqual((call["code"], call["answers"] if login else ""), (wanted, ""), call)
        result = self.at(site, "stranger", "list")
        self.assertEqual(result.returncode, REFUSED)
        self.assertIn("sftctl login", result.stderr)
        shown = self.at(site, "stranger", "login")
        self.assertEqual(shown.returncode, REFUSED)
        self.assertIn(self.fingerprint, shown.stderr)
        wrong = self.at(site, "stranger", "login", "--fingerprint", "0" * 64, "--token-file", self.dir / "admin.token")
        self.assertEqual(wrong.returncode, REFUSED)
        self.assertIn("somebody between", wrong.stderr)
        by_file = self.at(site, "filer", "login", "--ca", self.dir / "server/tls/ca.crt", "--token-file",
                          self.dir / "admin.token")
        self.assertEqual(by_file.returncode, SUCCEEDED, by_file.stderr)
        kept = self.dir / "home-filer/sft/credentials.json"
        self.assertEqual(stat.S_IMODE(kept.stat().st_mode), 0o600)
        self.assertIn("join token", self.at(site, "stranger", "login", "--fingerprint", self.fingerprint,
                                            "--token-file", self.dir / "join.token").stderr)
        strange = self.at(site, "stranger", "doctor")
        self.assertEqual(strange.returncode, REFUSED, strange.stdout)
        self.assertIn("FAIL  login", strange.stdout)
        self.assertIn("FAIL  nodes", self.at(None, "admin", "doctor").stdout)
        self.assertIn("ok    login         TLS", self.at(None, "admin", "doctor").stdout)
        by_variable = self.at(site, "stranger", "whoami", "--json", SFT_CA=str(self.dir / "server/tls/ca.crt"),
                              SFT_TOKEN=(self.dir / "admin.token").read_text().strip())
        self.assertEqual(json.loads(by_variable.stdout)["user"], "admin")

    def test_workers_join_once_and_are_known_by_their_keys(self):
        self.serve(*[site.outside for site in self.sites])
        site, other = self.sites[2], self.sites[1]
        made = self.at(None, "admin", "admin", "token", "create", "--join")
        self.secret("once", made.stdout)
        self.worker(site, "node-a", token="once")
        self.assertEqual(stat.S_IMODE((self.dir / "node-a/tls/node.key").stat().st_mode), 0o600)
        # Its token is used up: for another node, and for another worker of its name.
        self.refused_worker(other, "node-b", "once", "b", "is used up: an admin makes another")
        self.refused_worker(other, "node-a", "join", "twin", "belongs to a worker that has joined with another key")
        self.refused_worker(other, "node-c", None, "c", "--join-token-file")
        # A second start of the same one, with the same flags, uses its certificate.
        self.kill("node-a")
        self.worker(site, "node-a", token="once")
        # It may be listed from before.
        wait_until("its word", lambda: "has joined with token" in (self.dir / "node-a.log").read_text())
        # The name of a lost machine is given to a new one by a token for it.
        self.kill("node-a")
        made = self.at(None, "admin", "admin", "token", "create", "--join", "--node", "node-a")
        self.secret("replace", made.stdout)
        self.worker(other, "node-a", token="replace", name="new-a", wait=False)
        wait_until("the new one to be let in", lambda: "registered with" in (self.dir / "new-a.log").read_text())
        # A node that is revoked is cut off, and says why.
        self.assertEqual(self.at(None, "admin", "admin", "token", "revoke", "nodes/node-a").returncode, 0)
        wait_until("the node to be told", lambda: "was revoked" in (self.dir / "new-a.log").read_text())

    def test_a_restored_fleet_keeps_its_keys(self):
        self.serve(*[site.outside for site in self.sites])
        self.worker(self.sites[2], "node-a")
        made = self.at(None, "admin", "admin", "backup", "--to", self.dir / "copy")
        self.assertEqual(made.returncode, 0, made.stderr)
        self.kill("server")
        data = self.dir / "server"
        data.rename(self.dir / "old")

        def restore(*options):
            done = subprocess.run([str(BUILD / "bin/sft-server"), "--restore", str(self.dir / "copy"), "--data-dir",
                                   str(data), *options], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        restore()
        refused = subprocess.run([str(BUILD / "bin/sft-server"), "--listen", f"0.0.0.0:{self.port}", "--data-dir",
                                  str(data)], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("put back the copy that you keep", refused.stderr)
        shutil.rmtree(data)
        restore("--files-from", str(self.dir / "old"))
        self.start_server()
        wait_until("the worker to come back", lambda: " UP " in self.at(None, "admin", "nodes").stdout)

    def refused_worker(self, site, node, token, name, why):
        self.worker(site, node, token=token, name=name, wait=False)
        self.assertEqual(self.processes[name].wait(timeout=DEADLINE_S), 1)
        self.assertIn(why, (self.dir / f"{name}.log").read_text())

    def test_a_token_that_ends_ends_what_it_follows(self):
        self.serve(*[site.outside for site in self.sites])
        site = self.sites[0]
        self.worker(self.sites[2], "node-a")
        self.add_user(site, "ann", "alpha=submitter")
        job = self.submit_at(site, "ann", f"until {self.dir / 'gate'}", "live")
        follower = subprocess.Popen(
            [*site.prefix(), str(BUILD / "bin/sftctl"), "--server", f"{site.outside}:{self.port}", "wait", job],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "XDG_CONFIG_HOME": str(self.dir / "home-ann")})
        self.processes["follower"] = follower
        token = json.loads(self.at(site, "ann", "whoami", "--json").stdout)["token"]
        self.assertEqual(self.at(None, "admin", "admin", "token", "revoke", token).returncode, 0)
        _, err = follower.communicate(timeout=DEADLINE_S)
        self.assertEqual(follower.returncode, REFUSED, err)
        self.assertIn("was revoked", err)
        result = self.at(site, "ann", "list")
        self.assertEqual(result.returncode, REFUSED)
        self.assertEqual(self.at(None, "admin", "status", job).returncode, 0, "the job itself goes on")


if __name__ == "__main__":
    run_tests()
