"""deploy/gpu/bench: rows of a chat data set's lengths, and what peers make of them."""

import itertools
import pathlib
import statistics
import sys
import tempfile
import types
import unittest

SOURCE = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(SOURCE / "deploy/gpu/bench"))

import chat_rows
import data
import ours
import peer_common
import peers
import rows as table

SEQ = 512


def some_rows(tokens=40000):
    """Rows of tokens that tell them apart."""
    lengths = chat_rows.lengths_for(tokens, SEQ, 7)
    return [[index + 1] * length for index, length in enumerate(lengths)]


class LengthsTest(unittest.TestCase):

    def test_median_and_mean_are_those_that_the_module_names(self):
        lengths = list(itertools.islice(chat_rows.lengths(1 << 20, 1), 50000))
        self.assertAlmostEqual(statistics.median(lengths) / chat_rows.MEDIAN, 1, delta=0.03)
        self.assertAlmostEqual(statistics.mean(lengths) / chat_rows.MEAN, 1, delta=0.03)

    def test_a_seed_gives_its_lengths_which_end_at_the_sequence(self):
        first, again, other = (chat_rows.lengths_for(10**6, 4096, seed) for seed in (1, 1, 2))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        self.assertGreaterEqual(sum(first), 10**6 * chat_rows.SPARE)
        self.assertEqual((min(first), max(first)), (chat_rows.SHORTEST, 4096))

    def test_the_file_has_rows_of_these_lengths(self):
        lengths = chat_rows.lengths_for(20000, SEQ, 3)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "rows.jsonl"
            data.write_rows(path, lengths, 3)
            self.assertEqual([len(row) for row in peer_common.load_rows(path, SEQ, full=False)], lengths)
            with self.assertRaisesRegex(SystemExit, "a row of"):
                peer_common.load_rows(path, SEQ)


