#!/usr/bin/env python3
"""Holds the rows that sft-rank prepares against what TRL makes of the same files through `datasets`: token ids, and which
of them are learnt, of each form that both accept, in JSON Lines, Parquet and Arrow, under the chat templates that TRL
ships. Where they differ on purpose the case says so by a name of DIFFERENCES, and fails where there is no such difference.

    forms.py --bin FOLDER [--only CASE...]

Needs deploy/requirements/parity.txt.
"""

import argparse
import array
import copy
import datetime
import itertools
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
from unittest import mock

import datasets
import tokenizers
import transformers
import trl
from transformers.utils import chat_template_utils

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"
LIMIT_S = 600
KINDS = ("jsonl", "parquet", "arrow")
DAY = datetime.datetime(2026, 11, 26)
# Marks of templates, each a token of its own.
MARKS = re.compile(r"<\|[A-Za-z_]+\|>|<｜[^｜]+｜>|<(?:start|end)_of_turn>|\[gMASK\]|<sop>")
END = {"qwen3": "<|im_end|>", "qwen2_5": "<|im_end|>", "llama3": "<|eot_id|>", "gptoss": "<|return|>", "gemma": "<end_of_turn>",
       "glm4moe": "<|endoftext|>", "phi3": "<|end|>", "deepseekv3": "<｜end▁of▁sentence｜>"}


def user(content):
    return {"role": "user", "content": content}


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def system(content):
    return {"role": "system", "content": content}


CHATS = [
    [user("What is 2+2?"), said("Four.")],
    [user("Größe 🎉?"), said("Ja 🎉"), user("再见"), said("再见 e\u0301")],
    [user("one"), said("one"), user("one"), said("one"), user("two"), said("one")],
    [user("  blanks\n"), said("a\n\nb")],
]
WITH_SYSTEM = [[system("Be kind."), *CHATS[0]], [system("<b> & \"c\""), *CHATS[2]]]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
STOCK = {"type": "function", "function": {"name": "stock", "description": "A price", "parameters": {
    "type": "object", "properties": {"ticker": {"type": "string"}, "days": {"type": "integer"}}, "required": ["ticker"]}}}


def asks(name, **arguments):
    return said("", tool_calls=[{"type": "function", "function": {"name": name, "arguments": arguments}}])


TOOL_ROWS = [
    {"messages": [user("Weather?"), asks("weather", city="Bern"), {"role": "tool", "content": "sun"}, said("Sunny.")],
     "tools": [WEATHER]},
    {"messages": [user("Price?"), asks("stock", ticker="X", days=2), {"role": "tool", "content": "5"}, said("Five.")],
     "tools": [STOCK]},
]
# In JSON a null is meant.
MEANT_NULLS = [{"messages": [user("Price?"), asks("stock", ticker="X", days=None), {"role": "tool", "content": "5"}, said("Five.")],
                "tools": [STOCK]}]
SHAREGPT = [{"conversations": [{"from": {"user": "human", "assistant": "gpt"}.get(message["role"], "system"),
                                "value": message["content"]} for message in messages]}
            for messages in [*CHATS, *WITH_SYSTEM]]
ALPACA = [{"instruction": "Add the numbers.", "input": "2 and 2", "output": "4"},
          {"instruction": "Say hello.", "input": "", "output": "Hello!"}]
QUESTIONS = [{"question": "2+2?", "answer": "4"}, {"question": "再见?", "answer": "e\u0301"}]
COMPLETIONS = [{"prompt": "The sky is", "completion": " blue."}, {"prompt": "def f(x):\n", "completion": "    return x\n"},
               {"prompt": "Größe ", "completion": "🎉"}]
