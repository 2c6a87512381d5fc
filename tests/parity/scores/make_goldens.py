#!/usr/bin/env python3
"""What rouge-score, sacrebleu and SQuAD's script make of 1,000 pairs of answer and reference: the goldens
of common/grade.

    make_goldens.py [--check]    writes pairs.jsonl beside it; --check compares it with what is there

A line is [answer, reference, [rouge1, rouge2, rougeL, rougeLsum], counts of BLEU, chrF, exact match, F1];
the last has the corpus scores of all: [BLEU, chrF]. Pairs are drawn from a seed.
"""

import collections
import json
import pathlib
import random
import re
import string
import sys

import rouge_score.rouge_scorer
import sacrebleu.metrics

FILE = pathlib.Path(__file__).with_name("pairs.jsonl")
PAIRS = 1000
ROUGE = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
WORDS = """the a an cat dog sat on mat The A quick brown fox jumps over lazy is was are it's don't well-known
1,234.5 3.50 42 2026-11-26 50% $5 x=1 (hi) [1] {b} a/b e.g. U.S. end. what? yes! "quoted" 'single' foo_bar tab\tword
caf\u00e9 na\u00efve \u00dcber stra\u00dfe \u0130stanbul \u212aelvin \u041f\u0440\u0438\u0432\u0435\u0442 \u0394\u03b5\u03bb\u03c4\u03b1
\u4e2d\u6587 \u56de\u7b54 \u65e5\u672c\u8a9e \U0001f600 \u201ccurly\u201d \u2014the\u2014 &amp; &lt;b&gt; &quot;q&quot; <skipped> a\u00a0b 7-8 9-
1.5. .5 ,x, -- ...""".split(" ")
WORDS = [word for word in " ".join(WORDS).replace("\n", " ").split(" ") if word]
FIXED = [("", ""), ("", "a reference"), ("an answer", ""), (" \n\t", "."), ("same", "same"), ("the", "a"),
         ("The cat sat on the mat.", "the cat was sitting on a mat"),
         ("the cat sat on the mat", "the cat is on the mat"), ("a\nb c\nd", "b c\na"),
         ("Le caf\u00e9 co\u00fbte 3,50 \u20ac", "le cafe coute 3.50"),
         ("\u4e2d\u6587 \u56de\u7b54", "\u4e2d\u6587 \u56de\u7b54"), ("well-\nknown", "wellknown"),
         ("\n\nfirst\n\nlast\n", "first last"), ("x" * 300, "x" * 200), ("a b a b a b", "b a b a")]


def draw(rng):
    reference = [rng.choice(WORDS) for _ in range(rng.randint(1, 14))]
    answer = []
    for word in reference:
        kind = rng.random()
        if kind < 0.55:
            answer.append(word)
        elif kind < 0.75:
            answer.append(rng.choice(WORDS))
        elif kind < 0.85:
            answer += [word, rng.choice(WORDS)]
    if rng.random() < 0.2:
        rng.shuffle(answer)
    gap = ["\n" if rng.random() < 0.15 else "  " if rng.random() < 0.05 else " " for _ in range(64)]
    join = lambda words: "".join(word + gap[i] for i, word in enumerate(words)).rstrip(" ")
    return join(answer), join(reference)


def normalized(text):
    """As evaluate-v1.1.py of SQuAD."""
    text = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def squad_f1(answer, reference):
    given, wanted = normalized(answer).split(), normalized(reference).split()
    if not given or not wanted:
        return float(given == wanted)
    same = sum((collections.Counter(given) & collections.Counter(wanted)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(given), same / len(wanted)
    return 2 * precision * recall / (precision + recall)


def make():
    rng = random.Random(1)
    pairs = FIXED + [draw(rng) for _ in range(PAIRS - len(FIXED))]
    rouge = rouge_score.rouge_scorer.RougeScorer(ROUGE)
    bleu, chrf = sacrebleu.metrics.BLEU(), sacrebleu.metrics.CHRF()
    lines = []
    for answer, reference in pairs:
        scores = rouge.score(reference, answer)
        counts = bleu._extract_corpus_statistics([answer], [[reference]])[0]
        lines.append([answer, reference, [round(scores[kind].fmeasure, 10) for kind in ROUGE],
                      [int(count) for count in counts], round(chrf.sentence_score(answer, [reference]).score, 10),
                      int(normalized(answer) == normalized(reference)), round(squad_f1(answer, reference), 10)])
    answers, references = map(list, zip(*pairs))
    lines.append([bleu.corpus_score(answers, [references]).score, chrf.corpus_score(answers, [references]).score])
    print(bleu.get_signature(), chrf.get_signature())
    return "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)


def main():
    text = make()
    if sys.argv[1:] == ["--check"]:
        if FILE.read_text() != text:
            sys.exit(f"{FILE} is not what the reference packages make")
        print(f"{FILE.name}: {PAIRS} pairs as kept")
    else:
        FILE.write_text(text)


main()
