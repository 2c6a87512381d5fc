"""What was written is there and in order: followed logs, metrics, TensorBoard files, backups."""

import json
import shutil
import signal
import struct
import subprocess
import threading

from harness import BUILD, DEADLINE_S, ServiceCase, run_tests, wait_until

SUCCEEDED = 0


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_varint(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(message):
    """The fields of a protobuf message: (number, value)."""
    at = 0
    while at < len(message):
        tag, at = read_varint(message, at)
        kind = tag & 7
        if kind == 0:
            value, at = read_varint(message, at)
        elif kind == 2:
            size, at = read_varint(message, at)
            value, at = message[at:at + size], at + size
        else:
            size = {1: 8, 5: 4}[kind]
            value = struct.unpack("<d" if kind == 1 else "<f", message[at:at + size])[0]
            at += size
        yield tag >> 3, value


def read_tfevents(path):
    """(step, tag, value) of a file of TFRecords; an independent reader of the public format."""
    data = path.read_bytes()
    at = 0
    points = []
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at:at + 8])
        event = data[at + 12:at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(event)
        at += 16 + size
        parts = dict(fields(event))
        for number, value in fields(parts.get(5, b"")):
            scalar = dict(fields(value))
            assert number == 1
            points.append((parts.get(2, 0), scalar[1].decode(), scalar[2]))
    return points


class HistoryTest(ServiceCase):

    def curve(self, job, *arguments):
        return [json.loads(line) for line in
                self.sftctl("metrics", job, "--json", *arguments).stdout.splitlines()]

    def tensorboard(self, job, name="tb"):
        folder = self.dir / name
        result = self.sftctl("metrics", job, "--tensorboard", folder)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        return sorted((folder / job).iterdir())

    def test_a_followed_log_survives_kills_of_the_server_byte_for_byte(self):
        self.start_server()
        self.start_worker()
        job = self.submit("lines 700 10", ranks=1)
        self.wait_for_step(job)
        self.follow(job)
        for _ in range(5):
            wanted = len(self.followed()) + 1500
            wait_until("the follower to go on", lambda: len(self.followed()) > wanted or
                       self.status(job)["state"] == "SUCCEEDED")
            self.kill("server")
            self.start_server()
        self.assert_ends(job, SUCCEEDED)
        self.assert_followed_whole(job, 700)
        self.assertIn("lost the server", (self.dir / "follow.err").read_text())
        # The curve and its TensorBoard files have each step exactly once.
        steps = [point["step"] for point in self.curve(job)]
        self.assertEqual(steps, list(range(1, 701)))
        (file,) = self.tensorboard(job)
        points = read_tfevents(file)
        self.assertEqual([step for step, tag, _ in points if tag == "train/loss"], list(range(1, 701)))
        self.assertEqual({tag for _, tag, _ in points},
                         {"train/loss", "train/lr", "train/grad_norm", "train/tokens_per_second",
                          "train/gpu_memory_gb", "train/mfu", "train/epoch"})

    def test_a_followed_log_survives_kills_of_the_worker_byte_for_byte(self):
        self.start_server()
        self.start_worker()
        job = self.submit("lines 500 10", ranks=1)
        self.wait_for_step(job)
        self.follow(job)
        for _ in range(4):
            wanted = len(self.followed()) + 1500
            wait_until("the follower to go on", lambda: len(self.followed()) > wanted or
                       self.status(job)["state"] == "SUCCEEDED")
            self.kill("node-a")
            self.start_worker()
        self.assert_ends(job, SUCCEEDED)
        self.assert_followed_whole(job, 500)
        self.assertEqual([point["step"] for point in self.curve(job)], list(range(1, 501)))

    def test_a_followed_log_survives_orderly_restarts_of_server_and_worker_byte_for_byte(self):
        self.start_server()
        self.start_worker()
        job = self.submit("lines 600 10", ranks=1)
        self.wait_for_step(job)
        self.follow(job)
        for name, start in (("server", self.start_server), ("node-a", self.start_worker)) * 2:
            wanted = len(self.followed()) + 1500
            wait_until("the follower to go on", lambda: len(self.followed()) > wanted or
                       self.status(job)["state"] == "SUCCEEDED")
            self.processes[name].terminate()
            self.assertEqual(self.processes[name].wait(timeout=DEADLINE_S), 0)
            start()
        self.assert_ends(job, SUCCEEDED)
        self.assert_followed_whole(job, 600)
        self.assertEqual(self.status(job)["attempt"], 1)
        self.assertEqual([point["step"] for point in self.curve(job)], list(range(1, 601)))

    def test_a_rank_that_floods_its_log_while_the_server_is_away_is_kept_small(self):
        self.start_server("--log-limit-mb", 4)
        self.start_worker(options=("--log-limit-mb", 8))
        gate, second_gate = self.dir / "gate", self.dir / "gate2"
        job = self.submit(f"flood 200 {gate}", ranks=1)
        self.wait_for_step(job)
        self.kill("server")
        (attempt,) = (self.dir / "node-a/attempts").iterdir()
        log = attempt / "rank-0.log"
        wait_until("the flood", lambda: log.stat().st_size > 199 << 20)
        wait_until("the log to be cut", lambda: log.stat().st_blocks * 512 < 12 << 20)
        self.start_server("--log-limit-mb", 4)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        stored = sum(path.stat().st_size for path in (self.dir / "server/logs").rglob("rank-0/*"))
        self.assertLess(stored, 5 << 20)
        result = self.sftctl("logs", job)
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertRegex(result.stderr, r"\.\.\. [0-9]{1,3}(,[0-9]{3}){2} bytes were removed by the log's limit")
        self.assertTrue(result.stdout.startswith("rank 0 of 1"), result.stdout[:80])
        self.assertTrue(result.stdout.endswith("rank 0 done\n"), result.stdout[-80:])
        self.assertNotIn("\0", result.stdout)

    def test_a_reader_that_stands_still_blocks_nobody_and_is_told_what_it_missed(self):
        self.start_server("--log-limit-mb", 2)
        self.start_worker()
        gate = self.dir / "gate"
        job = self.submit(f"flood 60 {gate}", ranks=1)
        follower = self.follow(job)
        wait_until("a first byte", lambda: len(self.followed()) > 0)
        follower.send_signal(signal.SIGSTOP)
        segments = lambda: list((self.dir / "server/logs").rglob("rank-0/*.seg"))
        newest = lambda: max((int(path.stem) for path in segments()), default=0)
        wait_until("the writer to go on", lambda: newest() > 57 << 20)
        wait_until("the limit to be kept", lambda: len(segments()) < 20)
        follower.send_signal(signal.SIGCONT)
        gate.touch()
        self.assert_ends(job, SUCCEEDED)
        self.assertEqual(follower.wait(timeout=DEADLINE_S), SUCCEEDED)
        self.assertIn("bytes were removed by the log's limit", (self.dir / "follow.err").read_text())
        self.assertTrue(self.followed().endswith(b"rank 0 done\n"))

    def test_a_backup_made_under_writes_is_restored_and_the_service_goes_on(self):
        self.start_server()
        self.start_worker()
        done = self.submit("ok", ranks=1, name="done")
        self.assert_ends(done, SUCCEEDED)
        gate = self.dir / "gate"
        running = self.submit(f"until {gate}", ranks=1, name="running")
        self.wait_for_step(running)
        stop = threading.Event()

        def write():
            number = 0
            while not stop.is_set():
                number += 1
                self.submit("ok", ranks=8, name=f"load{number % 3}")

        load = threading.Thread(target=write)
        load.start()
        try:
            result = self.sftctl("admin", "backup", "--to", self.dir / "backup", "--json")
        finally:
            stop.set()
            load.join()
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        told = json.loads(result.stdout)
        print("longest step of the backup, ms:", told["longest_step_ms"])
        late = self.submit("ok", ranks=8, name="late")  # not in the backup
        self.kill("server")

        restored = self.dir / "restored"
        result = subprocess.run(
            [BUILD / "bin/sft-server", "--restore", self.dir / "backup", "--data-dir", restored,
             "--files-from", self.dir / "server"], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("missing 0", result.stdout)
        self.start_server(data_dir=restored)
        self.assertEqual(self.status(done)["state"], "SUCCEEDED")
        self.assertEqual(self.sftctl("download", done, "-o", self.dir / "adapter").returncode, 0)
        self.assertEqual(self.sftctl("status", late).returncode, 3)
        gate.touch()
        self.assert_ends(running, SUCCEEDED)
        self.assertEqual([point["step"] for point in self.curve(running)], [1, 2, 3])
        self.assert_ends(self.submit("ok", ranks=1, name="next"), SUCCEEDED)

    def test_a_backup_alone_brings_back_results_logs_and_curves(self):
        self.start_server()
        self.start_worker()
        job = self.submit("ok", ranks=1, name="done")
        self.assert_ends(job, SUCCEEDED)
        log = self.sftctl("logs", job).stdout
        self.assertIn("rank 0 done", log)
        curve = self.curve(job)
        result = self.sftctl("admin", "backup", "--with-blobs", "--to", self.dir / "backup", "--json")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        told = json.loads(result.stdout)
        self.assertEqual((told["left_out"], told["has_blobs"]), ([], True))
        self.kill("server")
        shutil.rmtree(self.dir / "server")
        result = subprocess.run(
            [BUILD / "bin/sft-server", "--restore", self.dir / "backup", "--data-dir", self.dir / "server"],
            capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("missing 0", result.stdout)
        self.start_server()
        self.assertEqual(self.sftctl("logs", job).stdout, log)
        self.assertEqual(self.curve(job), curve)
        self.assertEqual(self.sftctl("download", job, "-o", self.dir / "adapter").returncode, 0)

    def test_a_backup_is_downloaded_and_a_second_restore_is_refused(self):
        self.start_server()
        result = self.sftctl("admin", "backup", "--output", self.dir / "mine")
        self.assertEqual(result.returncode, SUCCEEDED, result.stderr)
        self.assertEqual(sorted(path.name for path in (self.dir / "mine").iterdir()),
                         ["manifest.json", "server.db"])
        self.assertEqual(list((self.dir / "server/backups").iterdir()), [])
        restore = [BUILD / "bin/sft-server", "--restore", self.dir / "mine", "--data-dir"]
        self.assertEqual(subprocess.run([*restore, self.dir / "new"], check=False).returncode, 0)
        again = subprocess.run([*restore, self.dir / "new"], capture_output=True, text=True, check=False)
        self.assertEqual(again.returncode, 1)
        self.assertIn("server.db exists: move it away", again.stderr)
        held = subprocess.run([*restore, self.dir / "server"], capture_output=True, text=True, check=False)
        self.assertIn(f"(pid {self.processes['server'].pid})", held.stderr)
        with open(self.dir / "mine/server.db", "r+b") as database:
            database.seek(5000)
            database.write(b"\xff" * 64)
        torn = subprocess.run([*restore, self.dir / "new2"], capture_output=True, text=True, check=False)
        self.assertEqual(torn.returncode, 1)
        self.assertIn("is not what was written: use another backup", torn.stderr)


if __name__ == "__main__":
    run_tests()
