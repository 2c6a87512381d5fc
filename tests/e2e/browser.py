"""A browser for tests of the dashboard: Debian's Chromium, driven by Playwright. What every page must keep
to is checked of each: no request to another host, nothing that the page's policy refused, no error."""

import glob
import json
import os
import pathlib
import shutil
import sys
import unittest
import urllib.parse

ROOT = pathlib.Path(__file__).parents[2]
DEPS = pathlib.Path(os.environ.get("SFT_DEPS_DIR", ROOT / "build/deps"))
sys.path += glob.glob(str(DEPS / "web/lib/python3*/site-packages"))

CHROMIUM = shutil.which("chromium")
AXE = DEPS / "dashboard/node_modules/axe-core/axe.min.js"
# Only catches hangs: pages answer within a second.
DEADLINE_MS = 60_000

try:
    from PIL import Image
    from playwright.sync_api import sync_playwright
except ImportError:
    Image = sync_playwright = None


def why_not():
    """Why this machine cannot run a browser; empty where it can."""
    if CHROMIUM is None or sync_playwright is None:
        return "there is no chromium or no playwright: deploy/bootstrap --web"
    return "" if AXE.exists() else f"{AXE} is missing: deploy/bootstrap --web"


# A job may start while the page asks why it waits: the answer is a refusal, and the browser reports it.
RACES = ("/SchedulingService/ExplainWait",)


class BrowserCase(unittest.TestCase):
    """Opens pages; ends them, and fails for what they must not do."""

    @classmethod
    def setUpClass(cls):
        if why_not():
            raise unittest.SkipTest(why_not())
        cls.playwright = sync_playwright().start()
        cls.browser = cls.playwright.chromium.launch(executable_path=CHROMIUM)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        cls.playwright.stop()

    def new_page(self, url, scheme="light", width=1280, height=800):
        """A page of a browser that has never been here; `self.page` is the newest."""
        context = self.browser.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce", base_url=url
        )
        context.set_default_timeout(DEADLINE_MS)
        self.addCleanup(context.close)
        page = context.new_page()
        self.page, self.url = page, url
        self.foreign, self.errors, self.expected_errors = [], [], ()
        host = urllib.parse.urlsplit(url).netloc
        context.on(
            "request",
            lambda request: (
                self.foreign.append(request.url)
                if urllib.parse.urlsplit(request.url).netloc not in (host, "")
                and not request.url.startswith(("blob:", "data:"))
                else None
            ),
        )
        page.on(
            "console",
            lambda message: (
                self.errors.append(f"{message.text} {message.location.get('url', '')}")
                if message.type in ("error", "warning")
                else None
            ),
        )
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.add_init_script(
            "window.refused = []; document.addEventListener('securitypolicyviolation', "
            "(event) => window.refused.push(event.violatedDirective + ' ' + event.blockedURI));"
        )
        self.addCleanup(self.assert_clean, page)
        return page

    def assert_clean(self, page):
        """Before the context is closed: cleanups run last in, first out."""
        if page.is_closed():
            return
        self.assertEqual(page.evaluate("window.refused"), [])
        self.assertEqual(self.foreign, [])
        self.assertEqual(
            [
                error
                for error in self.errors
                if not any(part in error for part in (*self.expected_errors, *RACES))
            ],
            [],
        )

    def see(self, text, page=None):
        """Waits until the text is on the page."""
        (page or self.page).get_by_text(text).first.wait_for()

    def wait_for(self, expression, argument=None):
        """Waits until JavaScript says so; its value."""
        return self.page.wait_for_function(expression, arg=argument).json_value()

    def steps_of(self, title):
        """The x of what a chart draws."""
        return self.page.evaluate(
            """(title) => {
          const chart = [...document.querySelectorAll('figure.chart')].find((each) => each.querySelector('strong').textContent === title);
          return chart?.querySelector('.plot').uplot?.data[0] ?? [];
        }""",
            title,
        )

    def axe(self):
        """What axe-core finds, one line for each."""
        # By evaluate: the page's policy refuses a script element with text.
        self.page.evaluate(AXE.read_text())
        found = self.page.evaluate(
            """async () => (await axe.run({resultTypes: ['violations']})).violations.map((each) =>
          ({id: each.id, nodes: each.nodes.map((node) => node.html.slice(0, 160) + ' ' + node.failureSummary.slice(0, 300))}))"""
        )
        return [f"{each['id']}: {json.dumps(each['nodes'][:3])}" for each in found]
