"""sft-rank of a build: started by hand it finds torch, and a torch that the worker names comes first."""

import os
import pathlib
import subprocess
import tempfile
import unittest

RANK = pathlib.Path(os.environ["SFT_BUILD_DIR"]) / "bin/sft-rank"


def version(**env):
    return subprocess.run([RANK, "--version"], env=env, capture_output=True, text=True, check=False, timeout=600)


class RankLibrariesTest(unittest.TestCase):

    def test_it_starts_without_an_environment(self):
        ran = version()
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertTrue(ran.stdout.startswith("sft-rank "))

    def test_the_library_path_wins(self):
        with tempfile.TemporaryDirectory(prefix="sft-torch-") as folder:
            (pathlib.Path(folder) / "libtorch_cpu.so").write_text("another torch")
            ran = version(LD_LIBRARY_PATH=folder)
        self.assertNotEqual(ran.returncode, 0)
        self.assertIn(f"{folder}/libtorch_cpu.so", ran.stderr)


if __name__ == "__main__":
    unittest.main()
