#!/usr/bin/env python3
"""The address of the web page: over a certificate of the site's own, as a browser would check it, and as `sft-server --dev`
prints it."""

import http.client
import re
import shutil
import socket
import ssl
import subprocess

import harness

SITE = "sft.example.org"
SERVER = harness.BUILD / "bin/sft-server"


class SiteTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.http = harness.free_port()

    def openssl(self, *arguments):
        result = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False,
                                cwd=self.dir, timeout=harness.DEADLINE_S)
        self.assertEqual(result.returncode, 0, result.stderr)

    def make_site(self):
        """An authority, one between it and the site's certificate, and a key of somebody else's."""
        new = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        signs = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self.openssl(*new, "-subj", "/CN=root", "-keyout", "root.key", "-out", "root.crt")
        self.openssl(*new, "-subj", "/CN=between", "-CA", "root.crt", "-CAkey", "root.key", *signs,
                     "-keyout", "between.key", "-out", "between.crt")
        self.openssl(*new, "-subj", f"/CN={SITE}", "-CA", "between.crt", "-CAkey", "between.key",
                     "-addext", f"subjectAltName=DNS:{SITE}", "-addext", "basicConstraints=critical,CA:FALSE",
                     "-keyout", "site.key", "-out", "site.crt")
        self.openssl(*new, "-subj", "/CN=other", "-keyout", "other.key", "-out", "other.crt")
        (self.dir / "chain.pem").write_text((self.dir / "site.crt").read_text() + (self.dir / "between.crt").read_text())

    def printed(self, start):
        """The page's address, URL, host and port, as the server has printed it at that start of it."""
        def last():
            found = list(re.finditer(r"^web page: (https?://(\S+):(\d+))$", (self.dir / "server.log").read_text(), re.M))
            self.assertIsNone(self.processes["server"].poll(), "the server has ended")
            return found[-1] if len(found) == start else None
        return harness.wait_until("the page's address", last)

    def ask(self, name, path, authority):
        """A GET of a client that trusts an authority alone and asks for the server by a name."""
        context = ssl.create_default_context(cafile=authority)
        with socket.create_connection(("127.0.0.1", self.http), timeout=harness.DEADLINE_S) as plain:
            with context.wrap_socket(plain, server_hostname=name) as secure:
                connection = http.client.HTTPConnection(name)
                connection.sock = secure
                connection.request("GET", path)
                response = connection.getresponse()
                return response.status, response.headers, response.read().decode()

    def test_a_site_is_served_with_its_own_certificate(self):
        if not shutil.which("openssl"):
            self.skipTest("openssl is missing: deploy/bootstrap installs it")
        self.make_site()
        data = self.dir / "server"
        subprocess.run([str(SERVER), "init", "--data-dir", str(data), "--name", "127.0.0.1"], capture_output=True, check=True)
        command = [SERVER, "--listen", f"127.0.0.1:{self.port}", "--require-token", "--http", f"0.0.0.0:{self.http}",
                   "--data-dir", data]
        # What cannot be served is told at the start, with the option that is wrong.
        (self.dir / "text.pem").write_text("no certificate\n")
        for cert, key, words in (("chain.pem", "none.key", ("--http-tls-key", "none.key")),
                                 ("none.pem", "site.key", ("--http-tls-cert", "none.pem")),
                                 ("chain.pem", "other.key", ("--http-tls-key", "other.key", "chain.pem")),
                                 ("chain.pem", "text.pem", ("--http-tls-key", "text.pem")),
                                 ("text.pem", "site.key", ("--http-tls-cert", "text.pem")),
                                 ("chain.pem", None, ("--http-tls-cert", "--http-tls-key")),
                                 (None, "site.key", ("--http-tls-key", "--http-tls-cert"))):
            options = (["--http-tls-cert", self.dir / cert] if cert else []) + (["--http-tls-key", self.dir / key] if key else [])
            refused = subprocess.run([*map(str, command + options)], capture_output=True, text=True, check=False,
                                     timeout=harness.DEADLINE_S)
            self.assertNotEqual(refused.returncode, 0, (cert, key))
            for word in words:
                self.assertIn(word, refused.stderr)
        self.start("server", *command, "--http-tls-cert", self.dir / "chain.pem", "--http-tls-key", self.dir / "site.key")
        self.assertEqual(self.printed(1)[1], f"https://{SITE}:{self.http}")
        # The authority alone is known: the certificate between comes with the site's.
        root = self.dir / "root.crt"
        status, fields, page = self.ask(SITE, "/", root)
        self.assertEqual((status, fields["Strict-Transport-Security"]), (200, "max-age=31536000"))
        self.assertIn("<html", page)
        self.assertEqual(self.ask(SITE, "/healthz", root)[2], "ok\n")
        with self.assertRaisesRegex(ssl.SSLCertVerificationError, "Hostname mismatch"):
            self.ask("sft.example.com", "/", root)
        with self.assertRaisesRegex(ssl.SSLCertVerificationError, "unable to get|self.signed"):
            self.ask(SITE, "/", data / "tls/ca.crt")
        # The fleet's own certificate, which browsers do not know, makes no promise for a year.
        self.kill("server")
        self.start("server", *command)
        self.printed(2)
        status, fields, _ = self.ask("127.0.0.1", "/", data / "tls/ca.crt")
        self.assertEqual((status, fields["Strict-Transport-Security"]), (200, None))

    def test_a_server_for_trying_out_prints_the_address_of_its_page(self):
        self.port = harness.quiet_port(2)  # the page has the one after it
        self.start("server", SERVER, "--dev", "--listen", f"127.0.0.1:{self.port}", "--data-dir", self.dir / "server",
                   "--models", self.dir / "models", "--simulate-gpus", "H100:1")
        printed = self.printed(1)
        self.assertEqual((printed[2], int(printed[3])), ("127.0.0.1", self.port + 1))
        connection = http.client.HTTPConnection(printed[2], int(printed[3]), timeout=harness.DEADLINE_S)
        connection.request("GET", "/")
        answer = connection.getresponse()
        page = answer.read().decode()
        self.assertEqual(answer.status, 200)
        asset = re.search(r'"(/assets/[^"]+)"', page)[1]
        connection.request("GET", asset)
        self.assertEqual(connection.getresponse().status, 200)
        connection.close()
        # `sftctl web` says the same.
        opened = self.sftctl("web")
        self.assertEqual(opened.returncode, 0, opened.stderr)
        self.assertIn(printed[1], opened.stdout)


if __name__ == "__main__":
    harness.run_tests()
