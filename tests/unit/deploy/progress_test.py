"""deploy/progress.sh: what a long step of the bootstrap and the demo shows while it runs."""

import os
import pathlib
import pty
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parents[3]


class ProgressTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sft-progress-")
        self.addCleanup(folder.cleanup)
        self.log = pathlib.Path(folder.name) / "build.log"
        self.log.touch()

    def run_script(self, text, **options):
        script = f'set -euo pipefail\n. "{SOURCE}/deploy/progress.sh"\nlog="{self.log}"\n{text}\n'
        return subprocess.run(["bash", "-c", script], text=True, check=False, timeout=600,
                              env={**os.environ, "SFT_PROGRESS_SECONDS": "1"}, **options)

    def read_all(self, screen):
        shown = b""
        while True:
            try:
                part = os.read(screen, 100000)
            except OSError:  # Linux says so where no terminal is open any more
                return shown
            if not part:
                return shown
            shown += part

    def line(self, log, seconds):
        self.log.write_text(log)
        return self.run_script(f'progress_line "$log" building {seconds}', stdout=subprocess.PIPE).stdout

    def test_steps_and_the_time_left_are_those_of_ninja(self):
        self.assertEqual(self.line("-- configuring\n", 75), "building: 1:15")
        self.assertEqual(self.line("[1/324] one\n[81/324] Building\nwarning: [7/9]\n", 100),
                         "building: 1:40, 81 of 324 steps, about 5 min left")
        self.assertEqual(self.line("[300/324] Building\n", 600),
                         "building: 10:00, 300 of 324 steps, less than a minute left")

    def test_a_start_is_not_taken_for_the_whole(self):
        self.assertEqual(self.line("[9/324] Building\n", 100), "building: 1:40, 9 of 324 steps")
        self.assertEqual(self.line("[20/324] Building\n", 10), "building: 0:10, 20 of 324 steps")

    def test_a_line_each_interval_where_there_is_no_terminal_and_the_status_of_the_command(self):
        ran = self.run_script(
            "work() { for n in 1 2 3; do echo \"[$n/3] step\"; sleep 1.2; done; return 7; }\n"
            'with_progress "$log" building work || echo "status $?"', stdout=subprocess.PIPE)
        lines = ran.stdout.splitlines()
        self.assertEqual(lines[-1], "status 7")
        self.assertGreaterEqual(len(lines), 3)
        for line in lines[:-1]:
            self.assertRegex(line, r"^building: 0:\d\d, [123] of 3 steps$")
        self.assertEqual(self.log.read_text(), "[1/3] step\n[2/3] step\n[3/3] step\n")

    def test_one_line_on_a_terminal_gone_at_the_end(self):
        screen, terminal = pty.openpty()
        ran = self.run_script('with_progress "$log" building sleep 3', stdout=terminal)
        os.close(terminal)
        shown = self.read_all(screen).decode()
        os.close(screen)
        self.assertEqual(ran.returncode, 0)
        self.assertIn("\rbuilding: 0:01", shown)
        self.assertNotIn("\n", shown)
        self.assertTrue(shown.endswith("\r\x1b[K"), repr(shown))


if __name__ == "__main__":
    unittest.main()
