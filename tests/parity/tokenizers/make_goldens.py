#!/usr/bin/env python3
"""Makes the goldens of tokenizers: what transformers makes of folders with and without tokenizer.json.

    build/deps/parity/bin/python tests/parity/tokenizers/make_goldens.py [--check | --inputs]

Writes goldens.json beside itself; with --check compares with the one that is there instead. The
vocabularies in inputs/ were trained once (--inputs) and are kept. The goldens hold the JSON files of
each folder, its tokens and how it encodes the texts; tests/unit/worker/engine/data/
converted_tokenizer_test.cc compares the engine with them.
"""

import base64
import io
import json
import pathlib
import random
import shutil
import sys
import tempfile

import transformers
from transformers import AutoTokenizer, LlamaTokenizer
from transformers.convert_slow_tokenizer import TikTokenConverter, bytes_to_unicode

HERE = pathlib.Path(__file__).parent
INPUTS = HERE / "inputs"

LINES = ["The quick brown fox jumps over the lazy dog, and then it sleeps for 12 hours.",
         "Fine-tuning a language model takes rows of text; each row becomes tokens.",
         "He said: \"It's not what you think\" -- and they're right (we'll see).",
         "Größe und Übermut stehen auf der Straße, während die Bären tanzen.",
         "El niño comió mañana; ¿qué pasó con la señora García?",
         "Привет, мир! Как дела у вас сегодня?", "再见 漢字 你好 世界 模型 训练", "かな カタカナ 日本語 の 文章",
         "안녕하세요 세계", "def f(x):\n    return x ** 2  # squared\n\nfor i in range(10):\n\tprint(f(i))",
         "3.14159 2718 1000000 0x1F 42", "https://example.org/a_b?c=d&e=f"]
HARD = ["", " ", "  ", "\n", "\n\n\n", "\t\t", "a", " a", "a ", "  leading and trailing  ", "one\ntwo\r\nthree\rfour",
        "tabs\tand  two   three    spaces", "It's IT'S they'Re we'll I'd", "12345 1,234,567 3.14e-10 ½ ² ١٢٣",
        "Größe café cafe\u0301 ﬁne ﬀ Å Å", "漢字とかな交じり文。안녕하세요 세계", "עברית العربية ไทย हिन्दी",
        "🎉 👩‍👩‍👧 🇩🇪 🏳️‍🌈", "zero\u200bwidth\u00a0nbsp\u3000ideographic\u2028line", "\x00\x07\x7f",
        "def f(x):\n    return x ** 2  # squared\n\n\n\tprint(f(i))", "▁ ▁▁ _ <0x41> <unk>",
        "ＡＢＣ１２３ ｶﾅ", "a" * 70, "<s>[INST] Hi [/INST] Ok</s>", "<start_of_turn>user\nHi<end_of_turn>\n",
        "<|endoftext|> <|im_start|>user\nHi<|im_end|>\n<think>\n\n</think>",
        "👩🏽‍🚀👨‍👩‍👧‍👦🏴‍☠️ ❤️ ❤︎ 1️⃣ \u200d\ufe0f", "e\u0301\u0301\u0327 Z\u0351\u036b\u0343 ʰᵃ", "กำแพงน้ำใจ ก็ได้ ที่สุด ๑๒๓",
        "नमस्ते क्षत्रिय ज़ क\u093c", "שלום \u202eabc\u202c \u200fב\u2066x\u2069 مَرْحَبًا \u061c١", "，。「」『』〜 𠮷野家 ｶﾞ が か\u3099",
        "한국어 \u1112\u1161\u11ab\u1100\u116e\u11a8", "\u212b \u00c5 A\u030a \u1e69 s\u0323\u0307 s\u0307\u0323 ﷺ",
        "\tif (a\t&&\tb) {\r\n\t\treturn\t0;\r\n\t}\r\n", "9" * 60 + " 0.12345678901234567890 ١٢٣٤٥٦٧٨٩٠",
        "Donaudampfschifffahrtsgesellschaft" * 4, "x" * 300, "end\x00of\x00text\x00", "\ud7ff\ue000\ufffd\U0010ffff\ufeff",
        "</s>", "<s></s><unk>", "<|endoftext|>", " <eos>", "<0x0A>", "[INST]x[/INST]"]