class LayoutsTest(unittest.TestCase):

    def documents(self, layout, batch, count):
        """(row, labels) of all documents of `count` micro-batches, with their loss tokens counted apart."""
        found, counted = [], 0
        rows = some_rows()
        for micro in itertools.islice(chat_rows.micro_batches(layout, rows, SEQ, batch, pad=0), count):
            counted += micro["loss_tokens"]
            self.assertEqual(sum(label != chat_rows.NO_LOSS for line in micro["labels"] for label in line),
                             micro["loss_tokens"])
            if layout == "packed":
                ids, labels, places = micro["ids"][0], micro["labels"][0], micro["positions"][0]
                self.assertEqual(sum(micro["lengths"]), len(ids))
                for length in micro["lengths"]:
                    self.assertEqual(places[:length], list(range(length)))
                    found.append((ids[:length], labels[:length]))
                    ids, labels, places = ids[length:], labels[length:], places[length:]
                continue
            self.assertEqual(len({len(line) for line in micro["ids"] + micro["labels"]}), 1)
            for ids, labels, seen in zip(micro["ids"], micro["labels"], micro["attention"]):
                length = sum(seen)
                padding = len(ids) - length
                self.assertEqual(ids[length:], [0] * padding)
                self.assertEqual(labels[length:], [chat_rows.NO_LOSS] * padding)
                found.append((ids[:length], labels[:length]))
        return rows, found, counted

    def test_each_row_is_whole_and_all_but_its_first_token_carry_loss(self):
        for layout, batch in (("packed", 2), ("padded", 4), ("grouped", 4)):
            rows, found, counted = self.documents(layout, batch, 8)
            self.assertGreater(len(found), 20, layout)
            for ids, labels in found:
                self.assertIn(ids, rows, layout)
                self.assertEqual(labels, [chat_rows.NO_LOSS] + ids[1:], layout)
            self.assertEqual(len({ids[0] for ids, _ in found}), len(found), "no row twice")
            self.assertEqual(counted, sum(len(ids) - 1 for ids, _ in found))

    def test_bins_hold_every_row_once_and_are_nearly_full(self):
        rows = some_rows(400000)
        bins = chat_rows.bins(rows, SEQ)
        self.assertEqual(sorted(row[0] for each in bins for row in each), [row[0] for row in rows])
        self.assertLessEqual(max(sum(map(len, each)) for each in bins), SEQ)
        self.assertGreater(sum(map(len, rows)) / len(bins) / SEQ, 0.97)

    def test_rows_of_like_lengths_meet_and_the_longest_comes_first(self):
        rows = some_rows(400000)
        order = chat_rows.grouped(rows, 8)
        self.assertCountEqual([row[0] for row in order], [row[0] for row in rows])
        self.assertEqual(len(order[0]), max(map(len, rows)))

        def padding(layout):
            micros = itertools.islice(chat_rows.micro_batches(layout, rows, SEQ, 8, 0), len(rows) // 8)
            return statistics.mean(sum(map(sum, micro["attention"])) / 8 / len(micro["ids"][0]) for micro in micros)

        self.assertGreater(padding("grouped"), 0.9)
        self.assertLess(padding("padded"), 0.75)


class RunsTest(unittest.TestCase):
    ROW = "qlora-8b-chat-lengths"
    PLAN = {"gpus": 1, "steps": 5, "tokens": 32768, "rows": "rows.jsonl", "row_count": 400, "row_tokens": 200000}

    def row(self, name=ROW):
        return next(row for row in table.ROWS if row.name == name)

    def command(self, peer, name=ROW):
        context = types.SimpleNamespace(model_dir=lambda name: name)
        words = [str(word) for word in peers.command(self.row(name), peer, context, self.PLAN)]
        return dict(zip(words[2::2], words[3::2]))

    def test_a_step_of_a_peer_takes_the_tokens_of_a_step_of_ours(self):
        padded = self.command(table.unsloth_chat("padded", 8, True))
        # Rows of 500 tokens on average.
        self.assertEqual((padded["--layout"], padded["--batch"], padded["--accumulation"]), ("padded", "8", "8"))
        packed = self.command(table.unsloth_chat("packed", 2, False))
        self.assertEqual((packed["--layout"], packed["--accumulation"]), ("packed", "4"))
        full = table.unsloth(2, False)
        self.assertNotIn("--layout", self.command(full, "qlora-8b-seq2048"))

    def test_ours_packs_and_its_rate_is_that_of_tokens_that_carry_loss(self):
        job = ours.make_job(self.row(), self.row().ours[0], "H100", self.PLAN, {})
        self.assertTrue(job["data"]["packing"])
        steps = [{"step": step, "seconds": seconds, "tokens": tokens}
                 for step, seconds, tokens in ((1, 100, 1), (2, 100, 1), (3, 2.0, 30000), (4, 1.0, 20000))]
        ours.count_loss_tokens(steps, self.PLAN)
        # One token in 500 carries none.
        self.assertEqual([step["loss_tokens"] for step in steps[2:]], [29940, 19960])
        self.assertAlmostEqual(ours.loss_rate(steps), 49900 / 3)

    def test_steps_that_a_profile_slowed_do_not_count(self):
        steps = [{"step": step} for step in range(1, 8)]
        self.assertEqual([step["step"] for step in ours.warm_steps(steps)], [3, 4, 5, 6, 7])
        self.assertEqual([step["step"] for step in ours.warm_steps(steps, profiled=True)], [3, 6, 7])
        self.assertEqual(ours.warm_steps(steps[:2]), steps[1:2])

    def test_rows_of_chat_lengths_compare_with_each_layout(self):
        for row in table.ROWS:
            self.assertEqual({peer.layout for peer in row.peers} - {"full"},
                             {"packed", "padded", "grouped"} if row.chat_lengths and row.peers else set(), row.name)

    def test_names_of_settings_are_unique_in_a_row(self):
        for row in table.ROWS:
            names = [setting.name for setting in (*row.ours, *row.peers)]
            self.assertEqual(len(names), len(set(names)), row.name)


class ExpertsTest(unittest.TestCase):

    def test_peers_train_the_adapters_and_the_base_of_the_row(self):
        context = types.SimpleNamespace(model_dir=lambda name: name)
        plan = {"tokens": 16384, "gpus": 1, "rows": "rows.jsonl", "steps": 6}
        rows = [row for row in table.ROWS if any(peer.program == "moe" for peer in row.peers)]
        self.assertGreaterEqual(len(rows), 5)
        for row in rows:
            on_experts = "mlp.experts.down_proj" in row.ours[0].job[table.KEY_TARGETS]
            for peer in row.peers:
                command = [str(word) for word in peers.command(row, peer, context, plan)]
                self.assertTrue(command[1].endswith("peer_moe.py"))
                said = dict(zip(command[2::2], command[3::2]))
                self.assertEqual(said["--adapters"], "experts" if on_experts else "attention", peer.name)
                self.assertEqual(int(said["--batch"]) * int(said["--accumulation"]) * row.seq, plan["tokens"])
                if row.mode == "lora":
                    self.assertEqual(said["--base"], "bf16", peer.name)


if __name__ == "__main__":
    unittest.main()
