"""What the benchmark trains: rows of the demo's text, each of a given number of tokens."""

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


def write_rows(path, lengths, seed):
    """A row for each of `lengths`, in tokens, in the form {"text": ...}: one character less, since the tokenizer of
    make_random_model.py has one token a byte, and the end token is one more."""
    source = random.Random(seed)
    sentences = demo_sentences()
    with open(path, "w", encoding="ascii") as file:
        for tokens in lengths:
            pieces, length = [], 0
            while length < tokens:
                pieces.append(source.choice(sentences))
                length += len(pieces[-1])
            file.write(json.dumps({"text": "".join(pieces)[:tokens - 1]}) + "\n")