TEKKEN_SPLIT = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT2 = {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}


def token(content, special=True, normalized=False, **flags):
    return {"content": content, "lstrip": False, "normalized": normalized, "rstrip": False, "single_word": False,
            "special": special, **flags}


def named(content):
    value = token(content, normalized=True)
    del value["special"]
    return {"__type": "AddedToken", **value}


LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": False, "legacy": False,
         "bos_token": named("<s>"), "eos_token": named("</s>"), "unk_token": named("<unk>"), "pad_token": None}
LLAMA_FILE = {"tokenizer.model": "bpe.model"}
GEMMA_FILE = {"tokenizer.model": "gemma.model"}
TIKTOKEN_FILE = {"tokenizer.model": "ranks.tiktoken"}
# name: (vocabulary files, JSON files, class to load it with)
CASES = {
    "gpt2": (GPT2, {"config.json": {"model_type": "gpt2"}}),
    "gpt2_bos_pad_prefix": (GPT2, {"config.json": {"model_type": "gpt2"}, "tokenizer_config.json": {
        "add_bos_token": True, "add_eos_token": True, "pad_token": "<pad>", "add_prefix_space": True}}),
    "gpt2_old_maps": (GPT2, {
        "config.json": {"model_type": "gpt2"}, "tokenizer_config.json": {"eos_token": "<|endoftext|>"},
        "added_tokens.json": {"<extra>": 512, "<|im_end|>": 513},
        "special_tokens_map.json": {"pad_token": "<|im_end|>", "additional_special_tokens": ["<think>"]}}),
    "qwen2": (GPT2, {"config.json": {"model_type": "qwen2"}, "tokenizer_config.json": {
        "tokenizer_class": "Qwen2Tokenizer", "bos_token": None, "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "unk_token": None, "add_prefix_space": False,
        "added_tokens_decoder": {
            "0": token("<|endoftext|>"), "512": token("<|im_start|>"), "513": token("<|im_end|>"),
            "514": token("<think>", special=False), "515": token("</think>", special=False, rstrip=True)},
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"]}}),
    "olmo": (GPT2, {"config.json": {"model_type": "olmo"}}),
    "llama": (LLAMA_FILE, {"config.json": {"model_type": "llama"}, "tokenizer_config.json": LLAMA}),
    "llama_no_class": (LLAMA_FILE, {"config.json": {"model_type": "llama"}}),
    "llama_no_prefix": (LLAMA_FILE, {"config.json": {"model_type": "llama"}, "tokenizer_config.json": {
        **LLAMA, "add_prefix_space": False}}),
    "llama_chat_tokens": (LLAMA_FILE, {"config.json": {"model_type": "llama"}, "tokenizer_config.json": {
        "tokenizer_class": "LlamaTokenizerFast", "bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>",
        "added_tokens_decoder": {
            "0": token("<unk>"), "1": token("<s>"), "2": token("</s>", special=False, rstrip=True),
            "600": token("<|im_start|>"), "601": token("<|im_end|>", rstrip=True), "602": token("<pad>")}}}),
    "llama_old_maps": (LLAMA_FILE, {
        "config.json": {"model_type": "llama"},
        "tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True},
        "special_tokens_map.json": {"bos_token": token("<s>"), "eos_token": token("</s>"),
                                    "unk_token": token("<unk>"), "pad_token": "<unk>"},
        "added_tokens.json": {"<pad>": 600}}),
    # AutoTokenizer leaves the class that Mistral's files name aside, and with it the space before a text.
    "mistral": (LLAMA_FILE, {"config.json": {"model_type": "mistral"}, "tokenizer_config.json": {
        **LLAMA, "legacy": True}}, LlamaTokenizer),
    "gemma": (GEMMA_FILE, {"config.json": {"model_type": "gemma3_text"}, "tokenizer_config.json": {
        "tokenizer_class": "GemmaTokenizer", "add_bos_token": True,
        "boi_token": "<unused0>", "additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"],
        "added_tokens_decoder": {
            "0": token("<pad>"), "1": token("<eos>"), "2": token("<bos>"), "3": token("<unk>"), "4": token("<mask>"),
            "6": token("<start_of_turn>"), "7": token("<end_of_turn>"), "9": token("\n\n", special=False)}}}),
    "gemma_no_config": (GEMMA_FILE, {"config.json": {"model_type": "gemma2"}}),
    "unigram": ({"tokenizer.model": "unigram.model"}, {"config.json": {"model_type": "llama"}}),
    "tiktoken": (TIKTOKEN_FILE, {"config.json": {"model_type": "llama"}, "tokenizer_config.json": {
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>",
        "added_tokens_decoder": {
            "511": token("<|begin_of_text|>"), "512": token("<|end_of_text|>"), "520": token("<|eot_id|>"),
            "521": token("<think>", special=False)}}}),
    "tiktoken_bos": ({"tiktoken.model": "ranks.tiktoken"}, {
        "config.json": {"model_type": "llama"}, "tokenizer_config.json": {
            "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True,
            "additional_special_tokens": ["<s>", "</s>"]}}),
    "tekken": ({"tekken.json": "tekken.json"}, {"config.json": {"model_type": "mistral3"}}),
    "tekken_bos": ({"tekken.json": "tekken.json"}, {
        "config.json": {"model_type": "mistral"}, "tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True,
            "pad_token": "<pad>", "additional_special_tokens": ["[INST]", "[/INST]"]}}),
}
# Folders with a tokenizer.json: those of the case named, as transformers saves it.
SAVED = {"json_bpe": "qwen2", "json_sentencepiece": "llama", "json_unigram": "unigram", "json_tiktoken": "tiktoken"}


def train_sentencepiece(name, **options):
    import sentencepiece
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LINES * 20), model_writer=model, num_threads=1, byte_fallback=True, split_digits=True,
        remove_extra_whitespaces=False, character_coverage=0.98, **options)
    (INPUTS / name).write_bytes(model.getvalue())


