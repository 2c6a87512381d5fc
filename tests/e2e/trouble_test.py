"""What the service says and leaves behind when a disk is full or versions do not fit."""

import json
import subprocess

from harness import BUILD, DEADLINE_S, ServiceCase, free_port, run_tests, wait_until

SUCCEEDED, REFUSED, INFRASTRUCTURE_FAILURE = 0, 5, 11
OTHER_VERSION = BUILD / "tests/sft-other-version"


class TroubleTest(ServiceCase):

    def assert_slots_free(self):
        nodes = json.loads(self.sftctl("nodes", "--json").stdout)
        self.assertTrue(all(slot["job"] == "" for node in nodes for slot in node["slots"]), nodes)

    def assert_refused_for_the_disk(self, result):
        self.assertEqual(result.returncode, REFUSED, result.stderr)
        self.assertIn("full", result.stderr)
        # Of the write that failed, or of the look at the disk, where that came first.
        self.assertRegex(result.stderr, "free space|stay free for what runs")

    def test_a_full_disk_of_the_server_is_told_and_leaves_nothing_half_written(self):
        disk = self.small_disk("server", 16)
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        running = self.submit(f"until {gate}", ranks=1, name="running")
        self.wait_for_step(running)
        wait_until("the run to be stored", lambda: self.status(running)["state"] == "RUNNING")

        # An upload that does not fit.
        large = self.write_job(ranks=1, name="large", rows=150_000)
        ballast = self.fill(disk, leave=1 << 20)
        self.assert_refused_for_the_disk(self.sftctl("submit", large))
        self.assertEqual([str(path) for path in disk.rglob("*.part")], [])
        ballast.unlink()

        # Nothing fits any more, not even a line of the database.
        ballast = self.fill(disk)
        small = self.write_job(ranks=1, name="small")
        self.assert_refused_for_the_disk(self.sftctl("submit", small))
        self.assertEqual(self.status(running)["state"], "RUNNING")
        self.assertEqual([job["job"] for job in json.loads(self.sftctl("list", "--json").stdout)], [running])
        gate.touch()
        wait_until("the ranks to end", lambda: not self.ranks())
        self.assertIsNone(self.processes["server"].poll(), "the server goes on")

        ballast.unlink()
        self.assert_ends(running, SUCCEEDED)
        metrics = [json.loads(line) for line in self.sftctl("metrics", running, "--json").stdout.splitlines()]
        self.assertEqual([point["step"] for point in metrics], [1, 2, 3])
        for job in (large, small):
            result = self.sftctl("submit", job, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_ends(json.loads(result.stdout)["job"], SUCCEEDED)

    def test_a_full_disk_of_a_worker_fails_the_job_by_name_and_frees_its_gpus(self):
        disk = self.small_disk("node-a", 16)
        self.start_server()
        # Without its mark the node takes the job.
        self.start_worker(options=("--disk-full", "off"))
        ballast = self.fill(disk)
        job = self.submit(ranks=2)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        told = json.dumps(self.status(job))
        self.assertIn("No space left on device", told)
        self.assertIn("free space on node node-a", told)
        self.assert_slots_free()
        ballast.unlink()
        self.assert_ends(self.submit(ranks=2, name="next"), SUCCEEDED)

    def test_a_data_set_that_does_not_fit_on_a_worker_leaves_no_part_of_it(self):
        disk = self.small_disk("node-a", 16)
        self.start_server()
        self.start_worker()
        ballast = self.fill(disk, leave=3 << 20)
        job = self.submit(ranks=1, rows=250_000)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        self.assertIn("free space on node node-a", json.dumps(self.status(job)))
        self.assertEqual([str(path) for path in disk.rglob("*.part")], [])
        self.assert_slots_free()
        ballast.unlink()
        self.assert_ends(self.submit(ranks=1, rows=250_000, name="next"), SUCCEEDED)

    def test_a_disk_that_fills_up_during_a_job_stops_it_by_name_until_there_is_room(self):
        disk = self.small_disk("node-a", 16)
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"until {gate}", ranks=2)
        self.wait_for_step(job)
        self.wait_for_ranks(2)
        ballast = self.fill(disk)
        gate.touch()
        wait_until("it to wait for room", lambda: "nearly out of disk" in self.status(job)["reason"])
        told = json.dumps(self.status(job))
        self.assertIn("disk_full", told)
        self.assertIn("free space on node node-a", told)
        self.assertEqual(self.ranks(), [])
        wait_until("the shim to end", lambda: not self.shims())
        self.assert_slots_free()
        ballast.unlink()
        self.assert_ends(job, SUCCEEDED)

    def test_a_node_whose_rank_program_does_not_start_gets_nothing_until_it_does(self):
        broken = self.dir / "broken"
        broken.touch()
        program = self.dir / "sft-rank"
        program.write_text(f"""#!/bin/sh
if [ "$1" = --version ] && [ -e {broken} ]; then echo out of luck >&2; kill -9 $$; fi
exec {BUILD / "tests/sft-fake-rank"} "$@"
""")
        program.chmod(0o755)
        self.start_server()
        self.start_worker(engine=True, options=("--rank-binary", program))
        told = f"`{program} --version` was killed by signal 9 (Killed): out of luck"
        wait_until("the node to say it", lambda: told in self.sftctl("nodes", "--json").stdout)
        job = self.submit(ranks=1)
        wait_until("the job to say it", lambda: told in self.status(job)["reason"])
        self.assertEqual(self.status(job)["state"], "PENDING")
        broken.unlink()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(self.status(job)["attempt"], 1)

    def test_a_data_set_that_is_damaged_on_the_server_is_told_and_can_be_sent_again(self):
        self.start_server()
        self.start_worker()
        gate = self.dir / "gate"
        before = self.submit(f"until {gate}", ranks=8, name="before")
        self.wait_for_step(before)
        kept = set(self.dir.rglob("blobs/??/*"))
        path = self.write_job(ranks=1, rows=2, name="job")
        job = json.loads(self.sftctl("submit", path, "--json").stdout)["job"]
        (blob,) = set(self.dir.rglob("blobs/??/*")) - kept
        content = blob.read_bytes()
        blob.write_bytes(bytes([content[0] ^ 1]) + content[1:])
        gate.touch()
        self.assert_ends(before, SUCCEEDED)
        self.assert_ends(job, INFRASTRUCTURE_FAILURE)
        verdict = self.status(job)["verdict"]
        self.assertEqual(verdict["code"], "dataset_lost")
        self.assertIn("damaged on the server's disk", verdict["message"])
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assert_slots_free()
        again = json.loads(self.sftctl("submit", path, "--json").stdout)["job"]
        self.assert_ends(again, SUCCEEDED)
        self.assertEqual(blob.read_bytes(), content)

    def start_other_server(self, protocol):
        self.port = free_port()
        self.start("other-server", OTHER_VERSION, "serve", self.port, protocol)
        wait_until("the other server", lambda: "listening" in (self.dir / "other-server.log").read_text())

    def test_a_client_refuses_a_server_of_another_version_and_says_which_to_upgrade(self):
        self.start_other_server(protocol=4)  # serves 3 and 4
        result = self.sftctl("nodes")
        self.assertEqual(result.returncode, REFUSED)
        self.assertIn("the server (9.9.9) serves protocols 3 to 4, this program", result.stderr)
        self.assertIn("speaks 2: upgrade this program", result.stderr)

    def test_a_client_newer_than_its_server_says_to_upgrade_the_server(self):
        self.start_other_server(protocol=0)
        result = self.sftctl("submit", self.write_job())
        self.assertEqual(result.returncode, REFUSED)
        self.assertIn("speaks 2: upgrade the server", result.stderr)

    def test_a_worker_logs_why_a_server_of_another_version_refuses_it(self):
        self.start_other_server(protocol=4)
        self.start("node-a", BUILD / "bin/sft-worker", "--dev", "--server", f"127.0.0.1:{self.port}",
                   "--data-dir", self.dir / "node-a", "--node", "node-a", "--simulate-gpus", "H100:1",
                   "--rank-binary", BUILD / "tests/sft-fake-rank")
        log = self.dir / "node-a.log"
        wait_until("the refusal", lambda: "the server refused this worker" in log.read_text())
        self.assertIn("speaks protocol 2, this server 9.9.9 serves 3 to 4: upgrade worker node-a",
                      log.read_text())
        self.assertIsNone(self.processes["node-a"].poll(), "it tries again: the server may be upgraded")

    def test_a_server_refuses_a_worker_of_another_version(self):
        self.start_server()
        result = subprocess.run([OTHER_VERSION, "register", str(self.port), "9"], capture_output=True, text=True,
                                timeout=DEADLINE_S, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("worker stranger 9.9.9 speaks protocol 9, this server", result.stdout)
        self.assertIn("serves 1 to 2: upgrade the server first", result.stdout)
        self.assertEqual(json.loads(self.sftctl("nodes", "--json").stdout), [])


if __name__ == "__main__":
    run_tests()
