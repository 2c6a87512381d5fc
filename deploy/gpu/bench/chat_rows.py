"""Rows as long as those of a chat data set, and the micro-batches that a peer makes of them. Plain Python."""

import itertools
import math
import random

# Lengths are drawn log-normal. The mean is that of a first question and answer of ShareGPT, 161 + 338 tokens (Kwon
# et al., "Efficient memory management for large language model serving with PagedAttention", 2023, figure 11); with
# the median below, the mean of a log-normal, median * exp(sigma^2 / 2), gives its sigma.
MEDIAN = 250
MEAN = 161 + 338
SIGMA = math.sqrt(2 * math.log(MEAN / MEDIAN))
SHORTEST = 16
SPARE = 1.15  # rows written, relative to what the steps take: packed rows are not quite full

NO_LOSS = -100
MEGABATCH = 50  # micro-batches that are sorted together, as transformers' group_by_length has it


def lengths(seq, seed):
    """Row lengths in tokens without end, the end token included; longer rows are cut at `seq`."""
    source = random.Random(seed)
    while True:
        yield min(seq, max(SHORTEST, round(source.lognormvariate(math.log(MEDIAN), SIGMA))))


def lengths_for(tokens, seq, seed):
    """Lengths of the rows that steps of `tokens` in all need."""
    result, left = [], tokens * SPARE
    for length in lengths(seq, seed):
        if left <= 0:
            return result
        result.append(length)
        left -= length


def loss_tokens(rows):
    """The first token of a row is predicted by none."""
    return sum(len(row) - 1 for row in rows)


def bins(rows, seq):
    """Rows that share a sequence of at most `seq` tokens, the longest first, each where it leaves the least
    room; in a drawn order."""
    open_bins = [[] for _ in range(seq + 1)]  # by room left
    result = []
    for row in sorted(rows, key=len, reverse=True):
        room = next((room for room in range(len(row), seq) if open_bins[room]), seq)
        chosen = open_bins[room].pop() if open_bins[room] else []
        if not chosen:
            result.append(chosen)
        chosen.append(row)
        open_bins[room - len(row)].append(chosen)
    random.Random(len(rows)).shuffle(result)
    return result


def packed(rows, seq, batch):
    """Micro-batches without end of `batch` full sequences: rows one behind the other, with their own positions."""
    endless = itertools.cycle(bins(rows, seq))
    while True:
        documents = [row for _ in range(batch) for row in next(endless)]
        yield {
            "ids": [list(itertools.chain.from_iterable(documents))],
            "labels": [[label for row in documents for label in (NO_LOSS, *row[1:])]],
            "positions": [[place for row in documents for place in range(len(row))]],
            "lengths": [len(row) for row in documents],
            "loss_tokens": loss_tokens(documents),
        }


def grouped(rows, batch):
    """The rows in drawn order, of which each MEGABATCH micro-batches are sorted by length, the longest row of all
    first: what does not fit fails at once."""
    order = rows[:]
    random.Random(len(rows)).shuffle(order)
    size = MEGABATCH * batch
    parts = [sorted(order[first:first + size], key=len, reverse=True) for first in range(0, len(order), size)]
    longest = max(range(len(parts)), key=lambda part: len(parts[part][0]))
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return list(itertools.chain.from_iterable(parts))


def padded(rows, batch, pad):
    """Micro-batches without end of `batch` rows in the order given, padded on the right to the longest."""
    endless = itertools.cycle(rows)
    while True:
        documents = [next(endless) for _ in range(batch)]
        width = max(map(len, documents))
        yield {
            "ids": [row + [pad] * (width - len(row)) for row in documents],
            "labels": [[NO_LOSS, *row[1:]] + [NO_LOSS] * (width - len(row)) for row in documents],
            "attention": [[1] * len(row) + [0] * (width - len(row)) for row in documents],
            "loss_tokens": loss_tokens(documents),
        }


def micro_batches(layout, rows, seq, batch, pad):
    """`layout`: packed, padded, or grouped (padded beside rows of like length)."""
    if layout == "packed":
        return packed(rows, seq, batch)
    return padded(grouped(rows, batch) if layout == "grouped" else rows, batch, pad)
