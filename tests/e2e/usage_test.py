"""What people do by mistake, or at the same time as others, with real processes."""

import json
import os
import signal
import subprocess

from harness import BUILD, DEADLINE_S, ServiceCase, run_tests, wait_until

SUCCEEDED, INTERNAL, USAGE, NOT_FOUND, USER_FAILURE, INTERRUPTED = 0, 1, 2, 3, 10, 130


class UsageTest(ServiceCase):

    def spawn(self, *arguments):
        return subprocess.Popen(
            [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def test_a_second_worker_of_the_name_is_refused_and_the_job_goes_on(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=2)
        self.wait_for_step(job)
        ranks = self.wait_for_ranks(2)
        self.start("twin", BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "twin", "--node", "node-a", "--simulate-gpus", "H100:8",
                   "--cpu-slots", 0, "--rank-binary", BUILD / "tests/sft-fake-rank")
        log = self.dir / "twin.log"
        wait_until("the refusal", lambda: "the server refused this worker" in log.read_text())
        self.assertIn("give this worker another --node", log.read_text())
        self.assertEqual(self.ranks(), ranks)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)

    def test_two_people_submit_one_new_data_set_at_once(self):
        self.start_server()
        self.start_worker()
        job = self.write_job("ok", ranks=1, rows=1_500_000)
        both = [self.spawn("submit", job, "--json") for _ in range(2)]
        for process in both:
            out, err = process.communicate(timeout=DEADLINE_S)
            self.assertEqual(process.returncode, 0, err)
            self.assert_ends(json.loads(out)["job"], SUCCEEDED)

    def test_a_failed_preparation_names_the_users_file_and_the_log_that_says_more(self):
        self.start_server()
        self.start_worker()
        job = self.submit("user_error", ranks=1, name="mine")
        result = self.sftctl("wait", job)
        self.assertEqual(result.returncode, USER_FAILURE, result.stderr)
        self.assertIn("mine.jsonl: line 1: nothing to learn", result.stderr)
        self.assertNotIn("/datasets/", result.stderr)
        self.assertIn(f"its log: `sftctl logs {job} --prepare`", result.stderr)
        self.assertIn("preparing", self.sftctl("logs", job, "--prepare").stdout)
        self.assertIn("--prepare", self.sftctl("logs", job).stderr)
        self.assertEqual(self.sftctl("download", job).returncode, NOT_FOUND)

    def test_the_curve_is_followed_through_a_restart_of_the_server(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=1)
        self.wait_for_step(job)
        follower = self.spawn("metrics", job, "--follow")
        self.assertEqual(json.loads(follower.stdout.readline())["step"], 1)
        self.kill("server")
        self.start_server()
        gate.touch()
        out, err = follower.communicate(timeout=DEADLINE_S)
        self.assertEqual(follower.returncode, 0, err)
        self.assertEqual([json.loads(line)["step"] for line in out.splitlines()], [2, 3])

    def test_ctrl_c_on_wait_says_how_to_come_back(self):
        self.start_server()
        self.start_worker()
        job = self.submit("wait", ranks=1)
        self.wait_for_step(job)
        # A call under way shows that it listens for signals; on a busy machine that may still be the one before the watch.
        for _ in range(10):
            waiter = self.spawn("wait", job)
            wait_until("the watch", lambda: len(os.listdir(f"/proc/{waiter.pid}/task")) > 3)
            waiter.send_signal(signal.SIGINT)
            _, err = waiter.communicate(timeout=DEADLINE_S)
            self.assertEqual(waiter.returncode, INTERRUPTED, err)
            if "what was asked for" not in err:
                break
        self.assertIn(f"Come back with `sftctl wait {job}`", err)

    def test_output_that_cannot_be_written_is_no_success(self):
        self.start_server()
        with open("/dev/full", "w", encoding="ascii") as full:
            result = subprocess.run(
                [str(BUILD / "bin/sftctl"), "--server", f"127.0.0.1:{self.port}", "list"],
                stdout=full, stderr=subprocess.PIPE, text=True, timeout=DEADLINE_S, check=False)
        self.assertEqual(result.returncode, INTERNAL)
        self.assertIn("standard output cannot be written to", result.stderr)

    def test_a_development_server_whose_worker_refuses_its_options_ends(self):
        for option, value, told in (("--simulate-gpus", "H100", "H100"),
                                    ("--simulate-gpus", "H100:0", "H100:0"),
                                    ("--models", str(self.dir / "nonexist"), "no such folder")):
            result = subprocess.run(
                [str(BUILD / "bin/sft-server"), "--dev", "--listen", f"127.0.0.1:{self.port}",
                 "--http", "off", option, value],
                capture_output=True, text=True, timeout=DEADLINE_S, check=False)
            self.assertEqual(result.returncode, USAGE, result.stderr)
            self.assertIn("sft-worker: ", result.stderr)
            self.assertIn(told, result.stderr)
            self.assertIn("refused its options", result.stderr)

    def test_a_pipe_as_a_data_set_is_refused_at_once(self):
        self.start_server()
        job = self.write_job(ranks=1)
        os.mkfifo(self.dir / "pipe.jsonl")
        result = self.sftctl("submit", job, "--dataset", self.dir / "pipe.jsonl", timeout=DEADLINE_S)
        self.assertEqual(result.returncode, USAGE)
        self.assertIn("is a pipe, not a regular file", result.stderr)

    def test_rows_of_no_known_form_are_refused_at_submit_or_left_out_as_the_job_says(self):
        self.start_server()
        self.start_worker()
        job = self.write_job(ranks=1)
        with open(self.dir / "job.jsonl", "a", encoding="utf-8") as data:
            data.write('{"foo": 1}\n')
        result = self.sftctl("submit", job)
        self.assertEqual(result.returncode, USAGE, result.stderr)
        self.assertIn("job.jsonl: line 2: none of the row forms", result.stderr)
        result = self.sftctl("submit", job, "--set", "data.on_bad_rows=skip", "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assert_ends(json.loads(result.stdout)["job"], SUCCEEDED)


if __name__ == "__main__":
    run_tests()