def make_inputs():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    INPUTS.mkdir(exist_ok=True)
    bpe = {"model_type": "bpe", "normalization_rule_name": "identity", "allow_whitespace_only_pieces": True}
    train_sentencepiece("bpe.model", vocab_size=600, **bpe)
    train_sentencepiece(
        "gemma.model", vocab_size=640, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>", user_defined_symbols=[
            "<mask>", "<unused0>", "<start_of_turn>", "<end_of_turn>", "\n", "\n\n", "\t", "▁▁", "▁▁▁"], **bpe)
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as rules:
        # Some of what NFKC does: the whole of it takes 240 kB.
        rules.write("FB01\t66 69\nFF21\t41\nFF22\t42\nFF23\t43\nFF11\t31\n212B\tC5\nA0\t20\n3000\t20\n9\t20\n")
        rules.flush()
        train_sentencepiece("unigram.model", model_type="unigram", vocab_size=400, normalization_rule_tsv=rules.name)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(LINES * 20, trainers.BpeTrainer(
        vocab_size=512, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=["<|endoftext|>"]))
    model = json.loads(tokenizer.to_str())["model"]
    (INPUTS / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False))
    (INPUTS / "merges.txt").write_text("\n".join(["#version: 0.2", *map(" ".join, model["merges"])]) + "\n")
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokens = [bytes(byte_of[letter] for letter in text) for text in model["vocab"] if text != "<|endoftext|>"]
    (INPUTS / "ranks.tiktoken").write_text(
        "".join(f"{base64.b64encode(text).decode()} {rank}\n" for rank, text in enumerate(tokens)))
    special = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    (INPUTS / "tekken.json").write_text(json.dumps({
        "config": {"pattern": TEKKEN_SPLIT, "num_vocab_tokens": len(tokens), "default_vocab_size": 500,
                   "default_num_special_tokens": 10, "version": "v7"},
        "vocab": [{"rank": rank, "token_bytes": base64.b64encode(text).decode(), "token_str": None}
                  for rank, text in enumerate(tokens)],
        "special_tokens": [{"rank": rank, "token_str": text, "is_control": True}
                           for rank, text in enumerate(special)]}))


