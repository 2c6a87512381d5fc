#!/usr/bin/env python3
"""sftctl top on a terminal: what is seen, what keys do, and that the terminal is left as it was."""

import os
import signal
import subprocess
import termios
import time

import harness
from harness import BUILD, wait_until
from screen import Terminal

SFTCTL = str(BUILD / "bin/sftctl")
ENTER, ESCAPE, RIGHT = "\r", "\x1b", "\x1bOC"


class TopTest(harness.ServiceCase):
    def setUp(self):
        super().setUp()
        self.start_server()

    def top(self, *arguments, **options):
        terminal = Terminal([SFTCTL, "--server", f"127.0.0.1:{self.port}", "top", "--interval", "1s", *arguments], **options)
        self.addCleanup(terminal.close)
        return terminal

    def running_job(self, ranks=2):
        self.start_worker(gpus="H100:4")
        job = self.submit("train steps=100000 pace=20", ranks=ranks)
        wait_until("steps", lambda: self.status(job)["progress"].get("step", 0) > 20)
        return job

    def assert_left_as_it_was(self, terminal, code=0):
        self.assertEqual(terminal.end(), code, terminal.grid.text())
        self.assertIs(terminal.grid.modes["?1049"], False, "the other screen is back")
        self.assertIsNot(terminal.grid.modes.get("?25"), False, "the cursor is back")
        flags = termios.tcgetattr(terminal.fd)[3]
        self.assertEqual(flags & (termios.ECHO | termios.ICANON), terminal.before[3] & (termios.ECHO | termios.ICANON))

    def test_jobs_nodes_the_queue_and_a_job_are_seen_by_keys(self):
        job = self.running_job()
        waiting = self.submit("wait", ranks=4, name="waits")
        # What would paint the terminal is refused where it is said.
        self.assertNotEqual(self.sftctl("hold", waiting, "--reason", "\x1b[41mred\x07 \x9b31m").returncode, 0)
        self.assertEqual(self.sftctl("hold", waiting, "--reason", "not yet").returncode, 0)
        top = self.top(columns=160)
        text = top.see("RUNNING")
        for each in (job, waiting, "[1 Jobs]", "live", "2 active and 0 ended jobs", "2 of 4 slots busy", "q quit"):
            self.assertIn(each, text)
        top.type("2")
        top.see("[2 Nodes]")
        text = top.see("node-a")
        self.assertIn("H100", text)
        top.type("3")
        top.see("1 waiting")
        top.see("not yet")
        top.type("1/" + job + ENTER)
        top.see(f"filter: {job}")
        top.see("1 active and 0 ended jobs")
        top.type(ENTER)
        top.see("[v curve]")
        text = top.see(" at step ")
        self.assertTrue(any("\u2801" <= letter <= "\u28ff" for letter in text), text)
        top.type(RIGHT)
        top.see("validation loss")
        top.type("m")
        top.see("loss of each rank over its own rows")
        text = top.see("RANK")
        self.assertIn("2.00 MB", text)  # rank 1's
        top.type("l")
        top.see("rank 0 of 2")
        top.type("e")
        top.see("submitted")
        top.type("?")
        top.see("select a row")
        top.type(" " + ESCAPE)
        top.see(f"filter: {job}")
        top.type("q")
        self.assert_left_as_it_was(top)

    def test_a_job_is_cancelled_and_a_refusal_is_told(self):
        job = self.running_job()
        top = self.top(job)
        top.see("[v curve]")
        top.type("h")
        top.see("does not wait: only a waiting job can be held")
        top.type("c")
        top.see(f"sftctl cancel {job}  really?")
        top.type("n")
        top.see("really?", gone=True)
        self.assertEqual(self.status(job)["state"], "RUNNING")
        top.type("cy")
        top.see(f"sftctl cancel {job}: done")
        top.see("CANCELLED")
        top.type("q")
        self.assert_left_as_it_was(top)

    def test_a_server_that_goes_and_comes_back_is_told_and_followed(self):
        job = self.running_job()
        top = self.top(job)
        top.see(" at step ")
        self.kill("server")
        top.see("NO ANSWER")
        self.assertIn("RUNNING", top.see("no answer since"))  # what was seen stays
        top.type("l?")  # keys are answered meanwhile
        top.see("select a row")
        top.type(" v")
        self.start_server()
        top.see("live")
        top.see("no answer since", gone=True)
        top.see(" at step ")
        top.type("q")
        self.assert_left_as_it_was(top)

    def test_a_window_of_any_size_is_drawn_anew(self):
        job = self.running_job()
        top = self.top(job)
        top.see(" at step ")
        for columns, rows in ((20, 8), (1, 1), (200, 60), (80, 24)):
            top.resize(columns, rows)
            top.settle()
        top.see("q quit")
        self.assertIn(job, top.grid.text())
        top.type("q")
        self.assert_left_as_it_was(top)

    def test_a_page_on_which_nothing_changes_sends_nothing(self):
        top = self.top()
        top.see("There is no job yet")
        top.settle()
        sent = top.sent
        top.read(3.5)
        self.assertEqual(top.sent, sent)
        top.type("j")
        top.read(1)
        self.assertEqual(top.sent, sent)

    def test_terminals_without_colours_without_unicode_and_of_no_known_type(self):
        job = self.running_job()
        colourful = self.top(job)
        colourful.see(" at step ")
        colourful.settle()
        self.assertTrue(colourful.grid.colours)
        for options in ({"NO_COLOR": "1"}, {"term": "vt100"}):
            plain = self.top(job, **options)
            plain.see(" at step ")
            plain.settle()
            self.assertEqual(plain.grid.colours, set(), options)
        for term in ("linux", "xterm-256color"):
            ascii_only = self.top(job, term=term, locale="C")
            ascii_only.see(" at step ")
            text = ascii_only.see("|")  # the curve comes with its second point
            self.assertTrue(text.isascii(), text)
        unknown = self.top(job, term="no-such-terminal")
        unknown.see("the terminal type \"no-such-terminal\" (TERM) is not known")
        self.assertEqual(unknown.end(), 5)

    def test_signals_leave_the_terminal_as_it_was(self):
        for number, code in ((signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGSEGV, -signal.SIGSEGV), (signal.SIGABRT, -signal.SIGABRT)):
            top = self.top()
            top.see("There is no job yet")
            os.kill(top.pid, number)
            self.assert_left_as_it_was(top, code)
        top = self.top()
        top.see("There is no job yet")
        top.type("\x03")  # Ctrl-C
        self.assert_left_as_it_was(top)

    def test_where_there_is_no_terminal_one_picture_is_printed(self):
        job = self.running_job()
        printed = self.sftctl("top")
        self.assertEqual(printed.returncode, 0, printed.stderr)
        self.assertIn(job, printed.stdout)
        self.assertIn("1 active and 0 ended jobs", printed.stdout)
        self.assertNotIn("\x1b", printed.stdout)
        for page, text in (("curve", " at step "), ("ranks", "loss of each rank"), ("log", "rank 0 of 2"), ("events", "submitted")):
            self.assertIn(text, self.sftctl("top", job, "--page", page, "--once").stdout)
        wide = subprocess.run(
            [SFTCTL, "--server", f"127.0.0.1:{self.port}", "top", job],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "COLUMNS": "40"},
        )
        self.assertLessEqual(max(map(len, wide.stdout.splitlines())), 40)
        self.assertEqual(self.sftctl("top", "job-aaaaaaaaaa").returncode, 3)
        self.kill("server")
        begin = time.monotonic()
        self.assertEqual(self.sftctl("top").returncode, 4)
        self.assertLess(time.monotonic() - begin, 60)


if __name__ == "__main__":
    harness.run_tests()
