#!/usr/bin/env python3
"""Makes the goldens of the data layer: what transformers and tokenizers print for the same input.

    build/deps/parity/bin/python tests/parity/data/make_goldens.py [--check]

Writes tokenizer.json (a small byte-level BPE with the traits of the supported families) and
goldens.json beside itself; with --check compares with those that are there instead. tests/unit/worker/engine/data/golden_test.cc compares the engine with it.
"""

import json
import pathlib
import random
import re
import sys
from datetime import datetime
from unittest import mock

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
           "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]"]
WORDS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
DATE = datetime(2024, 7, 26)
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>"}

CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "days": 2}}}
TOOLS = [{"type": "function", "function": {
    "name": "weather", "description": "The <b>weather</b> & \"more\"",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                   "required": ["city"]}}}]
CONVERSATIONS = {
    "one_turn": [{"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "Four."}],
    "system": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
               {"role": "assistant", "content": " leading and trailing \n"}],
    "many_turns": [{"role": "user", "content": "Größe 🎉?"}, {"role": "assistant", "content": "Ja 🎉"},
                   {"role": "user", "content": "再见"}, {"role": "assistant", "content": "再见 e\u0301"}],
    "reasoning": [{"role": "user", "content": "a?"},
                  {"role": "assistant", "content": "A", "reasoning_content": "think a"},
                  {"role": "user", "content": "b?"},
                  {"role": "assistant", "content": "<think>\nthink b\n</think>\n\nB"}],
    "question": [{"role": "user", "content": "What now?"}],
}
TOOL_CONVERSATION = [{"role": "user", "content": "Weather?"},
                     {"role": "assistant", "content": "", "tool_calls": [CALL]},
                     {"role": "tool", "content": "sunny"},
                     {"role": "assistant", "content": "It is sunny."},
                     {"role": "user", "content": "Thanks"}, {"role": "assistant", "content": "Welcome"}]
VALUES = [{"role": "user", "content": "Na so a", "extra": {
    "z": None, "a": True, "text": "it's \"<é>\" \n\t\u00a0", "list": [1, 2.0, 1e16, 1e-05, "x", []],
    "map": {"k": {}, "b": [{"c": 1}]}}}]


def said(content, **more):
    return {"role": "assistant", "content": content, **more}


def asked(content):
    return {"role": "user", "content": content}


def calls(city, **more):
    return {"role": "assistant", "tool_calls": [{"type": "function", "function": {
        "name": "weather", "arguments": {"city": city}}}], **more}


def told(content):
    return {"role": "tool", "content": content}


# Rows for a template that rewrites earlier turns: which answers are trained, and with what arguments.
CHANNEL_ROWS = {
    "answer": [asked("2+2?"), said("4")],
    "thought": [asked("2+2?"), said("4", thinking="Two and two.")],
    "developer": [{"role": "developer", "content": "Be brief."}, asked("2+2?"), said("4", thinking="Easy.")],
    "turns": [{"role": "system", "content": "Be brief."}, asked("a?"), said("A", thinking="first"),
              asked("b?"), said("B", thinking="second"), asked("c?"), said("C", thinking="third")],
    "last_turn_alone": [asked("a?"), said("A", thinking="first", weight=0), asked("b?"), said("B", thinking="b")],
    "same_words": [asked("A"), said("A"), asked("A"), said("A", thinking="A")],
    "call": [asked("Weather?"), calls("Bern", thinking="Ask.")],
    "call_then_answer": [asked("Weather?"), calls("Bern", thinking="Ask."), told("sun"), said("Sunny.", thinking="Say.")],
    "call_without_content": [asked("Weather?"), calls("Bern", content=None), told("sun"), said("Sunny.")],
    "two_calls": [asked("Weather?"), calls("Bern", thinking="One."), told("sun"), calls("Rome", thinking="Two."),
                  told("rain"), said("Sun and rain.", thinking="Both.")],
    "calls_without_answer": [asked("Weather?"), calls("Bern", content="One."), told("sun"),
                             calls("Rome", content="Two."), told("rain")],
    "calls_in_each_turn": [asked("Bern?"), calls("Bern", thinking="One."), told("sun"), said("Sun.", thinking="Say."),
                           asked("Rome?"), calls("Rome", thinking="Two."), told("rain"), said("Rain.", thinking="End.")],
}


def train_tokenizer():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    text = [json.dumps(CONVERSATIONS, ensure_ascii=False), "assistant\n  user\n\n  the them then these\n"] * 50
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in WORDS])
    return tokenizer