TEXTS = [{"text": "A document.\n\nIts second paragraph 🎉"}, {"text": "x = 1"}]
PAIRS = [{"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
         {"prompt": "Two and two make", "chosen": " four", "rejected": " five"}]
CHAT_PAIRS = [{"prompt": [user("2+2?")], "chosen": [said("4")], "rejected": [said("5")]},
              {"prompt": [system("Be brief."), user("a"), said("b"), user("c")], "chosen": [said("d")], "rejected": [said("e f")]}]
WHOLE_PAIRS = [{"chosen": [*pair["prompt"], *pair["chosen"]], "rejected": [*pair["prompt"], *pair["rejected"]]}
               for pair in CHAT_PAIRS]
MARKED = [{"prompt": [user("2+2?")], "completion": [said("4")], "label": True},
          {"prompt": [user("2+3?")], "completion": [said("4")], "label": False}]

# What differs on purpose, and how TRL's side is made alike: by rows that it is given, or by what is learnt.
DIFFERENCES = {
    "sharegpt_roles": "human and gpt are roles of their own to TRL; here they are user and assistant",
    "columns": "TRL knows no Alpaca, nor question and answer: the rows are given as the conversations of docs/data.md",
    "padded_nulls": "TRL shows the template the nulls that Parquet and Arrow put where a row has no member; here they are left out",
    "behind_end": "TRL's training templates learn the line feed behind the end token; nobody waits for it",
    "cue": "TRL's training templates learn the end of the cue that makes a model answer, which the model never writes",
    "empty_thoughts": "TRL changes Qwen3's template: all answers get an empty thought; here earlier turns are as the model sees them",
}


class Case:
    def __init__(self, rows, *differences, template="qwen2_5", loss="sft", bos=False, kinds=KINDS):
        self.rows, self.differences, self.template, self.loss = rows, differences, template, loss
        self.bos, self.kinds, self.chat_template = bos, kinds, ""
        assert all(name in DIFFERENCES for name in differences), differences


def conversations(*lists):
    return [{"messages": messages} for rows in lists for messages in rows]


CASES = {
    "messages_qwen2_5": Case(conversations(CHATS, WITH_SYSTEM), "behind_end", "cue"),
    "messages_qwen3": Case(conversations(CHATS, WITH_SYSTEM), "behind_end", "empty_thoughts", template="qwen3"),
    "messages_llama3": Case(conversations(CHATS, WITH_SYSTEM), template="llama3"),
    "messages_gemma": Case(conversations(CHATS), "behind_end", template="gemma"),
    "messages_gptoss": Case(conversations(CHATS, WITH_SYSTEM), "cue", template="gptoss"),
    "messages_glm4moe": Case(conversations(CHATS, WITH_SYSTEM), template="glm4moe"),
    "messages_phi3": Case(conversations(CHATS, WITH_SYSTEM), "behind_end", template="phi3"),
    "messages_deepseekv3": Case(conversations(CHATS, WITH_SYSTEM), "cue", template="deepseekv3"),
    "tools": Case(TOOL_ROWS, "behind_end", "cue", "padded_nulls"),
    "tools_as_text": Case([{**row, "tools": json.dumps(row["tools"])} for row in TOOL_ROWS], "behind_end", "cue", "padded_nulls"),
    "nulls_of_json": Case(MEANT_NULLS, "behind_end", "cue", kinds=("jsonl",)),
    "sharegpt": Case(SHAREGPT, "behind_end", "cue", "sharegpt_roles"),
    "alpaca": Case(ALPACA, "behind_end", "cue", "columns"),
    "questions": Case(QUESTIONS, "behind_end", "cue", "columns"),
    "completions": Case(COMPLETIONS),
    "completions_bos": Case(COMPLETIONS, bos=True),
    "chat_completions": Case([{"prompt": messages[:-1], "completion": messages[-1:]} for messages in [*CHATS, *WITH_SYSTEM]],
                             "behind_end"),
    "texts": Case(TEXTS),
    "texts_bos": Case(TEXTS, bos=True),
    "pairs": Case(PAIRS, loss="dpo"),
    "chat_pairs": Case(CHAT_PAIRS, "behind_end", loss="dpo"),
    "whole_pairs": Case(WHOLE_PAIRS, "behind_end", loss="dpo"),
    "marked": Case(MARKED, "behind_end", loss="kto"),
}


def tokenizer_of(case):
    """The byte-level BPE of the goldens with the template's marks as tokens."""
    source = (TEMPLATES / f"{case.template}.jinja").read_text()
    backend = tokenizers.Tokenizer.from_file(str(ROOT / "tests/parity/data/tokenizer.json"))
    marks = sorted({*MARKS.findall(source), END[case.template], "<s>"})
    backend.add_special_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in marks])
    if case.bos:
        backend.post_processor = tokenizers.processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", backend.token_to_id("<s>"))])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token=END[case.template], pad_token="<|endoftext|>",
        chat_template=source)


def write(rows, folder, kind):
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    elif kind == "parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        datasets.Dataset.from_list(rows).save_to_disk(str(folder / "arrow"))
        (folder / "arrow/data-00000-of-00001.arrow").rename(path)
    return path


