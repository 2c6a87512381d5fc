#!/usr/bin/env python3
"""The dashboard of a real server in a browser: jobs submitted, followed, compared and cancelled from the page."""

import datetime
import hashlib
import json
import os
import re
import signal
import struct
import subprocess
import time
import urllib.parse

import harness
from browser import DEADLINE_MS, BrowserCase
from harness import BUILD, wait_until

# Steps that the fake ranks of a long job make, 20 ms each.
LONG = 100_000


class DashboardTest(BrowserCase, harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.http = harness.free_port()
        self.restart()
        self.start_worker(gpus="H100:4")

    def restart(self):
        self.start_server(http=f"127.0.0.1:{self.http}")

    def open(self, path, **options):
        page = self.new_page(f"http://127.0.0.1:{self.http}", **options)
        page.goto(path)
        return page

    def job_text(self, mode, name="job", tables="", ranks=1):
        """A job file whose data lies on the nodes, so that a page can submit it."""
        path = self.write_job(mode, ranks=ranks, name=name, tables=tables)
        text = path.read_text().replace(f'data = "{name}.jsonl"', f'data = "node:{self.dir}/{name}.jsonl"')
        return text.replace("[job]", f'[job]\nname = "{name}"')

    def submit_text(self, page, text):
        page.goto("/submit")
        page.get_by_label("Job file").last.fill(text)
        page.get_by_role("button", name="Dry run").click()
        self.see("The job would be accepted.")
        page.get_by_role("button", name="Submit", exact=True).click()
        page.wait_for_url(re.compile("/jobs/job-"), timeout=DEADLINE_MS)
        return page.url.rsplit("/", 1)[-1]

    def wait_for_steps(self, count):
        self.page.wait_for_function(
            """(count) => document.querySelector('.plot')?.uplot?.data[0].length >= count""",
            arg=count,
            timeout=DEADLINE_MS,
        )
        return self.steps_of("Loss")

    def test_a_job_is_submitted_on_the_page_and_followed_to_its_end(self):
        page = self.open("/jobs")
        self.see("There is no job yet")
        job = self.submit_text(
            page, self.job_text("train steps=60 pace=20 save=20", tables="[checkpoint]\nsave_steps = 20")
        )
        page.locator(".state.SUCCEEDED").first.wait_for()
        self.see("ended")
        self.assertEqual(self.wait_for_steps(60), list(range(1, 61)))
        self.assertEqual(self.status(job)["state"], "SUCCEEDED")
        for view, shown in (
            ("Log", "rank 0"),
            ("Timeline", "submitted"),
            ("Settings", "job.model"),
            ("Checkpoints", "server"),
        ):
            page.get_by_role("link", name=view, exact=True).click()
            self.see(shown)
        page.goto("/jobs")
        self.see("1 job")
        self.assertIn("SUCCEEDED", page.locator("tr", has_text=job).inner_text())

    def test_the_page_says_the_secret_of_a_jobs_webhook_once(self):
        self.kill("server")
        self.start_server("--webhook-allow", "127.0.0.0/8", http=f"127.0.0.1:{self.http}")
        page = self.open("/submit")
        text = self.job_text("ok", tables='[notify]\nwebhook = "http://127.0.0.1:9/mine"')
        page.get_by_label("Job file").last.fill(text)
        page.get_by_role("button", name="Dry run").click()
        self.see("The job would be accepted.")
        page.get_by_role("button", name="Submit", exact=True).click()
        self.see("The secret of its webhook")
        self.assertRegex(page.get_by_role("alert").inner_text(), r"whsec_[A-Za-z0-9+/]{43}=")
        self.assertEqual(self.axe(), [])
        page.get_by_role("alert").get_by_role("link").click()
        self.see("http://127.0.0.1:9/mine")
        self.assertNotIn("whsec_", page.content())
        # The next job goes by the same webhook.
        self.submit_text(page, text)

    def test_a_waiting_job_is_told_what_would_start_it_sooner(self):
        gate = self.dir / "gate"
        # Of a job that seems to end within a minute nobody need be told a way round.
        first = self.submit(f"train steps=5 pace=1 until={gate}", ranks=4, name="first", tables="max_steps = 1000000")
        self.wait_for_state(first, "RUNNING")
        waiting = self.submit("train steps=3 pace=1", ranks=4, name="waiting")
        page = self.open(f"/jobs/{waiting}")
        wait = page.get_by_role("region", name="Why it waits")
        self.see("1 of 1")
        self.start_worker("node-b", gpus="A100:4")
        self.see("on 4 x A100")
        told = self.status(waiting)["wait"]
        found = next(each for each in told["what_ifs"] if each["change"] == "on 4 x A100")
        item = wait.locator("li", has_text="on 4 x A100")
        self.assertTrue(item.inner_text().startswith("on 4 x A100: now\n"), item.inner_text())
        self.assertEqual(item.locator("code").inner_text(), found["command"])
        self.assertEqual(self.axe(), [])
        page.goto("/submit")
        page.get_by_label("Job file").last.fill(self.job_text("train steps=3", name="another", ranks=4))
        page.get_by_role("button", name="Dry run").click()
        self.see("The job would be accepted.")
        self.see("on 4 x A100")
        self.assertIn("2 of 2", page.get_by_role("region", name="Why it would wait").inner_text())
        self.see("sftctl submit job.toml --set compute.gpu_type=A100")
        page.goto(f"/jobs/{waiting}")
        self.see("on 4 x A100")
        gate.write_text("")
        self.assert_ends(first, 0)
        page.locator(".state.SUCCEEDED").first.wait_for()
        self.assertEqual(wait.count(), 0)

    def write_gpu_use(self, node, minutes):
        """What the server would keep of a node whose GPUs report their use (gpu_history.h): simulated ones do not."""
        folder = self.dir / f"server/gpu-use/{node}"
        folder.mkdir(parents=True, exist_ok=True)
        now = int(time.time()) // 60
        for minute in range(now - minutes, now):
            with open(folder / str(minute // 1440), "ab") as file:
                for slot in range(4):
                    file.write(struct.pack("<4sIHBBHHq", b"SFTU", minute, slot, 90 + slot, 60, 650, 0, 61_000_000_000))

    def test_the_use_of_a_nodes_gpus_is_drawn(self):
        self.write_gpu_use("node-a", minutes=3 * 60)
        page = self.open("/fleet")
        page.get_by_role("region", name="Node node-a").get_by_role("button", name="Use over time").click()
        self.see("means of 20s each")
        plot = """(title) => {
          const chart = [...document.querySelectorAll('figure.chart')].find((each) => each.querySelector('strong').textContent === title);
          chart?.scrollIntoView();
          const plot = chart?.querySelector('.plot').uplot;
          return plot?.data[0].length ? {names: plot.series.slice(1).map((each) => each.label), data: plot.data} : null;
        }"""
        for title, value in (("utilisation", 91), ("memory", 61e9), ("power", 650), ("temperature", 60)):
            shown = self.wait_for(plot, f"GPU {title}")
            self.assertEqual(shown["names"], [f"GPU {slot}" for slot in range(4)])
            self.assertEqual(set(shown["data"][2]), {value})  # and no gap between the minutes
            self.assertIn(len(shown["data"][0]), range(115, 122))
        page.get_by_role("button", name="week").click()
        self.see("means of 28m00s each")
        self.assertIn(len(self.wait_for(plot, "GPU power")["data"][0]), range(6, 9))
        self.assertEqual(self.axe(), [])

    def test_the_slots_of_a_jobs_attempts_and_the_end_of_a_span_are_what_the_server_says(self):
        job = self.submit("train steps=3", ranks=2)
        self.assert_ends(job, 0)
        self.write_gpu_use("node-a", minutes=30)
        page = self.open(f"/jobs/{job}")
        self.see("all 3 points")
        told = page.evaluate(
            """async (name) => {
          const { call } = await import('/assets/lib/api.js');
          const { slotsOf } = await import('/assets/lib/gpu_use.js');
          const attempts = await slotsOf(await call('JobService/GetJob', {name}));
          return [...attempts].map(([attempt, nodes]) => [attempt, [...nodes].map(([node, slots]) => [node, [...slots]])]);
        }""",
            job,
        )
        self.assertEqual(told, [[1, [["node-a", [0, 1]]]]])
        ask = lambda since, until: page.evaluate(
            """async ([since_seconds, until_seconds]) => {
          const { call } = await import('/assets/lib/api.js');
          const request = {node: 'node-a', since_seconds, until_seconds};
          return call('ClusterService/GetNodeHistory', request).catch((error) => ({refused: error.message}));
        }""",
            [since, until],
        )
        times = [point["time"] for point in ask(1500, 600)["gpus"][0]["points"]]
        ages = [time.time() - datetime.datetime.fromisoformat(each.replace("Z", "+00:00")).timestamp() for each in times]
        self.assertIn(len(ages), range(13, 16))
        self.assertTrue(600 < ages[-1] < 740 and 1400 < ages[0] < 1520, ages)
        self.expected_errors = ("400",)
        self.assertIn("cannot end 600 seconds ago", ask(600, 600)["refused"])
        self.assertIn("cannot end -1 seconds ago", ask(600, -1)["refused"])

    def test_a_running_job_is_paused_and_goes_on_where_it_was(self):
        job = self.submit(f"train steps={LONG} pace=20", ranks=1)
        self.wait_for_step(job)
        page = self.open(f"/jobs/{job}")
        page.get_by_role("button", name="Pause", exact=True).click()
        page.get_by_role("button", name="Pause the job").click()
        page.locator(".state.PENDING").first.wait_for()
        self.assertTrue(self.status(job)["held"])
        page.get_by_role("button", name="Release", exact=True).click()
        page.get_by_role("button", name="Release the job").click()
        page.locator(".state.RUNNING").first.wait_for()
        self.assertEqual(self.status(job)["attempt"], 2)
        self.sftctl("cancel", job)
        self.assert_ends(job, 12)

    def test_problems_of_a_job_file_are_shown_at_their_keys(self):
        page = self.open("/submit")
        page.get_by_label("Job file").last.fill(self.job_text("ok").replace('mode = "lora"', 'mode = "lorra"\nrr = 1'))
        page.get_by_role("button", name="Dry run").click()
        self.see("2 problems")
        said = page.locator(".problems").inner_text()
        self.assertIn("training.mode", said)
        self.assertIn("training.rr", said)
        self.assertEqual(json.loads(self.sftctl("list", "--json").stdout), [])

    def to_submit(self, mode="train steps=5", megabytes=0, name="job"):
        """Opens the page with a job file whose data is on this machine, and says what the dry run says; the data."""
        path = self.write_job(mode, ranks=1, name=name)
        data = self.dir / f"{name}.jsonl"
        row = data.read_bytes()
        with open(data, "ab") as out:
            for number in range(20 * megabytes):
                out.write(json.dumps({"text": f"{number} " + "y" * 49_950}).encode() + b"\n")
        self.assertTrue(data.read_bytes().startswith(row))
        page = self.open("/submit")
        self.sent = []
        page.on("request", lambda request: self.sent.append(request.url) if "/UploadBlob" in request.url else None)
        self.session = page.context.new_cdp_session(page)
        page.get_by_label("Job file").last.fill(path.read_text())
        self.dry_run()
        return data

    def dry_run(self):
        self.page.get_by_role("button", name="Dry run").click()
        self.see("The job would be accepted.")

    def chosen(self):
        return self.page.get_by_role("region", name="Its data").get_by_label("job.data")

    def choose(self, path):
        with self.page.expect_file_chooser() as chooser:
            self.chosen().click()
        chooser.value.set_files(path)

    def send_slowly(self, bytes_a_second):
        """What the page sends from now on; 0: as fast as it can."""
        self.session.send(
            "Network.emulateNetworkConditions",
            {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": bytes_a_second or -1},
        )

    def wait_for_part(self, share):
        """Until so much of a file has gone."""
        self.wait_for(
            """(share) => {
          const bar = document.querySelector('progress[aria-label$=send]');
          return bar && bar.value > share * bar.max;
        }""",
            share,
        )

    def offsets(self):
        return [int(urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["offset"][0]) for url in self.sent]

    def submit_chosen(self):
        self.page.get_by_role("button", name="Submit", exact=True).click()
        self.page.wait_for_url(re.compile("/jobs/job-"), timeout=DEADLINE_MS)
        return self.page.url.rsplit("/", 1)[-1]

    def test_a_job_is_submitted_with_a_file_of_20_mb_by_keyboard_alone(self):
        data = self.to_submit(megabytes=20)
        page = self.page
        self.see("choose the file")
        submit = page.get_by_role("button", name="Submit", exact=True)
        self.assertTrue(submit.is_disabled())
        self.see("once job.jsonl is there")
        field = self.chosen()
        field.focus()
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Space")
        self.send_slowly(20 << 20)
        chooser.value.set_files(data)
        page.get_by_role("progressbar").wait_for()
        self.assertEqual(self.axe(), [])
        self.see("20.0 MB, 401 rows, on the server")
        self.assertEqual(page.locator("p[role=status]").inner_text(), "job.jsonl is on the server")
        self.assertEqual(self.axe(), [])
        self.assertEqual(self.offsets(), [0])
        biggest = json.loads(self.sftctl("storage", "--json").stdout)["biggest"]
        stored = {(each["display_name"], each["name"]) for each in biggest}
        self.assertLessEqual({("job.jsonl", f"dataset:{hashlib.sha256(data.read_bytes()).hexdigest()}")}, stored)
        self.choose(data)  # which is there already
        page.get_by_role("region", name="Its data").get_by_text("20.0 MB, on the server").wait_for()
        self.assertEqual(self.offsets(), [0])
        submit.focus()
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile("/jobs/job-"), timeout=DEADLINE_MS)
        self.assert_ends(page.url.rsplit("/", 1)[-1], 0)

    def test_an_upload_goes_on_over_a_kill_of_the_server(self):
        data = self.to_submit(megabytes=20)
        self.expected_errors = ("ERR_", "Failed to load resource")
        self.send_slowly(4 << 20)
        self.choose(data)
        self.wait_for_part(0.3)
        self.kill("server")
        self.see("the server cannot be reached; trying again")
        self.restart()
        self.wait_for_part(0.5)
        self.send_slowly(0)
        self.see("401 rows, on the server")
        offsets = self.offsets()
        self.assertEqual(offsets[0], 0)
        self.assertGreater(offsets[-1], 1 << 20)
        self.assert_ends(self.submit_chosen(), 0)

    def test_an_upload_is_cancelled_and_goes_on_when_its_file_is_chosen_again(self):
        data = self.to_submit(megabytes=20)
        self.send_slowly(4 << 20)
        field = self.chosen()
        self.choose(data)
        self.wait_for_part(0.3)
        self.page.get_by_role("button", name="Cancel job.jsonl").click()
        self.see("cancelled; chosen again, it goes on where it was")
        self.assertTrue(field.evaluate("(field) => field === document.activeElement"))
        self.assertTrue(self.page.get_by_role("button", name="Submit", exact=True).is_disabled())
        self.assertEqual(self.axe(), [])
        self.send_slowly(0)
        self.choose(data)
        self.see("401 rows, on the server")
        self.assertGreater(self.offsets()[-1], 1 << 20)
        # A page that is left sends nothing more.
        data.write_bytes(data.read_bytes() + data.read_bytes())
        self.send_slowly(4 << 20)
        self.choose(data)
        self.wait_for_part(0.1)
        with self.page.expect_event("requestfailed", lambda request: "/UploadBlob" in request.url):
            self.page.get_by_role("link", name="Queue").click()

    def test_what_cannot_be_used_as_data_is_told_in_words(self):
        data = self.to_submit()
        self.expected_errors = ("400", "429")
        picture = self.dir / "picture.jsonl"
        picture.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40)
        archive = self.dir / "rows.zip"
        archive.write_bytes(b"PK\x03\x04" + b"\0" * 100)
        short = self.dir / "short.json"
        short.write_text('[{"text": "a"},\n{"text": ')
        empty = self.dir / "empty.jsonl"
        empty.write_bytes(b"")
        item = self.page.locator(".needed li")
        for path, told in ((picture, "line 1"), (archive, "archive"), (short, "line 2"), (empty, "no rows")):
            self.choose(path)
            item.get_by_text(told).wait_for()
            self.assertTrue(self.page.get_by_role("button", name="Submit", exact=True).is_disabled(), path)
        self.assertEqual(self.axe(), [])
        self.choose(data)
        self.see("1 row, on the server")
        self.assert_ends(self.submit_chosen(), 0)

    def test_a_project_without_room_for_a_file_says_so_and_another_takes_it(self):
        data = self.to_submit(megabytes=20)
        self.expected_errors = ("429",)
        result = self.sftctl("admin", "quota", "set", "small", "--datasets", "5MB")
        self.assertEqual(result.returncode, 0, result.stderr)
        project = self.page.get_by_role("textbox", name="project")
        project.fill("small")
        self.dry_run()
        self.choose(data)
        self.see("project small has 0 B of its 5.00 MB for data sets")
        self.page.get_by_role("button", name="Try again").wait_for()
        # What was chosen for one project is not for another.
        project.fill("")
        self.dry_run()
        self.see("choose the file")
        self.choose(data)
        self.see("401 rows, on the server")
        self.assert_ends(self.submit_chosen(), 0)

    def test_a_full_disk_refuses_a_file_in_words(self):
        disk = self.small_disk("disk", 60)
        self.kill("server")
        self.start("server", BUILD / "bin/sft-server", "--listen", f"127.0.0.1:{self.port}", "--http",
                   f"127.0.0.1:{self.http}", "--data-dir", disk / "server", "--disk-low", "5%", "--disk-full", "3%")
        wait_until("the node to come back", lambda: '"UP"' in self.sftctl("nodes", "--json").stdout)
        data = self.to_submit(megabytes=20)
        ballast = self.fill(disk, leave=10 << 20)
        self.expected_errors = ("429",)
        self.choose(data)
        self.page.locator(".needed .bad").wait_for()
        told = self.page.locator(".needed .bad").inner_text()
        self.assertRegex(told, "disk")
        ballast.unlink()
        self.page.get_by_role("button", name="Try again").click()
        self.see("401 rows, on the server")

    def test_a_real_job_is_cancelled_by_keyboard_alone(self):
        job = self.submit(f"train steps={LONG}", ranks=1)
        self.wait_for_step(job)
        page = self.open("/queue")
        self.see("What a job can ask for")
        for key in "gj":
            page.keyboard.press(key)
        self.see("1 job")
        for key in ("j", "Enter"):
            page.keyboard.press(key)
        self.see("Curves")
        page.keyboard.press("c")
        self.see(f"sftctl cancel {job}")
        page.keyboard.press("Enter")
        page.locator(".state.CANCELLED").first.wait_for()
        self.assert_ends(job, 12)

    def test_a_page_goes_on_over_a_kill_of_the_server_without_gap_or_double(self):
        job = self.submit(f"train steps={LONG} pace=20", ranks=1)
        self.wait_for_step(job)
        self.open(f"/jobs/{job}")
        self.wait_for_steps(5)
        self.expected_errors = ("ERR_", "Failed to load resource")
        for _ in range(2):
            seen = len(self.steps_of("Loss"))
            self.kill("server")
            self.see("reconnecting")
            self.restart()
            self.wait_for_steps(seen + 20)
            self.page.locator(".feed.live").wait_for()
        self.sftctl("cancel", job)
        self.page.locator(".state.CANCELLED").first.wait_for()
        self.see("ended")
        lines = self.sftctl("metrics", job, "--json").stdout.splitlines()
        self.assertEqual(self.steps_of("Loss"), [json.loads(line)["step"] for line in lines])

    def test_a_log_is_followed_over_a_kill_of_the_server(self):
        job = self.submit("lines 1500 20", ranks=1)
        self.open(f"/jobs/{job}?view=log")
        self.see("of rank 0")
        self.expected_errors = ("ERR_", "Failed to load resource")
        self.kill("server")
        self.restart()
        self.page.locator(".state.SUCCEEDED").first.wait_for()
        self.see("rank 0 done")
        self.page.get_by_role("button", name="Load the first").or_(self.page.get_by_text("lines,")).first.wait_for()
        with self.page.expect_download() as downloaded:
            self.page.get_by_role("button", name="Download", exact=True).click()
        self.assertEqual(downloaded.value.path().read_text(), self.sftctl("logs", job).stdout)

    def test_a_job_that_is_restarted_goes_on_in_its_log_and_its_curve(self):
        job = self.submit(f"train steps=5000 pace=20 save=50 fast={self.dir}/fast", ranks=1)
        page = self.open(f"/jobs/{job}?view=log")
        self.see("rank 0 of 1")
        page.locator(".feed.live").wait_for()
        for rank in self.ranks():
            os.kill(rank, signal.SIGKILL)
        self.see("attempt 1 has ended; what follows is of attempt 2")
        (self.dir / "fast").write_text("")
        page.locator(".state.SUCCEEDED").first.wait_for()
        lines = page.locator(".log .line").all_inner_texts()
        self.assertEqual(len(lines), 3, lines)
        self.assertEqual(lines[2:], self.sftctl("logs", job).stdout.splitlines())
        self.assertEqual(lines[:1], self.sftctl("logs", job, "--attempt", 1).stdout.splitlines())
        page.keyboard.press("3")
        self.see("restarted: 1 of")
        page.keyboard.press("1")
        self.see("5,000 points; zoom in for all")
        page.goto(f"/jobs/{job}?from=1&to=1900")
        self.see("all 1,901 points")
        self.assertEqual(self.steps_of("Loss"), list(range(1, 1902)))

    def test_jobs_are_compared(self):
        jobs = [
            self.submit("train steps=30", ranks=1, name=name, tables=f"learning_rate = {rate}")
            for name, rate in (("one", "1e-4"), ("two", "2e-4"))
        ]
        for job in jobs:
            self.assert_ends(job, 0)
        page = self.open("/jobs")
        self.see("2 jobs")
        for key in ("j", "x", "j", "x", "c"):
            page.keyboard.press(key)
        self.see("Keys that differ")
        differing = page.get_by_role("region", name="Keys that differ").inner_text()
        self.assertIn("hyperparameters.learning_rate", differing)
        told = json.loads(self.sftctl("compare", *jobs, "--json").stdout)
        for run in told["runs"]:
            self.see(f"{run['mean_loss_at_samples']:.4f}")

    def test_a_node_is_drained_and_works_again(self):
        page = self.open("/fleet")
        node = page.get_by_role("region", name="Node node-a")
        node.get_by_role("button", name="Drain").click()
        page.get_by_label("Reason").fill("new driver")
        page.get_by_role("button", name="Drain the node").click()
        node.locator(".state.DRAINED").wait_for()
        self.assertIn("new driver", self.sftctl("nodes", "node-a").stdout)
        node.get_by_role("button", name="End the hold").click()
        page.get_by_role("dialog").get_by_role("button", name="End the hold").click()
        node.locator(".state.UP").wait_for()

    def seconds_to_draw(self, job, text):
        """From the click to a picture of the job's curve; the best of some tries, each from another page."""
        seconds = []
        for _ in range(3):
            self.page.goto("/queue")
            self.see("What a job can ask for")
            begin = time.monotonic()
            self.page.goto(f"/jobs/{job}")
            self.see(text)
            self.wait_for_steps(1)
            seconds.append(time.monotonic() - begin)
        return min(seconds)

    def test_a_curve_of_100000_points_is_there_as_soon_as_a_short_one(self):
        long, short = (self.submit(f"train steps={steps} pace=0", ranks=1, name=f"of-{steps}") for steps in (LONG, 100))
        for job in (short, long):
            self.assert_ends(job, 0)
        self.open("/queue")
        of_short, of_long = self.seconds_to_draw(short, "all 100 points"), self.seconds_to_draw(long, "of 100,000 points")
        print(f"drawn after {of_short:.2f} s of 100 points, {of_long:.2f} s of {LONG}")
        self.assertLess(of_long, of_short + 1)
        self.page.goto(f"/jobs/{long}?from=50000&to=50100")
        self.see("all 103 points")
        self.assertEqual(self.steps_of("Loss"), list(range(49_999, 50_102)))

    def test_who_has_no_token_is_asked_for_one_and_a_session_ends_with_the_logout(self):
        self.kill("server")
        folder = self.dir / "closed"
        made = subprocess.run(
            [str(BUILD / "bin/sft-server"), "init", "--data-dir", str(folder), "--name", "127.0.0.1"],
            capture_output=True,
            text=True,
            check=True,
        )
        token = re.search(r"^admin token +(\S+)", made.stdout, re.M).group(1)
        self.start(
            "server",
            BUILD / "bin/sft-server",
            "--listen",
            f"0.0.0.0:{self.port}",
            "--http",
            f"127.0.0.1:{self.http}",
            "--data-dir",
            folder,
        )
        wait_until(
            "the page",
            lambda: subprocess.run(
                ["curl", "-sf", f"http://127.0.0.1:{self.http}/healthz"], capture_output=True, check=False
            ).returncode
            == 0,
        )
        page = self.open("/audit")
        self.expected_errors = ("401", "ERR_INCOMPLETE_CHUNKED_ENCODING")  # a stream ends with its session
        self.see("This server asks who you are")
        self.assertEqual(self.axe(), [])
        page.get_by_label("Token").fill("nonsense")
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("alert").wait_for()
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        self.see("Outcome")
        self.see("admin (admin)")
        self.assertEqual(page.evaluate("document.cookie"), "")
        send = """async () => {
          const { sendFile } = await import('/assets/lib/send_file.js');
          const file = new File(['{"text": "one"}\\n'], 'rows.jsonl');
          return sendFile(file, '', new AbortController().signal, () => undefined).catch((error) => error.status);
        }"""
        self.assertEqual(page.evaluate(send)["rows"], 1)
        page.get_by_role("link", name="Jobs").click()
        self.see("There is no job yet")
        page.locator(".feed.live").wait_for()
        page.get_by_role("button", name="Log out").click()
        self.see("This server asks who you are")
        self.assertEqual(page.evaluate(send), 401)
        page.goto("/jobs")
        self.see("This server asks who you are")
        told = subprocess.run(
            [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "web", "--no-open"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "SFT_TOKEN": token, "SFT_CA": str(folder / "tls/ca.crt")},
        )
        page.goto("about:blank")
        page.goto(told.stdout.strip())
        self.see("There is no job yet")
        self.assertEqual(page.evaluate("location.hash"), "")
        page.goto("/fleet")
        self.see("No node has joined yet.")

    def test_every_page_is_clean_on_a_real_server(self):
        job = self.submit("train steps=30", ranks=1)
        self.assert_ends(job, 0)
        waiting = self.submit("train steps=30", ranks=1, name="held", compute="", tables="[scheduling]\nhold = true")
        page = self.open("/jobs")
        for path, shown in (
            ("/jobs", waiting),
            (f"/jobs/{job}", "all 30 points"),
            ("/queue", waiting),
            ("/fleet", "node-a"),
            ("/storage", "Largest items"),
            ("/stats", "Utilisation"),
            ("/audit", "JobService.SubmitJob"),
        ):
            page.goto(path)
            self.see(shown)
            self.assertEqual(self.axe(), [], path)
        wait_until("the shell's headers", lambda: page.request.get("/").headers["content-security-policy"])


if __name__ == "__main__":
    harness.run_tests()