def texts(seed=7, count=300):
    """Strings that make tokenizers differ: scripts, marks, emoji, blanks, control tokens."""
    rng = random.Random(seed)
    pieces = CONTROL + WORDS + ["\n", "\r\n", "\t", " ", "  ", "\u00a0", "\u3000", "a", "the", "It's", "IT'S",
                                "12345", "½", "²", "é", "e\u0301", "ö", "漢字", "かな", "한국어", "עברית", "ไทย",
                                "🎉", "👩‍👩‍👧", "🇩🇪", "!?", "...", "_x_", "\u200b", "\u2028", "ſ", "K", "\x00", "\x7f"]
    return ["".join(rng.choice(pieces) + rng.choice(["", " "]) for _ in range(rng.randint(1, 14)))
            for _ in range(count)]


def encode(tokenizer, text):
    encoding = tokenizer.encode(text, add_special_tokens=False)
    # Python's offsets count characters; the engine's count bytes.
    sizes = [0]
    for character in text:
        sizes.append(sizes[-1] + len(character.encode()))
    return {"text": text, "ids": encoding.ids,
            "starts": [sizes[a] for a, _ in encoding.offsets], "ends": [sizes[b] for _, b in encoding.offsets]}


def render(template, messages, tools=None, prompt=False, **more):
    class FixedDate(datetime):
        @classmethod
        def now(cls, tz=None):
            return DATE

    chat_template_utils._compile_jinja_template.cache_clear()
    with mock.patch.object(chat_template_utils, "datetime", FixedDate):
        rendered, spans = chat_template_utils.render_jinja_template(
            [messages], tools=tools, chat_template=template, add_generation_prompt=prompt,
            return_assistant_tokens_mask="generation %}" in template, **SPECIALS, **more)
    text = rendered[0]
    marked = [[len(text[:a].encode()), len(text[:b].encode())] for a, b in (spans[0] if spans else [])]
    return text, marked


def renders():
    for path in sorted((HERE / "templates").glob("*.jinja")):
        template = path.read_text()
        if path.stem == "values":
            cases = {"values": (VALUES, None)}
        else:
            cases = {name: (messages, None) for name, messages in CONVERSATIONS.items()}
            if path.stem in ("headers_and_date", "chatml_tools", "thinking"):
                cases["tools"] = (TOOL_CONVERSATION, TOOLS)
        for name, (messages, tools) in cases.items():
            for prompt in (False, True):
                text, marked = render(template, messages, tools, prompt)
                yield {"template": path.name, "case": name, "messages": messages, "tools": tools,
                       "add_generation_prompt": prompt, "text": text, "generation": marked}


def turns_of(text):
    """What an assistant writes of a text with channels, turn by turn: after "<|start|>assistant", up to the token that
    ends its last message."""
    turns = []
    before = None
    for header, body in re.findall(r"<\|start\|>([a-z]+)((?:(?!<\|start\|>).)*)", text, re.DOTALL):
        if header == "assistant" and before == "assistant":
            turns[-1] += "<|start|>assistant" + body
        elif header == "assistant":
            turns.append(body)
        before = header
    return turns


def masks():
    """Rows, and what of them carries loss."""
    template = (HERE / "templates" / "channels.jinja").read_text()
    for name, messages in CHANNEL_ROWS.items():
        for arguments in ({}, {"reasoning_effort": "high"}):
            shown = [{key: value for key, value in message.items() if key != "weight" and value is not None} for message in messages]
            text, _ = render(template, shown, **arguments)
            turns = turns_of(text)
            weights = [message.get("weight", 1) for message in messages if message["role"] == "assistant"]
            assert len(turns) == len(weights), (name, turns)
            yield {"template": "channels.jinja", "case": name, "row": {"messages": messages}, "arguments": arguments,
                   "text": text, "learnt": [turn for turn, weight in zip(turns, weights) if weight]}


def main():
    tokenizer = train_tokenizer()
    goldens = {"tokenizers": tokenizers.__version__, "specials": SPECIALS,
               "encodings": [encode(tokenizer, text) for text in texts()], "renders": list(renders()),
               "masks": list(masks())}
    files = {"tokenizer.json": tokenizer.to_str(pretty=True),
             "goldens.json": json.dumps(goldens, ensure_ascii=False, indent=0) + "\n"}
    for name, text in files.items():
        if "--check" not in sys.argv[1:]:
            (HERE / name).write_text(text)
        elif (HERE / name).read_text() != text:
            raise SystemExit(f"{HERE / name} is not what is made now: run this without --check, look at the difference")


if __name__ == "__main__":
    main()
