"""What the benchmark trains: rows of the demo's text, each exactly as long as the sequence."""

import json
import pathlib
import random

DEMO = pathlib.Path(__file__).resolve().parents[2] / "demo"


def demo_sentences():
    with open(DEMO / "train.jsonl", encoding="utf-8") as file:
        rows = [json.loads(line)["messages"] for line in file if line.strip()]
    text = ["".join(f"{turn['role']}: {turn['content']}\n" for turn in turns) for turns in rows]
    # One token a byte: rows are cut at any byte, so all are ASCII.
    return [piece for piece in text if piece.isascii()]


def write_rows(path, count, seq):
    """`count` rows of seq - 1 characters in the form {"text": ...}; the end token makes seq tokens for a
    model of make_random_model.py, whose tokenizer has one token a byte."""
    source = random.Random(count * 1000003 + seq)
    sentences = demo_sentences()
    with open(path, "w", encoding="ascii") as file:
        for _ in range(count):
            pieces, length = [], 0
            while length < seq:
                pieces.append(source.choice(sentences))
                length += len(pieces[-1])
            file.write(json.dumps({"text": "".join(pieces)[:seq - 1]}) + "\n")