def ours(case, program, model, path, folder):
    """[(tokens, learnt)] of the cache that sft-rank prepare writes (worker/engine/data/cache_file.h)."""
    folder.mkdir()
    loss = {} if case.loss == "sft" else {"loss": case.loss}
    spec = {"job": {"model": "model", "data": path.name}, "compute": {"gpu_type": "CPU", "variant": "CPU-1x"},
            "training": {"mode": "lora", **loss}, "hyperparameters": {"sequence_length": 2048},
            "data": {"template_date": DAY.date().isoformat(), "chat_template": case.chat_template}}
    launch = folder / "launch.json"
    launch.write_text(json.dumps({
        "attempt_uid": "parity", "epoch": 1, "job_id": "parity", "job_json": json.dumps(spec), "world_size": 1,
        "first_rank": 0, "local_ranks": 1, "device": "cpu", "threads_per_rank": 2, "model_dir": str(model),
        "model_name": "model", "val_file": "", "train_file": str(path), "cache_dir": str(folder / "cache"),
        "attempt_dir": str(folder), "output_dir": str(folder / "output")}))
    result = subprocess.run([program, "prepare", "--launch", launch], capture_output=True, text=True, timeout=LIMIT_S,
                            check=False)
    if result.returncode != 0:
        sys.exit(f"forms: sft-rank prepare of {path} ended with {result.returncode}:\n{result.stdout[-500:]}{result.stderr[-1000:]}")
    (cache,) = [file for file in (folder / "cache").rglob("*") if file.is_file() and file.read_bytes()[:8] == b"SFTDATA2"]
    content = cache.read_bytes()
    documents, count, _ = struct.unpack_from("<3Q", content, 104)
    at = 128

    def part(code, size):
        nonlocal at
        values = array.array(code)
        values.frombytes(content[at:at + size * values.itemsize])
        at += (size * values.itemsize + 7) // 8 * 8
        return values.tolist()

    offsets, lines, _, tokens, marks = (part("Q", documents + 1), part("Q", documents), part("I", documents), part("i", count),
                                        part("B", count))
    rows = [(line, tokens[a:b], [bool(mark & 1) and not mark & 2 for mark in marks[a:b]])
            for line, a, b in zip(lines, offsets, offsets[1:])]
    return [(ids, learnt) for _, ids, learnt in sorted(rows, key=lambda row: row[0])]


def labelled(trainer):
    for example in trainer.train_dataset:
        labels = trainer.data_collator([example])["labels"][0].tolist()
        yield example["input_ids"], [label != -100 for label in labels]


def theirs(case, tokenizer, model, rows, folder):
    """The same of TRL's trainers."""
    shared = {"output_dir": str(folder), "report_to": [], "use_cpu": True, "bf16": False, "max_length": None}
    if case.loss == "sft":
        chat = "prompt" not in rows.column_names and "text" not in rows.column_names
        trainer = trl.SFTTrainer(model=str(model), args=trl.SFTConfig(**shared, assistant_only_loss=chat), train_dataset=rows,
                                 processing_class=tokenizer)
        return [(ids, [False, *learnt[1:]]) for ids, learnt in labelled(trainer)]
    if case.loss == "dpo":
        trainer = trl.DPOTrainer(model=str(model), args=trl.DPOConfig(**shared), train_dataset=rows, processing_class=tokenizer)
        return [(row["prompt_ids"] + row[answer], [False] * len(row["prompt_ids"]) + [True] * len(row[answer]))
                for row in trainer.train_dataset for answer in ("chosen_ids", "rejected_ids")]
    from trl.experimental.kto import KTOConfig, KTOTrainer

    trainer = KTOTrainer(model=str(model), args=KTOConfig(**shared, per_device_train_batch_size=2), train_dataset=rows,
                         processing_class=tokenizer)
    return [(row["prompt_ids"] + row["completion_ids"],
             [False] * len(row["prompt_ids"]) + [True] * len(row["completion_ids"])) for row in trainer.train_dataset]


def as_conversations(row):
    if "conversations" in row:
        names = {"human": "user", "gpt": "assistant", "system": "system"}
        return {"messages": [{"role": names[message["from"]], "content": message["value"]} for message in row["conversations"]]}
    if "question" in row:
        return {"messages": [user(row["question"]), said(row["answer"])]}
    if "instruction" in row:
        asked = row["instruction"] + ("\n" + row["input"] if row["input"] else "")
        return {"messages": [user(asked), said(row["output"])]}
    return row


