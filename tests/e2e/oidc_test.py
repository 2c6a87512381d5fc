#!/usr/bin/env python3
"""Company login against a real provider (npm oidc-provider): a browser and a device log in, logins are renewed and end,
groups change, keys are rotated, the provider goes away; and jobs of a CI exchange tokens that jose has signed."""

import html.parser
import http.client
import http.cookiejar
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading
import unittest
import urllib.error
import urllib.parse
import urllib.request

import harness
from harness import free_port, run_tests, wait_until

SUCCEEDED, USAGE, UNREACHABLE, REFUSED = 0, 2, 4, 5
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", pathlib.Path(__file__).parents[2] / "build/deps"))
PACKAGES = DEPS / "oidc"
ISSUER = pathlib.Path(__file__).with_name("oidc_issuer.mjs")
EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
JWT = "urn:ietf:params:oauth:token-type:jwt"


class Form(html.parser.HTMLParser):
    """The first form of a page: where it goes, and its hidden fields."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "form" and self.action is None:
            self.action = attrs["action"]
        if tag == "input" and attrs.get("type") == "hidden" and attrs.get("name"):
            self.fields[attrs["name"]] = attrs.get("value", "")


class Leaves(urllib.request.HTTPRedirectHandler):
    """Follows redirects within the provider; where one leads out of it is kept."""

    def __init__(self, provider):
        self.provider, self.left = provider, None

    def redirect_request(self, request, fp, code, msg, headers, newurl):
        if newurl.startswith(self.provider):
            return super().redirect_request(request, fp, code, msg, headers, newurl)
        self.left = newurl
        return None


class Browser:
    """A person's browser, as far as the provider is concerned: it logs in as that account, and consents."""

    def __init__(self, provider, account):
        self.provider, self.account = provider, account
        self.leaves = Leaves(provider)
        self.opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()), self.leaves)

    def ask(self, url, fields=None):
        """The page, or None where the browser was sent elsewhere."""
        try:
            data = None if fields is None else urllib.parse.urlencode(fields).encode()
            return self.opener.open(url, data, timeout=harness.DEADLINE_S).read().decode()
        except urllib.error.HTTPError as error:
            if self.leaves.left:
                return None
            raise AssertionError(f"{url}: {error.code} {error.read().decode()[:2000]}") from error

    def fill(self, page, url, **more):
        form = Form(page)
        return self.ask(urllib.parse.urljoin(url, form.action), {**form.fields, **more})

    def log_in(self, url):
        """Where the provider sends the browser in the end."""
        page = self.ask(url)
        for _ in range(4):
            if page is None:
                return self.leaves.left
            page = self.fill(page, url, login=self.account, password="any")
        raise AssertionError(f"the provider keeps asking: {page[:2000]}")

    def type_code(self, url, code):
        page = self.fill(self.ask(url), url, user_code=code)
        for _ in range(4):
            if page is None or "Sign-in Success" in page or "success" in page.lower():
                return
            page = self.fill(page, url, login=self.account, password="any")
        raise AssertionError(f"the provider keeps asking: {page[:2000]}")


class OidcTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        if not shutil.which("node") or not (PACKAGES / "node_modules/oidc-provider").exists():
            self.skipTest(f"oidc-provider is missing in {PACKAGES}: deploy/bootstrap --web installs it, where Node 20 is")
        self.provider_port, self.ci_port, self.http = free_port(), free_port(), free_port()
        self.issuer = f"http://127.0.0.1:{self.provider_port}"
        self.state = {"accounts": {"u-ann": {"preferred_username": "ann", "groups": ["ml"]},
                                   "u-eve": {"preferred_username": "eve", "groups": ["guests"]}},
                      "jwks": {"keys": [self.make_key("k1")]}}

    def make_key(self, name):
        code = ("const k=require('crypto').generateKeyPairSync('rsa',{modulusLength:2048}).privateKey;"
                f"console.log(JSON.stringify({{...k.export({{format:'jwk'}}),kid:'{name}',use:'sig',alg:'RS256'}}))")
        return json.loads(subprocess.run(["node", "-e", code], capture_output=True, check=True).stdout)

    def write_state(self):
        partial = self.dir / "state.partial"
        partial.write_text(json.dumps(self.state))
        partial.rename(self.dir / "state.json")

    def start_provider(self):
        self.write_state()
        self.start("provider", "node", ISSUER, "provider", self.provider_port, PACKAGES, self.dir / "state.json")
        self.wait_for_port(self.provider_port)

    def wait_for_port(self, port):
        def answers():
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/.well-known/openid-configuration", timeout=5).close()
            except OSError:
                return False
            return True
        wait_until("the issuer to answer", answers)

    def write_config(self, session="1h", more=""):
        (self.dir / "secret").write_text("hidden secret\n")
        (self.dir / "oidc.toml").write_text(f"""
[provider]
issuer = "{self.issuer}"
client_id = "sft"
client_secret_file = "secret"
session = "{session}"
[[role]]
group = "ml"
project = "vision"
role = "submitter"
[[role]]
group = "staff"
project = "vision"
role = "viewer"
{more}""")

    def start_all(self, **config):
        self.write_config(**config)
        made = subprocess.run([str(harness.BUILD / "bin/sft-server"), "init", "--data-dir", str(self.dir / "server"),
                               "--name", "127.0.0.1"], capture_output=True, text=True, check=True).stdout
        self.fingerprint = re.search(r"^fingerprint +(\S+)", made, re.M).group(1)
        (self.dir / "admin.token").write_text(re.search(r"^admin token +(\S+)", made, re.M).group(1) + "\n")
        self.start_secure_server()
        wait_until("the admin to be let in", lambda: self.at(
            "admin", "login", "--fingerprint", self.fingerprint, "--token-file", self.dir / "admin.token").returncode == 0)

    def start_secure_server(self):
        self.start("server", harness.BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--require-token",
                   "--http", f"127.0.0.1:{self.http}", "--data-dir", self.dir / "server", "--oidc",
                   self.dir / "oidc.toml")

    def environment(self, home):
        kept = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "WAYLAND_DISPLAY")}
        return {**kept, "XDG_CONFIG_HOME": str(self.dir / home)}

    def command(self, *arguments):
        return [str(harness.BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", *map(str, arguments)]

    def at(self, home, *arguments):
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False,
                              env=self.environment(home), timeout=harness.DEADLINE_S)

    def login(self, home, way, answer):
        """Runs `sftctl login`, gives what it says to `answer` once that returns true, and returns what came of it."""
        login = subprocess.Popen(self.command("login", "--fingerprint", self.fingerprint, way, "--json"), text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=self.environment(home))
        said = []

        def read():
            for line in login.stderr:
                said.append(line)
        reader = threading.Thread(target=read)
        reader.start()
        try:
            wait_until("what sftctl says", lambda: login.poll() is not None or answer("".join(said)))
            out = login.stdout.read()
            login.wait(harness.DEADLINE_S)
        finally:
            login.kill()
            reader.join()
            login.stdout.close()
            login.stderr.close()
        return login.returncode, out, "".join(said)

    def log_in(self, home, account):
        """With a browser."""
        answered = []

        def answer(said):
            found = re.search(r"^  (http\S+)$", said, re.M)
            if found and not answered:
                answered.append(Browser(self.issuer, account).log_in(found.group(1)))
                urllib.request.urlopen(answered[0], timeout=harness.DEADLINE_S).close()
            return bool(answered)
        return self.login(home, "--oidc", answer)

    def roles(self, home):
        """Of who is logged in there; None: nobody is."""
        result = self.at(home, "whoami", "--json")
        return json.loads(result.stdout)["roles"] if result.returncode == 0 else None

    def listed(self, what, *more):
        """Rows of `sftctl admin ...`: an array, or one a line."""
        result = self.at("admin", "admin", what, *more, "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        if result.stdout.startswith("["):
            return json.loads(result.stdout)
        return [json.loads(line) for line in result.stdout.splitlines()]

    def test_a_browser_logs_in_by_the_code_flow_and_groups_are_roles(self):
        self.start_provider()
        self.start_all()
        code, out, said = self.log_in("ann", "u-ann")
        self.assertEqual(code, SUCCEEDED, said)
        identity = json.loads(out)
        self.assertEqual((identity["user"], identity["roles"], identity["admin"]), ("ann", {"vision": "submitter"}, False))
        self.assertEqual(self.at("ann", "list").returncode, SUCCEEDED)
        self.assertEqual(self.at("ann", "admin", "user", "list").returncode, REFUSED)
        # The login is in the audit under its person, and no secret is.
        audit = self.listed("audit")
        self.assertIn(("ann", "AuthService.FinishLogin", "users/ann"),
                      [(row["principal"], row["method"], row["object"]) for row in audit])
        self.assertNotIn("sft_", json.dumps(audit))
        # Who has no group here is told, and gets nothing.
        code, out, said = self.log_in("eve", "u-eve")
        self.assertEqual((code, out), (REFUSED, ""), said)
        self.assertIn("eve is in no group that has a role here", said)
        # A second login of the same person needs no fingerprint, and an admin changes no roles of hers.
        self.assertEqual(self.at("ann", "login", "--oidc", "--device").returncode, USAGE)
        refused = self.at("admin", "admin", "user", "set", "ann", "--project", "speech=viewer")
        self.assertEqual(refused.returncode, REFUSED)
        self.assertIn("change them there", refused.stderr)
        self.assertEqual(self.at("admin", "admin", "token", "create", "ann").returncode, REFUSED)
        self.assertEqual(self.at("admin", "admin", "user", "remove", "ann").returncode, SUCCEEDED)
        self.assertIsNone(self.roles("ann"))

    def test_a_device_logs_in_while_a_browser_elsewhere_types_the_code(self):
        self.start_provider()
        self.start_all()
        typed = []

        def answer(said):
            found = re.search(r"open (\S+) on any machine and type the code\n\n  (\S+)\n", said)
            if found and "type none that somebody gives you" in said and not typed:
                typed.append(found.group(2))
                Browser(self.issuer, "u-ann").type_code(*found.groups())
            return bool(typed)
        code, out, said = self.login("ann", "--device", answer)
        self.assertEqual(code, SUCCEEDED, said)
        self.assertEqual(json.loads(out)["user"], "ann")
        self.assertNotIn("user_code=", said)

    def test_a_login_is_renewed_and_ends_when_the_provider_says_no(self):
        self.start_provider()
        self.start_all(session="10s")
        self.assertEqual(self.log_in("ann", "u-ann")[0], SUCCEEDED)
        expires = lambda: json.loads(self.at("ann", "whoami", "--json").stdout)["expire_time"]
        first = expires()
        wait_until("a renewal", lambda: expires() > first)
        # The group changes, and with it what she may do; a restart forgets nothing of it.
        self.state["accounts"]["u-ann"]["groups"] = ["staff"]
        self.write_state()
        wait_until("the other role", lambda: self.roles("ann") == {"vision": "viewer"})
        self.kill("server")
        self.start_secure_server()
        wait_until("the server", lambda: self.roles("ann") == {"vision": "viewer"})
        first = expires()
        wait_until("a renewal after the restart", lambda: expires() > first)
        rows = [(row["principal"], row["method"]) for row in self.listed("audit")]
        self.assertEqual(rows.count(("ann", "login renewed")), 1)
        # Her account is closed.
        del self.state["accounts"]["u-ann"]
        self.write_state()
        wait_until("the end", lambda: self.roles("ann") is None)
        self.assertEqual(os.listdir(self.dir / "server/logins"), [])

    def test_a_provider_that_is_down_ends_nothing_at_once_and_rotates_its_key(self):
        self.start_provider()
        self.start_all(session="20s")
        self.assertEqual(self.log_in("ann", "u-ann")[0], SUCCEEDED)
        self.kill("provider")
        self.assertEqual(self.roles("ann"), {"vision": "submitter"})
        down = self.at("bob", "login", "--fingerprint", self.fingerprint, "--device")
        self.assertEqual(down.returncode, UNREACHABLE, down.stderr)
        self.assertIn("cannot be reached from the server", down.stderr)
        wait_until("its end", lambda: self.roles("ann") is None)
        self.assertIn("sftctl login --oidc", self.at("ann", "whoami").stderr)
        # It comes back with another key, and without what it kept in memory.
        self.state["jwks"] = {"keys": [self.make_key("k2")]}
        self.start_provider()
        wait_until("a login by the other key", lambda: self.log_in("ann", "u-ann")[0] == SUCCEEDED)
        self.assertEqual(self.roles("ann"), {"vision": "submitter"})

    def ask(self, path, method="GET", body=None, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=harness.DEADLINE_S)
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read().decode()
        connection.close()
        return response, content

    def cookie(self, response, name):
        for field in response.headers.get_all("Set-Cookie") or []:
            if field.startswith(name + "="):
                self.assertIn("HttpOnly", field)
                return field.split(";")[0]
        return None

    def test_the_page_logs_in_by_the_code_flow_at_the_servers_address(self):
        self.start_provider()
        self.start_all()
        whoami = lambda **headers: self.ask("/api/v1/AuthService/WhoAmI", "POST", "{}",
                                            **{"Content-Type": "application/json", **headers})
        options = self.ask("/api/v1/AuthService/GetLoginOptions", "POST", "{}", **{"Content-Type": "application/json"})
        self.assertEqual(json.loads(options[1]), {"company": True, "issuer": self.issuer})
        started, _ = self.ask("/login/company")
        self.assertEqual(started.status, 303)
        begun = self.cookie(started, "__Host-sft-login")
        back = Browser(self.issuer, "u-ann").log_in(started.headers["Location"])
        self.assertTrue(back.startswith(f"http://127.0.0.1:{self.http}/login/callback?"), back)
        path = back[back.index("/login"):]
        # As the provider's page leads here; without the cookie, or with another state, it is nobody's login.
        cross = {"Sec-Fetch-Site": "cross-site"}
        other = self.cookie(self.ask("/login/company")[0], "__Host-sft-login")
        for cookie in ("", other):
            refused, content = self.ask(path, Cookie=cookie, **cross)
            self.assertEqual(refused.status, 401)
            self.assertIn("has not begun it here", content)
            self.assertIsNone(self.cookie(refused, "__Host-sft"))
        finished, content = self.ask(path, Cookie=begun, **cross)
        self.assertEqual((finished.status, finished.headers["Location"]), (303, "/"), content)
        session = self.cookie(finished, "__Host-sft")
        status, identity = whoami(Cookie=session)
        self.assertEqual((status.status, json.loads(identity)["user"]["name"]), (200, "ann"))
        # A code is good once.
        again, content = self.ask(path, Cookie=begun, **cross)
        self.assertEqual(again.status, 401, content)
        # Logging out ends the token that was made for it.
        tokens = lambda: [row for row in self.listed("token", "list")
                          if row["user"] == "ann" and not row["revoke_time"]]
        self.assertEqual(len(tokens()), 1)
        self.assertEqual(self.ask("/session", "DELETE", Cookie=session)[0].status, 204)
        self.assertEqual(whoami(Cookie=session)[0].status, 401)
        wait_until("the token's end", lambda: not tokens())
        # The provider's refusal is told as text, not as a page of its.
        begun = self.cookie(self.ask("/login/company")[0], "__Host-sft-login")
        refused, content = self.ask("/login/callback?state=x&error=%3Cscript%3E", Cookie=begun, **cross)
        self.assertEqual(refused.status, 401)
        self.assertTrue(refused.headers["Content-Type"].startswith("text/plain"))

    def test_a_ci_job_exchanges_its_token_once_for_one_role_in_one_project(self):
        self.start("ci", "node", ISSUER, "ci", self.ci_port, PACKAGES)
        self.wait_for_port(self.ci_port)
        self.start_all(more=f"""
[[ci]]
name = "nightly"
kind = "github"
issuer = "http://127.0.0.1:{self.ci_port}"
audience = "https://sft.example.org"
claims = {{ repository_id = "1", repository_owner_id = "2", ref = "refs/heads/main" }}
project = "vision"
role = "submitter"
""")
        count = iter(range(1000))

        def sign(**changes):
            claims = {"aud": "https://sft.example.org", "sub": "repo:octo/x:ref:refs/heads/main", "jti": f"j{next(count)}",
                      "repository": "octo/x", "repository_id": "1", "repository_owner_id": "2", "ref": "refs/heads/main",
                      "run_id": "99", "event_name": "push", **changes}
            request = urllib.request.Request(f"http://127.0.0.1:{self.ci_port}/sign", json.dumps(claims).encode())
            with urllib.request.urlopen(request, timeout=harness.DEADLINE_S) as response:
                return response.read().decode()

        def exchange(token, **changes):
            form = {"grant_type": EXCHANGE, "subject_token": token, "subject_token_type": JWT, **changes}
            response, content = self.ask("/oauth/token", "POST", urllib.parse.urlencode(form),
                                         **{"Content-Type": "application/x-www-form-urlencoded"})
            return response.status, json.loads(content)
        token = sign()
        status, made = exchange(token)
        self.assertEqual((status, made["token_type"], made["expires_in"]), (200, "Bearer", 3600), made)
        identity = self.ask("/api/v1/AuthService/WhoAmI", "POST", "{}", **{
            "Content-Type": "application/json", "Authorization": f"Bearer {made['access_token']}"})[1]
        user = json.loads(identity)["user"]
        self.assertEqual((user["name"], user["admin"], user["roles"]),
                         ("ci-nightly", False, [{"project": "vision", "role": "SUBMITTER"}]))
        self.assertEqual(exchange(token)[1]["error"], "invalid_grant", "it is good once")
        bad = [sign(repository_id="3"), sign(aud="https://github.com/octo"), sign(event_name="pull_request"),
               sign(ref="refs/heads/evil"), sign(iss="https://evil.example.com"), "x.y.z", "", "a" * 20_000]
        for one in bad:
            self.assertEqual((exchange(one)[0], exchange(one)[1]["error"]), (400, "invalid_grant"), one[:80])
        self.assertEqual(exchange(sign(), grant_type="password")[1]["error"], "unsupported_grant_type")
        self.assertEqual(exchange(sign(), subject_token_type="x")[1]["error"], "invalid_request")
        # sftctl does the same over gRPC; the server killed between two uses forgets none.
        (self.dir / "ci.token").write_text(sign() + "\n")
        login = ("login", "--fingerprint", self.fingerprint, "--ci-token-file", self.dir / "ci.token", "--json")
        first = self.at("ci", *login)
        self.assertEqual((first.returncode, first.stderr.count("logged in")), (SUCCEEDED, 1), first.stderr)
        self.assertEqual(json.loads(first.stdout)["roles"], {"vision": "submitter"})
        self.kill("server")
        self.start_secure_server()
        wait_until("the server", lambda: self.roles("ci") == {"vision": "submitter"})
        self.assertEqual(exchange(token)[1]["error"], "invalid_grant")
        again = self.at("ci", *login)
        self.assertEqual(again.returncode, USAGE)
        self.assertIn("was exchanged before", again.stderr)
        listed = self.listed("token", "list")
        self.assertIn("octo/x refs/heads/main, run 99", [row["comment"] for row in listed])


if __name__ == "__main__":
    run_tests()
