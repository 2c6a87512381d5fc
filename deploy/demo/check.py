#!/usr/bin/env python3
"""Checks of the demo: its data before training, its result after.

    check.py data                                       the rows and the questions fit each other
    check.py prompts FILE                               writes the questions, one a line
    check.py result --before F --after F --metrics F    what training has changed

The answers are the lines of `sft-rank generate --prompts FILE --json`, the metrics those of
`sftctl metrics JOB --json`. The exit status is 1 if a check fails; everything wrong is printed.
"""

import argparse
import json
import pathlib
import re
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
# What the demo promises.
TRAINING_ROWS_MIN = 150
SHARED_WORDS_MAX = 5  # a question shares no longer run of words with a training row
ANSWERED_MIN = 3
VALIDATION_FALL_MIN = 0.15


def read_json_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def words(text):
    return re.findall(r"[\w./=-]+", text.lower())


def runs(text, length):
    found = words(text)
    return {tuple(found[i : i + length]) for i in range(len(found) - length + 1)}


def row_problems(name, rows):
    for number, row in enumerate(rows, 1):
        roles = [message["role"] for message in row["messages"]]
        if roles != ["user", "assistant"] or not all(m["content"] for m in row["messages"]):
            yield f"{name}:{number}: expected one question and one answer, both with text"


def question_problems(questions, training):
    length = SHARED_WORDS_MAX + 1
    trained = set().union(*(runs(m["content"], length) for row in training for m in row["messages"]))
    for item in questions:
        question, expected = item["question"], item["expected"]
        for run in sorted(runs(question, length) & trained):
            yield f"question {question!r} shares {' '.join(run)!r} with a training row"
        if len(words(expected)) < 2:
            yield f"question {question!r}: the expected phrase {expected!r} has fewer than two words"
        if expected.lower() in question.lower():
            yield f"question {question!r} holds the expected phrase {expected!r}"


def check_data():
    training = read_json_lines(FOLDER / "train.jsonl")
    validation = read_json_lines(FOLDER / "validation.jsonl")
    questions = json.loads((FOLDER / "questions.json").read_text())
    problems = list(row_problems("train.jsonl", training))
    problems += row_problems("validation.jsonl", validation)
    problems += question_problems(questions, training)
    if len(training) < TRAINING_ROWS_MIN:
        problems.append(f"train.jsonl has {len(training)} rows, fewer than {TRAINING_ROWS_MIN}")
    asked = {row["messages"][0]["content"] for row in training}
    problems += [f"validation.jsonl repeats the training question {row['messages'][0]['content']!r}"
                 for row in validation if row["messages"][0]["content"] in asked]
    return problems


def write_prompts(path):
    questions = json.loads((FOLDER / "questions.json").read_text())
    path.write_text("".join(item["question"] + "\n" for item in questions))
    return []


def answers(path, questions):
    found = [line["answer"].strip().replace("\n", " ") for line in read_json_lines(path)]
    if len(found) != len(questions):
        raise ValueError(f"{path} holds {len(found)} answers to {len(questions)} questions")
    return found


def show_answers(before, after):
    """Prints every question with both answers; the number that only training has taught."""
    questions = json.loads((FOLDER / "questions.json").read_text())
    taught = 0
    for item, old, new in zip(questions, answers(before, questions), answers(after, questions)):
        expected = item["expected"].lower()
        learnt = expected in new.lower() and expected not in old.lower()
        taught += learnt
        print(f"\n  {item['question']}")
        print(f"    before: {old}")
        print(f"    after:  {new}   {'✓' if learnt else '✗ expected ' + repr(item['expected'])}")
    print(f"\n{taught} of {len(questions)} questions are answered only after training")
    return taught


def show_metrics(path):
    """Prints the curve's ends; by how much of itself the validation loss fell."""
    points = read_json_lines(path)
    losses = [point["val.loss"] for point in points if "val.loss" in point]
    if len(losses) < 2:
        raise ValueError(f"{path} holds {len(losses)} validation points; two are needed")
    fall = 1 - losses[-1] / losses[0]
    print(f"validation loss {losses[0]:.3f} -> {losses[-1]:.3f} ({fall:.0%} lower), "
          f"{len(points) - len(losses)} steps recorded")
    return fall


def check_result(before, after, metrics):
    taught = show_answers(before, after)
    fall = show_metrics(metrics)
    problems = []
    if taught < ANSWERED_MIN:
        problems.append(f"only {taught} questions are answered after training alone, "
                        f"expected {ANSWERED_MIN} or more")
    if not fall >= VALIDATION_FALL_MIN:
        problems.append(f"the validation loss fell by {fall:.1%}, expected {VALIDATION_FALL_MIN:.0%} "
                        "or more")
    return problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("data")
    commands.add_parser("prompts").add_argument("file", type=pathlib.Path)
    result = commands.add_parser("result")
    for name in ("before", "after", "metrics"):
        result.add_argument(f"--{name}", type=pathlib.Path, required=True)
    args = parser.parse_args()
    try:
        if args.command == "data":
            problems = check_data()
        elif args.command == "prompts":
            problems = write_prompts(args.file)
        else:
            problems = check_result(args.before, args.after, args.metrics)
    except (OSError, ValueError, KeyError) as error:
        problems = [f"{type(error).__name__}: {error}"]
    for problem in problems:
        print(f"check: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
