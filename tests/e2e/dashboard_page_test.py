#!/usr/bin/env python3
"""The dashboard's pages in a browser, against answers that are made here (dashboard_server.py)."""

import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

import harness
from browser import DEPS, ROOT, BrowserCase, Image
from dashboard_sample import sample_fleet
from dashboard_server import Fleet, Server, at

PAGES = {
    "jobs": "/jobs",
    "job": "/jobs/job-k3v9qx",
    "waiting": "/jobs/job-w1q7sb",
    "verdict": "/jobs/job-b7c2ye",
    "log": "/jobs/job-b7c2ye?view=log&rank=3&jump=evidence",
    "timeline": "/jobs/job-k3v9qx?view=timeline",
    "checkpoints": "/jobs/job-b7c2ye?view=checkpoints",
    "results": "/jobs/job-m2x6rd?view=results",
    "settings": "/jobs/job-k3v9qx?view=settings",
    "compare": "/compare?jobs=job-k3v9qx,job-m2x6rd,job-t8w2mc",
    "queue": "/queue",
    "fleet": "/fleet",
    "node": "/fleet?q=gpu-01&use=gpu-01",
    "storage": "/storage",
    "stats": "/stats",
    "audit": "/audit",
    "submit": "/submit",
}
# What each page shows once its answers are there.
SHOWN = {
    "jobs": "qwen3-8b-support-r32",
    "job": "all 832 points",
    "waiting": "with 4 GPUs in place of 8",
    "verdict": "lower hyperparameters.learning_rate",
    "log": "sft-rank: the loss is nan at step 312",
    "timeline": "48104 of 48210 rows",
    "checkpoints": "steps, the best",
    "results": "adapter_model.safetensors",
    "settings": "Qwen/Qwen3-8B",
    "compare": "Keys that differ",
    "queue": "llama-70b-full",
    "fleet": "fallen off the bus",
    "node": "the highest of 20s each",
    "storage": "Largest items",
    "stats": "1204.40",
    "audit": "PERMISSION_DENIED",
    "submit": "A dry run comes first",
}
PICTURES = os.environ.get("SFT_DASHBOARD_PICTURES", "")  # a folder: docs/images
IN_PICTURES = {
    "jobs": "light",
    "job": "dark",
    "waiting": "light",
    "verdict": "light",
    "compare": "light",
    "queue": "light",
    "fleet": "dark",
    "node": "light",
    "submit": "light",
    "storage": "light",
    "stats": "dark",
    "audit": "light",
}
HOSTILE = '<img src=x onerror="window.hostile=1"> & "quotes"'
# Markup, overrides of direction, what cannot be seen, controls, wide characters, and a word that is too long.
WORST = (
    '<img src=x onerror="window.hostile=1"></script><script>window.hostile=1</script>'
    "\u202e\u2066\u200f\u200b\ufeff\u0000\u0007\u009b\u001b[31m\U000e0041模型🙂" + "W" * 300
)
# What the server alone makes: ids, hashes, and JSON or base64 that a page reads.
OF_THE_SERVER = {
    "name", "next_page_token", "sha256", "resolved_json", "data", "token_id", "event", "resumed_from", "warning"
}
# Enums, numbers and times.
NO_TEXT = r"[A-Z][A-Z0-9_]+|-?[0-9]+|NaN|\d{4}-\d\d-\d\dT.*Z|(projects|nodes|artifacts)/[^ ]*|job-[a-z0-9]*"
# Texts of answers that the sample's pages leave out.
NOT_SHOWN = {"category", "incarnation", "job", "node", "phase", "process", "source"}
# In place of SHOWN, where long words push it out of sight or the page is another one.
IN_SIGHT = {
    "job": "Timeline",
    "timeline": "forms",
    "checkpoints": "server",
    "compare": "Figures",
    "node": "Use over time",
    "its log": "rank 0",
    "dry run": "unknown key",
    "its data": "a/train.jsonl",
}
LOOK = """() => {
  const raw = new RegExp('[\\\\u{0}-\\\\u{8}\\\\u{b}-\\\\u{1f}\\\\u{7f}-\\\\u{9f}\\\\u{61c}\\\\u{200b}\\\\u{200e}\\\\u{200f}' +
    '\\\\u{2028}-\\\\u{202e}\\\\u{2060}-\\\\u{206f}\\\\u{feff}\\\\u{e0000}-\\\\u{e007f}]', 'u');
  const found = [];
  const all = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT | NodeFilter.SHOW_ELEMENT);
  let told = '';
  while (all.nextNode()) {
    const node = all.currentNode;
    const values = node.nodeType === Node.TEXT_NODE ? [node.data]
      : [...node.attributes].map((each) => each.value);
    told += values.join(' ');
    found.push(...values.filter((each) => raw.test(each)).map((each) =>
      `${node.parentElement.tagName} ${(node.parentElement).className} ${JSON.stringify(each.slice(0, 100))}`));
  }
  return {
    hostile: window.hostile,
    elements: document.querySelectorAll('main img, main script').length,
    raw: found,
    wide: Math.max(0, document.documentElement.scrollWidth - innerWidth),
    shown: [...new Set([...told.matchAll(/\u00ab([a-z_0-9]+)\u00bb/g)].map((each) => each[1]))],
  };
}"""
MANY_JOBS = 5000
MANY_POINTS = 100_000
# An idle machine needs half a second.
LIST_S = 20


