"""A random model small enough for eight ranks on a laptop, as a Hugging Face directory."""

import array
import json
import pathlib
import random
import shutil
import struct

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEMO = ROOT / "build/demo"

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_hidden_layers": 2, "vocab_size": 49152, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "hidden_act": "silu", "torch_dtype": "bfloat16",
}


def bfloat16(values):
    """Bytes of the values cut to bfloat16."""
    words = array.array("I", array.array("f", values).tobytes())
    return array.array("H", (word >> 16 for word in words)).tobytes()


def tiny_tensors():
    """Name -> (shape, bytes) of a random model small enough for eight ranks."""
    source = random.Random(7)
    hidden, inner, heads = TINY["hidden_size"], TINY["intermediate_size"], TINY["num_attention_heads"]
    kv = TINY["num_key_value_heads"] * TINY["head_dim"]
    shapes = {"model.embed_tokens.weight": [TINY["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(TINY["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "self_attn.q_proj.weight": [heads * TINY["head_dim"], hidden],
            prefix + "self_attn.k_proj.weight": [kv, hidden],
            prefix + "self_attn.v_proj.weight": [kv, hidden],
            prefix + "self_attn.o_proj.weight": [hidden, heads * TINY["head_dim"]],
            prefix + "mlp.gate_proj.weight": [inner, hidden],
            prefix + "mlp.up_proj.weight": [inner, hidden],
            prefix + "mlp.down_proj.weight": [hidden, inner],
            prefix + "input_layernorm.weight": [hidden],
            prefix + "post_attention_layernorm.weight": [hidden],
        }
    tensors = {}
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        centre = 1.0 if "norm" in name else 0.0
        tensors[name] = (shape, bfloat16(centre + source.uniform(-0.05, 0.05) for _ in range(count)))
    return tensors


def write_tiny_model(folder):
    """The tensors, with the demo model's tokenizer and template."""
    folder.mkdir(parents=True)
    tensors, header, offset = tiny_tensors(), {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            out.write(data)
    (folder / "config.json").write_text(json.dumps(TINY))
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copyfile(DEMO / "model" / name, folder / name)
    return tensors


def split_tokenizer(folder):
    """vocab.json and merges.txt in place of tokenizer.json, as GPT-2's models have them."""
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(" ".join(merge) + "\n" for merge in model["merges"]))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": "GPT2Tokenizer"}))
