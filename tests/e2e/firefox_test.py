#!/usr/bin/env python3
"""The dashboard in Firefox: a login by token, whose cookie `__Host-sft` has to be kept over HTTP on loopback, and the
page of a job. The browser is driven by WebDriver BiDi, which it speaks itself."""

import asyncio
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import harness
from harness import BUILD, wait_until

ROOT = pathlib.Path(__file__).parents[2]
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", ROOT / "build/deps"))
sys.path += glob.glob(str(DEPS / "clients/lib/python3*/site-packages"))
FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")

try:
    import aiohttp
except ImportError:
    aiohttp = None


class Firefox:
    """A Firefox without a window, in a profile of its own."""

    def __init__(self, socket):
        self.socket, self.number, self.context = socket, 0, ""

    async def command(self, method, **parameters):
        self.number += 1
        await self.socket.send_str(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            answer = json.loads((await self.socket.receive(timeout=harness.DEADLINE_S)).data)
            if answer.get("id") == self.number:
                assert answer["type"] == "success", answer
                return answer["result"]

    async def open(self, url):
        await self.command("browsingContext.navigate", context=self.context, url=url, wait="complete")

    async def run(self, expression):
        """The value of JavaScript in the page."""
        told = await self.command(
            "script.evaluate", expression=expression, target={"context": self.context}, awaitPromise=True
        )
        assert told["type"] == "success", told
        return told["result"].get("value")

    async def see(self, text):
        for _ in range(int(harness.DEADLINE_S / 0.1)):
            if await self.run(f"document.body.innerText.includes({json.dumps(text)})"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"no {text!r} on the page: {await self.run('document.body.innerText')}")


class FirefoxTest(harness.ServiceCase):
    @classmethod
    def setUpClass(cls):
        if FIREFOX is None or aiohttp is None:
            raise unittest.SkipTest("there is no firefox-esr (Debian) or no aiohttp: deploy/bootstrap --clients")

    def setUp(self):
        super().setUp()
        self.http = harness.free_port()

    def browse(self, steps):
        """Runs `steps(firefox)` in a new browser."""
        profile = tempfile.mkdtemp(prefix="firefox-", dir=self.dir)
        browser = subprocess.Popen(
            [FIREFOX, "--headless", "--no-remote", "--remote-debugging-port", "0", "--profile", profile, "about:blank"],
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env={**os.environ, "HOME": profile})
        self.processes["firefox"] = browser
        address = next((found[0] for line in browser.stderr if (found := re.search(r"ws://\S+", line))), None)
        self.assertIsNotNone(address)
        asyncio.run(self._steps(address, steps))
        self.kill("firefox")
        browser.stderr.close()

    async def _steps(self, address, steps):
        async with aiohttp.ClientSession() as client, client.ws_connect(f"{address}/session", max_msg_size=0) as socket:
            firefox = Firefox(socket)
            await firefox.command("session.new", capabilities={})
            firefox.context = (await firefox.command("browsingContext.getTree"))["contexts"][0]["context"]
            await steps(firefox)

    def test_a_login_is_kept_over_http_on_loopback(self):
        folder = self.dir / "closed"
        made = subprocess.run([str(BUILD / "bin/sft-server"), "init", "--data-dir", str(folder), "--name", "127.0.0.1"],
                              capture_output=True, text=True, check=True)
        token = re.search(r"^admin token +(\S+)", made.stdout, re.M).group(1)
        self.start("server", BUILD / "bin/sft-server", "--listen", f"0.0.0.0:{self.port}", "--http",
                   f"127.0.0.1:{self.http}", "--data-dir", folder)
        url = f"http://127.0.0.1:{self.http}"
        wait_until("the page", lambda: subprocess.run(["curl", "-sf", f"{url}/healthz"], capture_output=True,
                                                      check=False).returncode == 0)

        async def steps(firefox):
            await firefox.open(f"{url}/audit")
            await firefox.see("This server asks who you are")
            status = await firefox.run(
                f"""fetch('/session', {{method: 'POST', headers: {{'Content-Type': 'application/json'}},
                body: JSON.stringify({{token: {json.dumps(token)}}})}}).then((answer) => answer.status)""")
            self.assertEqual(status, 204)
            await firefox.open(f"{url}/audit")
            await firefox.see("Outcome")
            await firefox.see("admin (admin)")
            self.assertEqual(await firefox.run("document.cookie"), "")
            buttons = "[...document.querySelectorAll('button')]"
            await firefox.run(f"{buttons}.find((each) => each.textContent === 'Log out').click()")
            await firefox.see("This server asks who you are")

        self.browse(steps)

    def test_the_page_of_a_job_is_drawn(self):
        self.start_server(http=f"127.0.0.1:{self.http}")
        self.start_worker(gpus="H100:2")
        job = self.submit("train steps=60 pace=5", ranks=1)

        async def steps(firefox):
            await firefox.open(f"http://127.0.0.1:{self.http}/jobs/{job}")
            await firefox.see("SUCCEEDED")
            await firefox.see("all 60 points")
            points = await firefox.run("document.querySelector('.plot').uplot.data[0].length")
            self.assertEqual(points, 60)
            await firefox.open(f"http://127.0.0.1:{self.http}/jobs/{job}?view=log")
            await firefox.see("rank 0 of 1")

        self.browse(steps)


if __name__ == "__main__":
    harness.run_tests()