def read_tiktoken(path):
    """In place of the tiktoken package's, which is needed for nothing else."""
    lines = pathlib.Path(path).read_bytes().split(b"\n")
    return {base64.b64decode(text): int(rank) for text, rank in (line.split() for line in lines if line)}


def mixed(specials, count=24):
    """Special tokens among words, blanks and line breaks."""
    rng = random.Random(3)
    pieces = specials + ["the fox", " and", "  ", "\n", "\n\n\n", "\t", "123", "é", "🎉", "漢字", "▁", "'s"]
    return ["".join(rng.choice(pieces) for _ in range(rng.randint(2, 9))) for _ in range(count)]


def saved(vocabulary, jsons, loader=AutoTokenizer):
    """The JSON files of a case, among them tokenizer.json."""
    with tempfile.TemporaryDirectory() as folder:
        for target, source in vocabulary.items():
            shutil.copy(INPUTS / source, pathlib.Path(folder, target))
        for file, content in jsons.items():
            pathlib.Path(folder, file).write_text(json.dumps(content))
        tokenizer = loader.from_pretrained(folder)
    names = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token")}
    return {"config.json": jsons["config.json"], "tokenizer.json": json.loads(tokenizer.backend_tokenizer.to_str()),
            "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **names}}


def golden(name, vocabulary, jsons, loader=AutoTokenizer):
    with tempfile.TemporaryDirectory() as folder:
        for target, source in vocabulary.items():
            shutil.copy(INPUTS / source, pathlib.Path(folder, target))
        for file, content in jsons.items():
            pathlib.Path(folder, file).write_text(json.dumps(content))
        tokenizer = loader.from_pretrained(folder)
    added = json.loads(tokenizer.backend_tokenizer.to_str())["added_tokens"]
    texts = HARD + mixed([entry["content"] for entry in added])
    around = tokenizer.encode("fox")
    plain = tokenizer.encode("fox", add_special_tokens=False)
    at = next(i for i in range(len(around)) if around[i:i + len(plain)] == plain)
    encodings = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False)} for text in texts]
    return {"name": name, "class": type(tokenizer).__name__, "files": vocabulary, "json": jsons,
            "bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token,
            "added_tokens": [{key: entry[key] for key in ("id", "content", "special")} for entry in added],
            "prefix": around[:at], "suffix": around[at + len(plain):], "encodings": encodings,
            "decoded": tokenizer.decode(plain)}


def main():
    if "--inputs" in sys.argv[1:]:
        make_inputs()
    transformers.utils.logging.set_verbosity_error()
    TikTokenConverter.load_tiktoken_bpe = staticmethod(read_tiktoken)
    cases = CASES | {name: ({}, saved(*CASES[source])) for name, source in SAVED.items()}
    goldens = {"transformers": transformers.__version__, "cases": [golden(name, *case) for name, case in cases.items()]}
    text = json.dumps(goldens, ensure_ascii=False, indent=0) + "\n"
    path = HERE / "goldens.json"
    if "--check" not in sys.argv[1:]:
        path.write_text(text)
    elif path.read_text() != text:
        raise SystemExit(f"{path} is not what is made now: run this without --check, look at the difference")


if __name__ == "__main__":
    main()