def alike(case, rows, tokenizer, model, folder):
    """What TRL makes of the rows once the named differences of rows are undone."""
    if "padded_nulls" in case.differences:  # a table of one row has no nulls
        return [document for i, row in enumerate(case.rows)
                for document in theirs(case, tokenizer, model, datasets.Dataset.from_list([copy.deepcopy(row)]), folder / str(i))]
    if {"sharegpt_roles", "columns"} & set(case.differences):
        rows = datasets.Dataset.from_list([as_conversations(row) for row in case.rows])
    return theirs(case, tokenizer, model, rows, folder)


def without_cue(documents, tokenizer):
    """The documents with no part of a cue learnt."""
    def tokens(messages, cued=False):
        return tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, add_generation_prompt=cued)["input_ids"]

    # DeepSeek's goes on with what no answer of the rows has.
    answered, cued = tokens([user("a"), said("b")]), tokens([user("a")], cued=True)
    cue = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(cued, answered))][len(tokens([user("a")])):]
    changed, result = False, []
    for ids, learnt in documents:
        learnt = list(learnt)
        for i in range(len(ids) - len(cue) + 1):
            if ids[i:i + len(cue)] == cue and True in learnt[i:i + len(cue)]:
                learnt[i:i + len(cue)], changed = [False] * len(cue), True
        result.append((ids, learnt))
    return result, changed


def without_behind_end(documents, tokenizer):
    """The documents with what follows an end token not learnt."""
    end = tokenizer.eos_token_id
    changed, result = False, []
    for ids, learnt in documents:
        learnt = list(learnt)
        for i in range(1, len(ids)):
            if ids[i - 1] == end and learnt[i] and not tokenizer.decode([ids[i]]).strip():
                learnt[i], changed = False, True
        result.append((ids, learnt))
    return result, changed


def shown(tokenizer, document):
    ids, learnt = document
    return "".join(f"[{tokenizer.decode([id_])}]" if mark else tokenizer.decode([id_]) for id_, mark in zip(ids, learnt))


def compare(name, case, kind, program, folder):
    """What is wrong, in words; empty: nothing."""
    tokenizer = tokenizer_of(case)
    model = folder / "model"
    transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2,
        vocab_size=len(tokenizer), tie_word_embeddings=True)).save_pretrained(model)
    tokenizer.save_pretrained(model)
    path = write(case.rows, folder, kind)
    rows = (datasets.Dataset.from_file(str(path)) if kind == "arrow" else
            datasets.load_dataset({"jsonl": "json"}.get(kind, kind), data_files=str(path), split="train", cache_dir=str(folder / "hub")))
    have = ours(case, program, model, path, folder / "ours")
    if "padded_nulls" in case.differences:
        padded = theirs(case, tokenizer, model, rows, folder / "padded")
        assert (kind == "jsonl") == (padded == alike(case, rows, tokenizer, model, folder / "plain")), (
            f"{name}: padded_nulls differs not in {kind} but elsewhere")
    want = alike(case, rows, tokenizer, model, folder / "theirs")
    if "empty_thoughts" in case.differences:
        assert [ids for ids, _ in have] != [ids for ids, _ in want], f"{name}: empty_thoughts is no difference"
        case = copy.copy(case)
        case.chat_template = (TEMPLATES / f"{case.template}_training.jinja").read_text()
        have = ours(case, program, model, path, folder / "ours_again")
    for difference, undo in (("behind_end", without_behind_end), ("cue", without_cue)):
        if difference in case.differences:
            want, changed = undo(want, tokenizer)
            have, _ = undo(have, tokenizer)  # where both have TRL's template
            assert changed, f"{name}: {difference} is no difference"
    if len(have) != len(want):
        return f"{len(have)} documents, TRL has {len(want)}"
    for i, (own, other) in enumerate(zip(have, want)):
        if own != other:
            return f"document {i}:\n    {shown(tokenizer, own)!r}\n  TRL:\n    {shown(tokenizer, other)!r}"
    return ""


def fixed_day():
    class FixedDay(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return DAY

    return mock.patch.object(chat_template_utils, "datetime", FixedDay)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder with sft-rank")
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    failed = 0
    for name in args.only:
        for kind in CASES[name].kinds:
            with tempfile.TemporaryDirectory(prefix="sft-forms-") as temporary, fixed_day():
                wrong = compare(name, CASES[name], kind, args.bin.resolve() / "sft-rank", pathlib.Path(temporary))
            if wrong:
                failed += 1
                print(f"forms: {name} in {kind}: {wrong}", flush=True)
        print(f"forms: {name}: {len(CASES[name].rows)} rows", *CASES[name].differences, flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