class DashboardPageTest(BrowserCase):
    def serve(self, fleet):
        self.fleet, self.server = fleet, Server(fleet)
        self.addCleanup(lambda: self.server.stop())  # the one of then: a test may have started another
        return self.server.url

    def open(self, path, fleet=None, **options):
        page = self.new_page(self.serve(fleet or sample_fleet()), **options)
        page.goto(path)
        return page

    def take_picture(self, path):
        """With few colours, which makes it a third as large."""
        picture = Image.open(io.BytesIO(self.page.screenshot()))
        picture.convert("RGB").quantize(224).save(path, optimize=True)

    def one_job(self, points, **fields):
        fleet = Fleet()
        fleet.add_job(
            "job-one",
            "RUNNING",
            attempt=1,
            start_time=at(-3000),
            progress={"step": str(points), "total_steps": "200000"},
            **fields,
        )
        fleet.add_points("job-one", points)
        return fleet

    def test_axe_finds_nothing_on_any_page_in_both_themes(self):
        self.serve(sample_fleet())
        found = {}
        for scheme in ("light", "dark"):
            page = self.new_page(self.server.url, scheme)
            for name, path in PAGES.items():
                page.goto(path)
                self.see(SHOWN[name])
                problems = self.axe()
                if problems:
                    found[f"{name} {scheme}"] = problems
                if PICTURES and IN_PICTURES.get(name) == scheme:
                    self.take_picture(f"{PICTURES}/dashboard-{name}.png")
            self.assert_clean(page)
        self.assertEqual(found, {}, json.dumps(found, indent=1))

    def test_axe_finds_nothing_in_the_dialogs_and_the_login(self):
        page = self.open("/jobs/job-k3v9qx")
        page.get_by_role("button", name="Cancel", exact=True).click()
        self.see("Save the training state first")
        self.assertEqual(self.axe(), [])
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        self.see("next row, previous row")
        self.assertEqual(self.axe(), [])
        page.keyboard.press("Escape")
        self.fleet.token = "secret"
        self.expected_errors = ("401",)
        page.goto("/jobs")
        self.see("This server asks who you are")
        self.assertEqual(self.axe(), [])

    def test_pages_fit_a_narrow_screen(self):
        page = self.open("/jobs", width=390)
        for name, path in PAGES.items():
            page.goto(path)
            self.see(SHOWN[name])
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 390, name)

    def test_names_of_others_stay_text(self):
        fleet = sample_fleet()
        fleet.add_job(
            "job-x0x0xx", display_name=HOSTILE, owner=HOSTILE, reason="<script>window.hostile=1</script>\u202egnol"
        )
        fleet.storage["biggest"][0]["display_name"] = HOSTILE
        run = fleet.jobs["job-k3v9qx"]
        run.update(display_name=HOSTILE, owner=HOSTILE, reason=HOSTILE, group=HOSTILE, priority=HOSTILE)
        run["resolved"].append({"key": HOSTILE, "value": HOSTILE, "origin": HOSTILE})
        run["warnings"] = [{"key": HOSTILE, "line": 1, "message": HOSTILE}]
        fleet.events["job-k3v9qx"].append(
            {"sequence": "99", "time": at(0), "type": HOSTILE, "message": HOSTILE, "attempt": 1}
        )
        fleet.logs[("job-k3v9qx", 0)] += HOSTILE.encode() + b"\x1b[31mred\x1b[0m \x1b]0;title\x07\r\x00end\n"
        fleet.jobs["job-b7c2ye"]["verdict"].update(message=HOSTILE, advice=HOSTILE, evidence=[HOSTILE])
        fleet.nodes[0]["unusable"] = fleet.nodes[0]["slots"][0]["product_name"] = HOSTILE
        fleet.audit[0].update(principal=HOSTILE, object=HOSTILE)
        fleet.waits["job-w1q7sb"].update(reason=HOSTILE)
        fleet.waits["job-w1q7sb"]["what_ifs"][0].update(change="with 4 GPUs in place of 8" + HOSTILE, command=HOSTILE)
        page = self.open("/jobs", fleet)
        for name, path in {**PAGES, "its log": "/jobs/job-k3v9qx?view=log"}.items():
            page.goto(path)
            if name == "its log":
                self.see('"quotes"red \\x00end')
            elif name not in ("results", "submit", "stats", "log", "checkpoints"):
                self.see(HOSTILE)
            self.assertEqual(
                page.evaluate("[window.hostile, document.querySelectorAll('main img, main script').length]"),
                [None, 0],
                name,
            )

    def spoiled(self, value, key="", of=""):
        """An answer in which every text that others can choose is hostile, and says of which field it is."""
        if isinstance(value, dict):
            return {name: self.spoiled(each, name, key) for name, each in value.items()}
        if isinstance(value, list):
            return [self.spoiled(each, key, of) for each in value]
        if not isinstance(value, str) or (key in OF_THE_SERVER and of != "user") or re.fullmatch(NO_TEXT, value):
            return value
        if value.startswith("{"):
            return json.dumps(self.spoiled(json.loads(value)))
        self.spoiled_fields.add(key)
        return f"{value}\u00ab{key}\u00bb{WORST}"

    def test_every_text_of_every_answer_stays_text_on_every_page(self):
        fleet = sample_fleet()
        self.spoiled_fields, shown, wrong = set(), set(), {}
        fleet.spoil = self.spoiled
        fleet.jobs["job-k3v9qx"]["cost"] = {"currency": "euro", "micros": "2500000", "micros_per_hour": "1000000"}
        for key, log in fleet.logs.items():
            fleet.logs[key] = log + WORST.encode() + b"\n"
        fleet.needed = [{"key": "job.data", "path": "a/train.jsonl", "from_override": False, "line": 4}]
        pages = {**PAGES, "its log": "/jobs/job-k3v9qx?view=log", "dry run": "/submit", "its data": "/submit"}
        for width in (1280, 390):
            page = self.new_page(self.serve(fleet), width=width)
            for name, path in pages.items():
                page.goto(path)
                if name in ("dry run", "its data"):
                    problems = [{"key": "lora.rr", "line": 2, "message": "unknown key"}]
                    fleet.problems = problems if name == "dry run" else []
                    page.get_by_role("button", name="Dry run").click()
                self.see({**SHOWN, **IN_SIGHT}[name])
                page.evaluate("scrollTo(0, document.body.scrollHeight)")
                page.wait_for_timeout(300)
                found = page.evaluate(LOOK)
                shown |= {(name, field) for field in found.pop("shown")}
                if found != {"hostile": None, "elements": 0, "raw": [], "wide": 0}:
                    wrong[f"{name} of {width}"] = found
            self.assert_clean(page)
        self.assertEqual(wrong, {}, json.dumps(wrong, indent=1))
        fields = {field for _, field in shown}
        self.assertLessEqual(self.spoiled_fields - fields, NOT_SHOWN)
        self.assertLessEqual({"currency", "display_name", "evidence", "forms", "product_name", "peer"}, fields)

    def test_a_curve_of_100000_points_keeps_its_spikes_and_shows_its_gaps(self):
        fleet = self.one_job(MANY_POINTS)
        fleet.points["job-one"][54321]["loss"] = 9.5
        fleet.points["job-one"][77777]["loss"] = "NaN"
        page = self.open("/jobs/job-one", fleet)
        self.see("lowest and highest of 1,000 parts of 100,000 points; zoom in for all")
        drawn = page.evaluate(
            "(() => { const [x, y] = document.querySelector('.plot').uplot.data; return [x.length, Math.max(...y), y.filter((each) => each === null).length]; })()"
        )
        self.assertLessEqual(drawn[0], 3 * 1000 + 2)
        self.assertEqual(drawn[1:], [9.5, 1])

    def test_points_that_come_are_drawn_and_thinned_when_they_are_many(self):
        fleet = self.one_job(MANY_POINTS)
        self.open("/jobs/job-one", fleet)
        self.see("of 100,000 points")
        fleet.add_points("job-one", 10)
        self.see("lowest and highest of 1,000 parts of 100,010 points")
        fleet.add_points("job-one", 3000)
        self.see("of 103,010 points")
        length = "document.querySelector('.plot').uplot.data[0].length"
        self.wait_for(f"() => {length} <= 3 * 1000 + 2")
        self.assertEqual(self.page.evaluate(f"document.querySelector('.plot').uplot.data[0][{length} - 1]"), 103_010)

    def test_a_smoothed_curve_is_the_servers_over_all_points(self):
        self.open("/jobs/job-one?smooth=50&from=900&to=1000", self.one_job(1000))
        self.see("all 102 points")
        raw, mean = self.page.evaluate("document.querySelector('.plot').uplot.data.slice(1).map((y) => y[50])")
        self.assertGreater(mean, raw)  # it lags behind a falling curve

    def test_loss_and_memory_of_every_rank_are_drawn(self):
        fleet = self.one_job(100)
        fleet.ranks["job-one"] = {
            rank: [(step, 2 - step / 100 + rank / 10, 10**9 * (rank + 1)) for step in range(1, 101)] for rank in range(16)
        }
        self.open("/jobs/job-one?from=20&to=80", fleet)
        self.page.get_by_text("Loss of each rank").scroll_into_view_if_needed()
        self.see("step 81: rank 0 1.1900, rank 15 2.6900")  # of many the lowest and the highest
        self.see("step 81: rank 0 1.00 GB, rank 15 16.0 GB")
        steps = self.steps_of("Loss of each rank")
        self.assertEqual((steps[0], steps[-1]), (19, 81))  # one zoom for all
        self.assertEqual(self.axe(), [])

    def test_zooming_shows_every_point(self):
        self.open("/jobs/job-one?from=50000&to=51000", self.one_job(MANY_POINTS))
        self.see("all 1,003 points")
        steps = self.steps_of("Loss")
        self.assertEqual(steps, list(range(49_999, 51_002)))
        self.page.get_by_role("button", name="All", exact=True).click()
        self.see("100,000 points; zoom in for all")
        self.assertNotIn("from=", self.page.url)

    def test_a_chart_is_zoomed_by_dragging_and_shown_as_a_table(self):
        page = self.open("/jobs/job-one", self.one_job(400))
        self.see("all 400 points")
        box = page.locator(".u-over").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=5)
        page.mouse.up()
        self.wait_for("() => location.search.includes('from=')")
        # The address is there before the charts are drawn again, each by itself.
        self.wait_for("() => [...document.querySelectorAll('.plot')].every((plot) => !(plot.uplot?.data[0].length >= 400))")
        steps = self.steps_of("Loss")
        self.assertTrue(90 <= steps[0] <= 110 and 290 <= steps[-1] <= 310, steps)
        self.assertEqual(self.steps_of("Gradient norm"), steps)  # one zoom for all
        page.get_by_text("Show as table").first.click()
        table = page.get_by_role("region", name="Loss as a table")
        table.wait_for()
        self.assertIn("every 2nd point" if len(steps) > 202 else "all points", table.inner_text())

    def test_a_job_that_learns_from_preferences_shows_margin_and_accuracy(self):
        fleet = self.one_job(0)
        preference = {"rewards_chosen": 0.9, "rewards_rejected": 0.4, "rewards_accuracies": 0.75}
        fleet.add_points("job-one", 20, preference=preference)
        self.open("/jobs/job-one", fleet)
        self.see("step 20: margin 0.5000")
        self.see("step 20: accuracy 75%")

    def test_before_its_first_step_a_job_has_no_loss_and_its_charts_no_axes(self):
        fleet = self.one_job(0)
        page = self.open("/jobs/job-one", fleet)
        self.see("before the first step")
        facts = page.locator(".figures dt").all_inner_texts()
        self.assertIn("step", facts)
        self.assertFalse({"loss", "left"} & set(facts), facts)
        self.assertGreater(page.get_by_text("no points yet").count(), 3)
        self.assertEqual(page.locator(".chart .plot:visible").count(), 0)
        page.goto("/jobs")
        self.see("0/200000 steps")
        page.goto("/jobs/job-one")
        self.see("before the first step")
        with fleet.lock:
            fleet.jobs["job-one"].update(progress={"step": "20", "total_steps": "200000", "loss": 1.5})
        fleet.add_points("job-one", 20)
        self.see("1.5000")
        self.wait_for("() => document.querySelector('.chart .plot').checkVisibility({visibilityProperty: true})")

    def test_a_later_attempt_replaces_the_steps_that_it_runs_again(self):
        fleet = self.one_job(100)
        self.open("/jobs/job-one", fleet)
        self.see("all 100 points")
        with fleet.lock:
            fleet.points["job-one"] += [
                {**fleet.points["job-one"][0], "step": str(step), "loss": 5.0, "attempt": 2} for step in range(61, 81)
            ]
        self.wait_for("() => document.querySelector('.note').textContent === 'all 80 points'")
        self.assertEqual(self.steps_of("Loss"), list(range(1, 81)))

    def test_a_page_goes_on_over_a_restart_of_the_server_without_gap_or_double(self):
        fleet = self.one_job(50)
        fleet.logs[("job-one", 0)] = b"".join(b"line %d\n" % number for number in range(100))
        page = self.open("/jobs/job-one?view=log", fleet)
        self.see("line 99")
        self.expected_errors = ("ERR_", "Failed to load resource")
        port = self.server.port
        for restart in range(3):
            self.server.stop()
            self.see("reconnecting")
            with fleet.lock:
                fleet.add_points("job-one", 25)
                fleet.logs[("job-one", 0)] += b"".join(b"more %d of %d\n" % (number, restart) for number in range(10))
            self.server = Server(fleet, port)
            self.see(f"more 9 of {restart}")
        lines = self.wait_for("() => [...document.querySelectorAll('.log .line')].map((line) => line.textContent)")
        wanted = [f"line {number}" for number in range(100)] + [
            f"more {number} of {restart}" for restart in range(3) for number in range(10)
        ]
        self.assertEqual(lines, wanted[-len(lines) :])
        page.get_by_role("link", name="Curves").click()
        self.wait_for("() => document.querySelector('.note')?.textContent === 'all 125 points'")
        self.assertEqual(self.steps_of("Loss"), list(range(1, 126)))
        self.see("live")

    def test_what_a_stream_leaves_out_between_two_attempts_is_read(self):
        fleet = self.one_job(50)
        fleet.logs[("job-one", 0)] = b"first attempt, line 1\n"
        self.open("/jobs/job-one?view=log", fleet)
        self.see("first attempt, line 1")
        self.page.locator(".feed.live").wait_for()
        with fleet.lock:
            fleet.logs[("job-one/1", 0)] = b"first attempt, line 1\nfirst attempt, line 2\n"
            fleet.logs[("job-one", 0)] = b"other attempt, line 1\n"  # as long as what the stream has sent
            fleet.jobs["job-one"]["attempt"] = 2
        for step in range(51, 71):  # what else comes does not put it off
            fleet.add_points("job-one", 1)
            fleet.jobs["job-one"]["progress"]["step"] = str(step)
            self.page.wait_for_timeout(250)
        self.see("other attempt, line 1")
        fleet.logs[("job-one", 0)] += b"other attempt, line 2\n"
        self.see("other attempt, line 2")
        lines = self.page.locator(".log .line").all_inner_texts()
        ended = "... attempt 1 has ended; what follows is of attempt 2"
        self.assertEqual(
            lines,
            [f"first attempt, line {number}" for number in (1, 2)]
            + [ended]
            + [f"other attempt, line {number}" for number in (1, 2)],
        )

    def test_a_hidden_page_closes_its_stream_and_goes_on_from_where_it_was(self):
        fleet = self.one_job(50)
        page = self.open("/jobs/job-one", fleet)
        self.see("all 50 points")
        self.wait_for("() => document.querySelector('.feed.live')")
        opened = len(fleet.feeds)
        hide = "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); document.dispatchEvent(new Event('visibilitychange')); }"
        page.evaluate(hide, True)
        fleet.add_points("job-one", 30)
        page.evaluate(hide, False)
        self.see("all 80 points")
        self.assertEqual(self.steps_of("Loss"), list(range(1, 81)))
        self.assertEqual([feed["metrics"] for feed in fleet.feeds[opened:]], [["50"]])

    def test_a_list_of_5000_jobs_is_there_at_once_and_scrolls_to_its_end(self):
        fleet = Fleet()
        for number in range(MANY_JOBS):
            fleet.add_job(
                f"job-{number:05}",
                "SUCCEEDED" if number % 3 else "FAILED",
                display_name=f"run {number}",
                end_time=at(-60),
            )
        page = self.open("/jobs", fleet)
        begin = time.monotonic()
        page.goto("/jobs")
        self.see("job-04999")
        print(f"first rows of {MANY_JOBS} jobs after {time.monotonic() - begin:.2f} s")
        self.assertLess(time.monotonic() - begin, LIST_S)
        self.wait_for("""() => { scrollTo(0, document.documentElement.scrollHeight);
          return document.querySelector('main').innerText.includes('job-00000'); }""")
        self.assertLess(page.locator("table.long tbody tr").count(), 120)
        self.see("5,000 jobs")
        page.keyboard.press("/")
        page.keyboard.type("run 4321")
        self.wait_for("() => document.querySelector('[role=status]').textContent === '1 job'")
        self.assertIn("q=run", page.url)

    def test_the_filter_asks_the_server_and_is_in_the_address(self):
        page = self.open("/jobs?q=state:RUNNING+support")
        self.see("2 jobs")
        page.get_by_label("State").select_option("FAILED")
        self.see("0 jobs")
        page.get_by_label("Filter").fill("group:support")
        self.see("qwen3-8b-support-dpo")
        self.assertIn("q=group:support", page.url)
        page.reload()
        self.see("4 jobs")
        with page.expect_request("**/ListJobs") as asked:
            page.get_by_label("Filter").fill("owner=ada support")
        request = asked.value.post_data_json
        self.assertEqual(request["filter"], "owner=ada support")
        self.assertIn("reason", request["fields"])
        self.expected_errors = ("400",)
        page.get_by_label("Filter").fill("onwer=ada")
        self.see("there is no onwer=")
        self.see("0 jobs")

    def test_the_list_shows_changes_as_they_come(self):
        page = self.open("/jobs")
        self.see("9 jobs")
        self.wait_for("() => document.querySelector('.feed.live')")
        with self.fleet.lock:
            self.fleet.jobs["job-w1q7sb"].update(
                state="RUNNING", progress={"step": "1", "total_steps": "10", "loss": 2.5}
            )
        self.fleet.add_job("job-fresh", display_name="fresh one")
        self.see("10 jobs")
        self.see("fresh one")
        self.assertIn("RUNNING", page.locator("tr", has_text="llama-70b-full").inner_text())

    def test_a_job_beyond_the_first_page_that_the_filter_lets_through_no_more_leaves_the_list(self):
        fleet = Fleet()
        for number in range(150):
            fleet.add_job(f"job-{number:03}", "RUNNING", reason="")
        page = self.open("/jobs?q=state=running", fleet)
        self.wait_for("""() => { scrollTo(0, document.documentElement.scrollHeight);
          return document.querySelector('main').innerText.includes('job-000'); }""")
        self.see("150 jobs")
        with fleet.lock:
            fleet.jobs["job-003"].update(state="FAILED", reason="out of memory")
            fleet.jobs["job-002"].update(progress={"step": "7", "total_steps": "10", "loss": 2.5})
        self.see("149 jobs")
        self.assertEqual(page.locator("tr", has_text="job-003").count(), 0)
        self.assertIn("7/10 loss 2.500", page.locator("tr", has_text="job-002").inner_text())

    def test_a_job_is_cancelled_by_keyboard_alone(self):
        page = self.open("/queue")
        self.see("llama-70b-full")
        for key in "gj":
            page.keyboard.press(key)
        self.see("9 jobs")
        page.keyboard.press("/")
        page.keyboard.type("qwen3-8b-support-r32")
        self.see("1 job")
        for key in ("Escape", "j", "Enter"):
            page.keyboard.press(key)
        self.see("all 540 points")
        page.keyboard.press("c")
        self.see("sftctl cancel job-t8w2mc")
        page.keyboard.press("Enter")
        self.see("cancelled by ada")
        self.assertEqual(
            [
                (method, request["name"].rsplit("/", 1)[-1], request["checkpoint"])
                for method, request in self.fleet.calls
                if method != "GetNodeHistory"
            ],
            [("CancelJob", "job-t8w2mc", False)],
        )

    def test_everything_is_reached_by_tab(self):
        page = self.open("/jobs")
        for path in (
            "/jobs",
            "/jobs/job-k3v9qx",
            "/jobs/job-b7c2ye?view=log&rank=3",
            "/fleet",
            "/queue",
            "/compare?jobs=job-k3v9qx,job-m2x6rd",
        ):
            page.goto(path)
            page.locator("main h1").wait_for()
            self.wait_for("() => !document.querySelector('main').innerText.includes('loading')")
            count = page.evaluate("""() => {
              window.reached = new Set();
              document.addEventListener('focusin', (event) => window.reached.add(event.target));
              const all = document.querySelectorAll('a[href], button:not(:disabled), input, select, textarea, summary, [tabindex="0"]');
              window.wanted = [...all].filter((each) => each.checkVisibility() && each.tabIndex >= 0);
              return window.wanted.length;
            }""")
            self.assertGreater(count, 10, path)
            for _ in range(count + 10):
                page.keyboard.press("Tab")
            left = page.evaluate(
                "window.wanted.filter((each) => each.isConnected && !window.reached.has(each)).map((each) => each.outerHTML.slice(0, 120))"
            )
            self.assertEqual(left, [], path)

    def test_actions_ask_once_and_show_the_command(self):
        page = self.open("/fleet")
        node = page.get_by_role("region", name="Node gpu-02")
        node.get_by_role("button", name="Drain").click()
        page.get_by_label("Move its jobs now").check()
        page.get_by_label("Reason (shown to others)").fill("it's hot")
        self.see("sftctl drain gpu-02 --now --reason 'it'\\''s hot'")
        page.get_by_role("button", name="Back").click()
        self.assertEqual(self.fleet.calls, [])
        node.get_by_role("button", name="Drain").click()
        page.get_by_role("button", name="Drain the node").click()
        node.locator(".state.DRAINED").wait_for()
        self.assertEqual(self.fleet.calls, [("HoldNode", {"node": "gpu-02", "mode": "DRAIN", "reason": ""})])
        node.get_by_role("button", name="End the hold").click()
        page.get_by_role("dialog").get_by_role("button", name="End the hold").click()
        node.locator(".state.UP").wait_for()
        page.goto("/queue")
        page.locator("tr", has_text="nightly-eval").get_by_role("button", name="Release").click()
        self.see("sftctl release job-h6u4je")
        page.get_by_role("button", name="Release the job").click()
        self.wait_for("() => !document.querySelector('dialog')")
        self.assertEqual(self.fleet.calls[-1][0], "ReleaseJob")

    def test_a_job_that_waits_says_why_and_what_would_start_it_sooner(self):
        page = self.open("/jobs/job-w1q7sb")
        wait = page.get_by_role("region", name="Why it waits")
        self.see("with 4 GPUs in place of 8")
        facts = dict(
            zip(wait.locator(".facts dt").all_inner_texts(), wait.locator(".facts dd").all_inner_texts(), strict=True)
        )
        self.assertEqual(facts["place"], "3 of 7")
        self.assertEqual(
            facts["ahead of it"],
            "1 job of its project and 1 of other projects, 9.3 GPU-hours (1 of unknown run time, counted with an hour)",
        )
        self.assertRegex(facts["expected start"], r"^in 1h2\dm \d{4}-.*UTC$")
        self.assertRegex(facts["at the latest"], r"^in 2h1\dm ")
        self.assertEqual(
            facts["estimates"],
            "of the last 412 starts 70 % came within a fifth of the wait that was expected, 95 % within a half",
        )
        whole = wait.locator(".sooner li").all_inner_texts()
        changes = [each.split("\n")[0] for each in whole]
        self.assertEqual(changes[0], "with 4 GPUs in place of 8: now")
        self.assertRegex(changes[1], r"^with a time limit of 1h: in 1[45]m .* UTC, at the latest in (29|30)m .* UTC$")
        self.assertEqual(changes[2], "with priority urgent: in its turn")
        command = self.fleet.waits["job-w1q7sb"]["what_ifs"][1]["command"]
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name=f"Copy {command}").click()
        self.see("copied")
        self.assertEqual(page.evaluate("navigator.clipboard.readText()"), command)
        moved = wait.locator(".moved li")
        self.assertEqual(moved.count(), 3)
        self.assertRegex(
            moved.first.inner_text(),
            r"(?s)^1m ago: job-u7 was submitted ahead of it\nplace 2 → 3\nstart \d{4}-.* UTC → \d{4}-.* UTC$",
        )
        page.get_by_role("button", name="Show all 4 changes").click()
        self.assertIn("2 jobs of other projects", moved.nth(3).inner_text())
        # Said once: the job's reason stands above already.
        self.assertEqual(page.get_by_text("waiting for 8 x H100 on one node").count(), 1)
        with self.fleet.lock:
            self.fleet.waits["job-w1q7sb"].update(what_ifs=[], ahead_own=0, ahead_others=0)
            self.fleet.waits["job-w1q7sb"]["outlook"]["place"] = 1
            self.fleet.jobs["job-w1q7sb"]["outlook"] = {"place": 2, "start_time": at(100)}
        self.see("1 of 7")
        self.assertEqual(wait.locator(".sooner").count(), 0)
        with self.fleet.lock:
            self.fleet.jobs["job-w1q7sb"].update(state="RUNNING", reason="")
        page.locator(".state.RUNNING").first.wait_for()
        wait.wait_for(state="detached")

    def test_a_held_job_is_told_of_its_release_and_others_of_nothing(self):
        fleet = sample_fleet()
        fleet.waits["job-h6u4je"] = {
            "reason": "held by grace: wait for the new data",
            "what_ifs": [{"change": "released", "now": True, "command": "sftctl release job-h6u4je"}],
        }
        page = self.open("/jobs/job-h6u4je", fleet)
        wait = page.get_by_role("region", name="Why it waits")
        self.see("sftctl release job-h6u4je")
        self.assertEqual(wait.locator(".facts dt").count(), 0)
        fleet.waits["job-h6u4je"] = {"reason": "", "what_ifs": []}
        page.reload()
        self.see("It starts with the next decision.")
        with page.expect_response("**/ExplainWait"):  # which says no more than the job's reason
            page.goto("/jobs/job-z9f3hn")
        self.see("waits for job-k3v9qx")
        fleet.jobs["job-z9f3hn"].pop("outlook")
        wait.wait_for(state="detached")
        for name in ("job-k3v9qx", "job-b7c2ye", "job-m2x6rd"):
            page.goto(f"/jobs/{name}")
            page.locator(".tabs").wait_for()
            self.assertEqual(wait.count(), 0, name)

    def test_a_dry_run_of_a_job_that_would_wait_says_what_would_start_it_sooner(self):
        fleet = sample_fleet()
        fleet.plan_wait = {**fleet.waits["job-w1q7sb"], "reason": "waiting for 8 x H100: 4 are free"}
        for each in fleet.plan_wait["what_ifs"]:
            each["change"] += HOSTILE
        page = self.open("/submit", fleet)
        page.get_by_role("button", name="Dry run").click()
        self.see("with 4 GPUs in place of 8")
        self.see("Why it would wait")
        self.assertEqual(page.get_by_text("waiting for 8 x H100: 4 are free").count(), 1)
        self.assertEqual(page.evaluate("[window.hostile, document.querySelectorAll('main img').length]"), [None, 0])
        self.assertEqual(self.axe(), [])
        fleet.plan_wait = None
        page.get_by_role("button", name="Dry run").click()
        self.see("it could start now")
        self.assertEqual(page.get_by_text("Why it would wait").count(), 0)

    def test_a_running_job_is_paused_and_released(self):
        page = self.open("/jobs/job-k3v9qx")
        page.locator(".state.RUNNING").first.wait_for()
        page.keyboard.press("h")
        self.see("gives its GPUs back and waits")
        page.get_by_label("Reason (shown to others)").fill("others first")
        self.see("sftctl hold job-k3v9qx --pause --reason 'others first'")
        self.assertEqual(self.axe(), [])
        page.get_by_role("button", name="Pause the job").click()
        page.locator(".state.PENDING").first.wait_for()
        page.keyboard.press("r")
        page.get_by_role("button", name="Release the job").click()
        self.wait_for("() => !document.querySelector('dialog')")
        name = self.fleet.jobs["job-k3v9qx"]["name"]
        changes = [(method, request) for method, request in self.fleet.calls if method in ("HoldJob", "ReleaseJob")]
        self.assertEqual(
            changes,
            [("HoldJob", {"name": name, "reason": "others first", "pause": True}), ("ReleaseJob", {"name": name})],
        )

    def uplot(self, title):
        """What a chart draws: names of the curves, and its data."""
        return self.wait_for(
            """(title) => {
          const chart = [...document.querySelectorAll('figure.chart')].find((each) => each.querySelector('strong').textContent === title);
          chart?.scrollIntoView();
          const plot = chart?.querySelector('.plot').uplot;
          return plot?.data[0].length ? {names: plot.series.slice(1).map((each) => each.label), data: plot.data} : null;
        }""",
            title,
        )

    def histories(self):
        return [request for method, request in self.fleet.calls if method == "GetNodeHistory"]

    def test_a_node_shows_the_use_of_its_gpus_for_two_hours_or_a_week(self):
        page = self.open("/fleet")
        node = page.get_by_role("region", name="Node gpu-01")
        node.wait_for()
        self.assertEqual(self.histories(), [])
        node.get_by_role("button", name="Use over time").click()
        for title, value in (("GPU utilisation", 95), ("GPU memory", 61e9), ("GPU power", 640), ("GPU temperature", 66)):
            shown = self.uplot(title)
            self.assertEqual(shown["names"], [f"GPU {slot}" for slot in range(8)])
            self.assertAlmostEqual(shown["data"][1][-1], value, delta=value / 10)
            self.assertLess(shown["data"][1][0], value / 1.5)  # before its job
            self.assertAlmostEqual(shown["data"][0][-1] - shown["data"][0][0], 7200, delta=30)
        self.see("means of 20s each")
        page.locator(".plot").first.scroll_into_view_if_needed()
        box = page.locator(".u-over").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.95, box["y"] + 60, steps=5)
        page.mouse.up()
        page.get_by_role("button", name="All of the time").wait_for()
        scales = "() => [...document.querySelectorAll('.plot')].map((plot) => plot.uplot?.scales.x).filter(Boolean).map((x) => x.max - x.min)"
        for span in self.wait_for(f"() => {{ const all = ({scales})(); return all.every((each) => each < 2000) && all; }}"):
            self.assertAlmostEqual(span, 0.2 * 7200, delta=100)  # one zoom for all
        page.get_by_role("button", name="All of the time").click()
        self.wait_for(f"() => ({scales})().every((each) => each > 7000)")
        node.get_by_role("button", name="week").click()
        self.see("means of 28m00s each")
        times = self.uplot("GPU utilisation")["data"][0]
        self.assertAlmostEqual(times[-1] - times[0], 7 * 86400, delta=3600)
        self.assertEqual([each["since_seconds"] for each in self.histories()], [7200, 7 * 86400])
        self.assertIn("use=gpu-01&span=week", page.url)
        page.reload()
        self.see("means of 28m00s each")
        # Another one in its place, which reports no power and no temperature and was away for a while.
        self.fleet.gpu_use["gpu-02"] = lambda slot, seconds: (
            None if 1000 < seconds < 3000 else {"utilization_percent": 50, "memory_used_bytes": "1000000000"}
        )
        page.get_by_role("region", name="Node gpu-02").get_by_role("button", name="Use over time").click()
        self.see("means of 20s each")
        x, y = self.uplot("GPU utilisation")["data"][:2]
        self.assertEqual(y.count(None), 1)
        gap = y.index(None)
        self.assertGreater(x[gap + 1] - x[gap - 1], 1900)
        self.assertEqual(page.locator("figure.chart").count(), 2)
        del self.fleet.gpu_use["gpu-02"]
        page.reload()
        self.see("It has reported no use of GPUs in that time.")

    def test_a_job_shows_the_use_of_its_own_gpus_while_it_held_them(self):
        fleet = Fleet()
        slot = {"gpu_type": "H100", "memory_bytes": "85500000000", "healthy": True, "job": ""}
        fleet.nodes = [{"name": f"nodes/{name}", "state": "UP", "slots": [{**slot, "index": index} for index in range(4)]} for name in ("a", "b")]
        for index, name in enumerate(("a", "b")):
            fleet.gpu_use[name] = lambda slot, seconds, index=index: {
                "utilization_percent": 10 * index + slot + 1,
                "memory_used_bytes": "1000000000",
            }
        # Two attempts on other slots, an hour ago and a quarter of one, with a pause between them.
        attempts = [(1, -7000, -5000), (2, -3000, -900)]
        fleet.add_job(
            "job-one",
            "FAILED",
            attempt=2,
            start_time=at(-7000),
            end_time=at(-900),
            attempts=[
                {"number": number, "state": "FAILED", "nodes": ["a", "b"], "create_time": at(begin), "end_time": at(end)}
                for number, begin, end in attempts
            ],
        )
        placed = {1: "a slots 1,2", 2: "a slots 1; b slots 3; goes on from step 3 on a slots 0"}
        fleet.events["job-one"] = [
            {"sequence": str(number), "time": at(-7000), "type": "placed", "message": message, "attempt": number}
            for number, message in placed.items()
        ]
        self.open("/jobs/job-one", fleet)
        section = self.page.get_by_role("region", name="Use of its GPUs")
        section.wait_for()
        shown = self.uplot("GPU utilisation")
        self.assertEqual(shown["names"], ["a GPU 1", "a GPU 2", "b GPU 3"])
        x, *curves = shown["data"]
        now = time.time()
        seen = [[(now - at_x, y) for at_x, y in zip(x, curve, strict=True) if y is not None] for curve in curves]
        for curve, value, begin, end in ((seen[0], 2, 7000, 900), (seen[1], 3, 7000, 5000), (seen[2], 14, 3000, 900)):
            self.assertEqual({y for _, y in curve}, {value})
            self.assertAlmostEqual(curve[0][0], begin, delta=60)
            self.assertAlmostEqual(curve[-1][0], end, delta=60)
        self.assertFalse([age for age, _ in seen[0] if 3100 < age < 4900])
        self.assertIn(None, curves[0])  # a gap, no line over the pause
        self.uplot("GPU memory")
        self.assertEqual(self.axe(), [])
        asked = self.histories()
        self.assertEqual(sorted(each["node"] for each in asked), ["a", "b"])
        self.assertTrue(all(700 < each["until_seconds"] < 900 for each in asked), asked)
        # What has ended is not asked for again.
        self.page.wait_for_timeout(100)
        self.assertEqual(len(self.histories()), 2)

    def test_a_job_whose_time_is_not_kept_shows_no_use_of_gpus(self):
        fleet = sample_fleet()
        ended = {"create_time": at(-9 * 86400), "end_time": at(-8 * 86400)}
        fleet.jobs["job-m2x6rd"].update(ended, start_time=ended["create_time"])
        fleet.jobs["job-m2x6rd"]["attempts"][0].update(ended)
        page = self.open("/jobs/job-m2x6rd", fleet)
        with page.expect_response("**/JobService/ListEvents"):
            page.reload()
        self.see("all 1,224 points")
        page.wait_for_timeout(500)
        self.assertEqual(page.get_by_role("region", name="Use of its GPUs").count(), 0)
        self.assertEqual(self.histories(), [])

    def test_every_problem_of_a_job_file_is_shown_at_its_key(self):
        fleet = Fleet()
        fleet.problems = [
            {"key": "lora.rr", "line": 2, "message": "unknown key; did you mean lora.r?"},
            {"key": "job.model", "line": 0, "message": "must be set"},
        ]
        page = self.open("/submit", fleet)
        page.get_by_label("Job file").last.fill("[lora]\nrr = 4\n")
        page.get_by_role("button", name="Dry run").click()
        self.see("2 problems")
        self.see("unknown key; did you mean lora.r?")
        self.see("must be set")
        self.assertEqual(page.locator(".numbers .bad").inner_text().strip(), "2")
        self.assertTrue(page.get_by_role("button", name="Submit", exact=True).is_disabled())
        page.get_by_role("button", name="job.toml:2").click()
        self.assertEqual(
            page.evaluate(
                "getSelection().toString() || document.activeElement.value.slice(document.activeElement.selectionStart, document.activeElement.selectionEnd)"
            ),
            "rr = 4",
        )
        fleet.problems = []
        page.get_by_label("Job file").last.fill("[lora]\nr = 4\n")
        page.get_by_role("button", name="Dry run").click()
        self.see("The job would be accepted.")
        page.get_by_role("button", name="Submit", exact=True).click()
        self.see("waiting for 4 x H100")
        self.assertEqual(
            [(method, request["source_text"]) for method, request in fleet.calls], [("SubmitJob", "[lora]\nr = 4\n")]
        )

    def drop(self, *files):
        """Drops files on the page, as (name, text)."""
        self.page.evaluate(
            """(files) => {
          const data = new DataTransfer();
          for (const [name, text] of files) data.items.add(new File([text], name));
          const event = (type) => new DragEvent(type, {dataTransfer: data, bubbles: true, cancelable: true});
          const field = document.querySelector('.editor textarea');
          field.dispatchEvent(event('dragover'));
          field.dispatchEvent(event('drop'));
        }""",
            files,
        )

    def needing(self, *needed):
        fleet = Fleet()
        fleet.needed = [{"key": key, "path": path, "from_override": False, "line": 4} for key, path in needed]
        return fleet

    def test_a_job_file_is_dropped_together_with_its_data(self):
        fleet = self.needing(("job.data", "rows/train.jsonl"), ("data.val", "val.json"))
        page = self.open("/submit", fleet)
        train, val = '{"text": "a"}\n{"text": "b"}\n', '[{"text": "c"}]\n'
        self.drop(("train.jsonl", train), ("mine.toml", '[job]\ndata = "rows/train.jsonl"\n'))
        self.see("train.jsonl: the dry run says what of the job it is")
        self.assertIn("rows/train.jsonl", page.get_by_label("Job file").last.input_value())
        page.get_by_role("button", name="Dry run").click()
        self.see("29 B, 2 rows, on the server".replace("29", str(len(train))))
        submit = page.get_by_role("button", name="Submit", exact=True)
        self.assertTrue(submit.is_disabled())
        self.drop(("other.jsonl", "{}"), ("more.jsonl", "{}"))
        self.see("the job names no file other.jsonl, more.jsonl")
        self.drop(("val.json", val))  # no job file, as the job names it
        self.see(f"{len(val)} B, 1 row, on the server")
        self.assertEqual(self.axe(), [])
        submit.click()
        self.see("waiting for 4 x H100")
        sent = [request for method, request in fleet.calls if method == "SubmitJob"][0]["files"]
        self.assertEqual(
            sent,
            [
                {"key": key, "sha256": hashlib.sha256(text.encode()).hexdigest(), "size": len(text), "client_path": name}
                for key, name, text in (("job.data", "train.jsonl", train), ("data.val", "val.json", val))
            ],
        )

    def test_a_file_is_hashed_and_sent_in_slices_from_where_the_server_has_it(self):
        fleet = self.needing(("job.data", "train.jsonl"))
        page = self.open("/submit", fleet)
        sizes = [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (5 << 20) + 17]
        hashes = page.evaluate(
            """async (sizes) => {
          const { Sha256 } = await import('/assets/lib/sha256.js');
          return sizes.map((size) => {
            const bytes = Uint8Array.from({length: size}, (_, i) => (i * 7 + size) % 251);
            const sha = new Sha256();
            for (let at = 0, step = 1; at < size; at += step, step = 2 * step + 1) sha.update(bytes.subarray(at, at + step));
            return sha.digest();
          });
        }""",
            sizes,
        )
        content = lambda size: bytes((i * 7 + size) % 251 for i in range(size))
        self.assertEqual(hashes, [hashlib.sha256(content(size)).hexdigest() for size in sizes])
        data = b'{"text": "one"}\n' * 500_000
        name = hashlib.sha256(data).hexdigest()
        fleet.blobs[name] = data[:1_000_003]
        page.get_by_role("button", name="Dry run").click()
        # Never more than a slice of it at once.
        page.evaluate(
            """() => {
          window.longest = 0;
          const read = Blob.prototype.arrayBuffer;
          Blob.prototype.arrayBuffer = function () { window.longest = Math.max(window.longest, this.size); return read.call(this); };
        }"""
        )
        page.get_by_label("job.data").set_input_files({"name": "train.jsonl", "mimeType": "", "buffer": data})
        self.see("8.00 MB, 500,000 rows, on the server")
        self.assertEqual([(each["sha256"], each["offset"]) for each in fleet.uploads], [(name, "1000003")])
        self.assertEqual(fleet.blobs[name], data)
        self.assertLessEqual(page.evaluate("window.longest"), 2 << 20)

    def test_another_path_or_project_needs_its_file_chosen_anew(self):
        fleet = self.needing(("job.data", "train.jsonl"))
        page = self.open("/submit", fleet)
        page.get_by_role("button", name="Dry run").click()
        field = page.get_by_label("job.data")
        field.set_input_files({"name": "mine.jsonl", "mimeType": "", "buffer": b"{}\n"})
        self.see("on the server (mine.jsonl)")
        fleet.needed[0]["path"] = "other.jsonl"
        page.get_by_label("Job file").last.fill("[job]\n")
        page.get_by_role("button", name="Dry run").click()
        self.see("once other.jsonl is there")
        fleet.needed[0]["path"] = "train.jsonl"
        page.get_by_role("textbox", name="project").fill("vision")
        page.get_by_role("button", name="Dry run").click()
        self.see("once train.jsonl is there")
        field.set_input_files({"name": "mine.jsonl", "mimeType": "", "buffer": b"[]\n"})
        self.see("on the server (mine.jsonl)")
        self.assertEqual([each["project"] for each in fleet.uploads], ["", "vision"])

    def test_what_is_no_job_file_is_refused_in_words(self):
        page = self.open("/submit", Fleet())
        page.get_by_label("Job file", exact=True).first.set_input_files(
            {"name": "job.toml", "mimeType": "", "buffer": b"#" * ((1 << 20) + 1)}
        )
        self.see("job.toml has 1.05 MB, a job file at most 1 MiB")
        self.assertIn("[job]", page.get_by_label("Job file").last.input_value())

    def test_a_file_that_changes_while_it_is_sent_is_told(self):
        fleet = self.needing(("job.data", "train.jsonl"))
        page = self.open("/submit", fleet)
        page.get_by_role("button", name="Dry run").click()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "train.jsonl"
            path.write_bytes(b"{}\n")
            page.route("**/StatBlob", lambda route: (path.write_bytes(b"{}\n{}\n"), route.continue_()))
            self.expected_errors = ("ERR_UPLOAD_FILE_CHANGED",)
            page.get_by_label("job.data").set_input_files(path)
            self.see("train.jsonl cannot be read, or has changed since it was chosen: choose it again")

    def test_the_log_is_searched_and_shows_what_the_verdict_says(self):
        page = self.open("/jobs/job-b7c2ye")
        page.get_by_role("link", name="Show it in the log").click()
        here = page.locator(".log .here")
        here.wait_for()
        self.assertEqual(here.inner_text(), "sft-rank: the loss is nan at step 312")
        page.keyboard.press("/")
        page.keyboard.type("step 12 ")
        self.see("1 line")
        page.keyboard.press("Enter")
        self.wait_for("() => document.querySelector('.log .here')?.textContent.startsWith('step 12 ')")

    def test_a_login_is_asked_for_and_a_link_with_a_code_needs_none(self):
        fleet = sample_fleet()
        fleet.token = "secret"
        page = self.open("/jobs", fleet)
        self.expected_errors = ("401",)
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Log in").click()
        self.see("the token is not valid")
        page.get_by_label("Token").fill("secret")
        page.get_by_role("button", name="Log in").click()
        self.see("9 jobs")
        page.get_by_role("button", name="Log out").click()
        page.get_by_label("Token").wait_for()
        page.context.clear_cookies()
        page.goto("about:blank")
        page.goto("/queue#code=secret")
        self.see("llama-70b-full")
        self.assertEqual(page.evaluate("location.hash"), "")

    def test_a_company_login_is_offered_where_there_is_one(self):
        fleet = sample_fleet()
        fleet.token = "secret"
        page = self.open("/jobs", fleet)
        self.expected_errors = ("401",)
        page.get_by_label("Token").wait_for()
        self.assertEqual(page.get_by_role("button", name="company").count(), 0)
        fleet.company = "https://login.example.com"
        page.reload()
        with page.expect_request("**/login/company") as left:
            page.get_by_role("button", name="Log in with your company").click()
        self.assertTrue(left.value.is_navigation_request())

    def test_compare_lays_curves_over_each_other_and_names_keys_that_differ(self):
        page = self.open("/jobs?q=support")
        self.see("qwen3-8b-support-r8")
        for name in ("qwen3-8b-support-r8", "qwen3-8b-support-r32"):
            page.locator("tr", has_text=name).get_by_role("checkbox").check()
        page.get_by_role("button", name="Compare 2").click()
        self.see("Keys that differ")
        differing = page.get_by_role("region", name="Keys that differ")
        self.assertEqual(differing.locator("tbody tr").count(), 1)
        self.assertIn("lora.r", differing.inner_text())
        series = self.wait_for("() => document.querySelector('.plot')?.uplot?.series.length")
        self.assertEqual(series, 3)
        self.see("loss at 34,560 samples")  # once each point is read
        figures = page.get_by_role("region", name="Figures of the jobs").inner_text()
        self.assertNotIn("...", figures)

    def test_the_vendor_bundle_is_what_its_recipe_makes(self):
        packages = DEPS / "dashboard"
        if not shutil.which("node") or not (packages / "node_modules/esbuild").exists():
            self.skipTest("there is no node, or its packages are missing: deploy/bootstrap --web")
        vendor = ROOT / "server/dashboard/vendor"
        for name in ("package.json", "package-lock.json"):
            self.assertEqual(
                (packages / name).read_bytes(), (vendor / name).read_bytes(), "deploy/bootstrap --web installs them"
            )
        with tempfile.TemporaryDirectory() as out:
            subprocess.run(["node", vendor / "build.mjs", packages, out], check=True, timeout=harness.DEADLINE_S)
            for name in ("vendor.js", "vendor.css", "LICENSES.txt"):
                self.assertEqual((pathlib.Path(out) / name).read_bytes(), (vendor / name).read_bytes(), name)


if __name__ == "__main__":
    harness.run_tests()
