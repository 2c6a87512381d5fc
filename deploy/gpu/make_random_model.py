#!/usr/bin/env python3
"""Writes a Hugging Face directory of a real size with random weights, for measurements on a GPU.

    python3 deploy/gpu/make_random_model.py SIZE DIR [--rows FILE --count N --tokens T]

SIZE is a name of SHAPES: qwen3-0.6b to qwen3-32b, llama-1b, llama-8b, llama-70b, gemma3-4b, gemma3-27b, gemma4-e2b, gemma4-e4b,
gemma4-31b, gpt2-medium, mixtures of experts (gpt-oss-20b and -120b with experts in MXFP4 as published, gpt-oss-20b-bf16,
qwen3-30b-a3b), qwen3.5-9b, or one that ends with "-tiny" for a first try. safetensors shards, in bf16 but for MXFP4, with the names
of published files; a tokenizer of one token a byte and a ChatML template. With --rows, a JSON Lines file of N rows of
exactly T tokens each that all carry loss with data.loss_on = "all".

Needs torch and numpy alone. Weights are drawn on the GPU where there is one and written by several threads:
speed is the disk's.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import pathlib
import random
import time

import torch

import random_experts
import random_hybrids

SHARD_BYTES = 4 << 30


@dataclasses.dataclass(frozen=True)
class Shape:
    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool


@dataclasses.dataclass(frozen=True)
class Gemma4Shape(Shape):
    full_head_size: int = 512
    window: int = 512
    interval: int = 6  # every so manieth layer, and the last, is full
    full_key_heads: int = 0  # 0: as in the others; else its keys are its values
    sharing: int = 0  # last layers without keys
    wide: bool = False  # those have feed-forward layers of twice the width
    layer_input: int = 0

    def full(self, layer):
        return layer % self.interval == self.interval - 1 or layer == self.layers - 1

    def keys(self, layer):
        return self.full_key_heads if self.full(layer) and self.full_key_heads else self.key_heads


@dataclasses.dataclass(frozen=True)
class MoeShape(Shape):
    """`intermediate` is an expert's; that of dense layers is `dense_intermediate`."""
    experts: int = 0
    chosen: int = 0
    mxfp4: bool = False
    dense_layers: int = 0  # the first so many have no experts
    dense_intermediate: int = 0


@dataclasses.dataclass(frozen=True)
class HybridShape(Shape):
    """Gated DeltaNets but for every so manieth layer; their keys and values are of one size."""
    interval: int = 4
    delta_key_heads: int = 16
    delta_value_heads: int = 32
    delta_size: int = 128


def gpt_oss(layers, experts, mxfp4):
    return MoeShape("gpt_oss", 2880, 2880, layers, 64, 8, 64, 201088, False, experts, 4, mxfp4)


SHAPES = {
    "qwen3-tiny": Shape("qwen3", 128, 256, 2, 4, 2, 32, 512, True),
    "qwen3-0.6b": Shape("qwen3", 1024, 3072, 28, 16, 8, 128, 151936, True),
    "qwen3-1.7b": Shape("qwen3", 2048, 6144, 28, 16, 8, 128, 151936, True),
    "qwen3-4b": Shape("qwen3", 2560, 9728, 36, 32, 8, 128, 151936, True),
    "qwen3-8b": Shape("qwen3", 4096, 12288, 36, 32, 8, 128, 151936, False),
    "qwen3-14b": Shape("qwen3", 5120, 17408, 40, 40, 8, 128, 151936, False),
    "qwen3-32b": Shape("qwen3", 5120, 25600, 64, 64, 8, 128, 151936, False),
    "llama-1b": Shape("llama", 2048, 8192, 16, 32, 8, 64, 128256, True),
    "llama-8b": Shape("llama", 4096, 14336, 32, 32, 8, 128, 128256, False),
    "llama-70b": Shape("llama", 8192, 28672, 80, 64, 8, 128, 128256, False),
    "gemma3-4b": Shape("gemma3_text", 2560, 10240, 34, 8, 4, 256, 262208, True),
    "gemma3-27b": Shape("gemma3_text", 5376, 21504, 62, 32, 16, 128, 262208, True),
    "gemma3-tiny": Shape("gemma3_text", 128, 256, 6, 4, 2, 32, 512, True),
    "gemma4-tiny": Gemma4Shape("gemma4_text", 128, 256, 6, 4, 2, 32, 512, True, 64, 64, full_key_heads=1),
    "gemma4-e-tiny": Gemma4Shape("gemma4_text", 128, 256, 9, 4, 1, 32, 512, True, 64, 64, 3, sharing=3, wide=True,
                                 layer_input=16),
    "gemma4-e2b": Gemma4Shape("gemma4_text", 1536, 6144, 35, 8, 1, 256, 262144, True, 512, 512, 5, sharing=20,
                              wide=True, layer_input=256),
    "gemma4-e4b": Gemma4Shape("gemma4_text", 2560, 10240, 42, 8, 2, 256, 262144, True, sharing=18, layer_input=256),
    "gemma4-31b": Gemma4Shape("gemma4_text", 5376, 21504, 60, 32, 16, 256, 262144, True, 512, 1024, full_key_heads=4),
    "gpt-oss-tiny": MoeShape("gpt_oss", 128, 64, 4, 4, 2, 32, 512, False, 8, 2, True),
    "gpt-oss-20b": gpt_oss(24, 32, True),
    "gpt-oss-20b-bf16": gpt_oss(24, 32, False),
    "gpt-oss-120b": gpt_oss(36, 128, True),
    "qwen3-moe-tiny": MoeShape("qwen3_moe", 128, 64, 2, 4, 2, 32, 512, False, 8, 2),
    "qwen3-30b-a3b": MoeShape("qwen3_moe", 2048, 768, 48, 32, 4, 128, 151936, False, 128, 8),
    "glm4-moe-tiny": MoeShape("glm4_moe", 128, 64, 3, 4, 2, 32, 512, False, 8, 2, dense_layers=1,
                              dense_intermediate=256),
    "qwen3.5-tiny": HybridShape("qwen3_5_text", 128, 256, 4, 4, 2, 32, 512, False, 4, 2, 4, 32),
    "qwen3.5-9b": HybridShape("qwen3_5_text", 4096, 12288, 32, 16, 4, 256, 248320, False),
    "gpt2-medium": Shape("gpt2", 1024, 4096, 24, 16, 16, 64, 50257, True),
}

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = ("{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}"
            "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def gpt2_shapes(shape):
    """As tensor_shapes; weights of linears stand as [inputs, outputs]."""
    hidden, inner = shape.hidden, shape.intermediate
    yield "transformer.wte.weight", (shape.vocabulary, hidden)
    yield "transformer.wpe.weight", (1024, hidden)
    for layer in range(shape.layers):
        prefix = f"transformer.h.{layer}."
        for name, inputs, outputs in (("attn.c_attn", hidden, 3 * hidden), ("attn.c_proj", hidden, hidden),
                                      ("mlp.c_fc", hidden, inner), ("mlp.c_proj", inner, hidden)):
            yield f"{prefix}{name}.weight", (inputs, outputs)
            yield f"{prefix}{name}.bias", (outputs,)
        for norm in ("ln_1", "ln_2"):
            yield f"{prefix}{norm}.weight", (hidden,)
            yield f"{prefix}{norm}.bias", (hidden,)
    yield "transformer.ln_f.weight", (hidden,)
    yield "transformer.ln_f.bias", (hidden,)


def gemma4_layer(shape, layer):
    hidden, prefix = shape.hidden, f"model.layers.{layer}."
    size = shape.full_head_size if shape.full(layer) else shape.head_size
    shares = layer >= shape.layers - shape.sharing
    inner = shape.intermediate * (2 if shares and shape.wide else 1)
    query, key = shape.heads * size, shape.keys(layer) * size
    for norm in ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                 "post_feedforward_layernorm"):
        yield f"{prefix}{norm}.weight", (hidden,)
    yield prefix + "layer_scalar", (1,)
    yield prefix + "self_attn.q_proj.weight", (query, hidden)
    yield prefix + "self_attn.q_norm.weight", (size,)
    if not shares:
        yield prefix + "self_attn.k_proj.weight", (key, hidden)
        yield prefix + "self_attn.k_norm.weight", (size,)
        if not (shape.full_key_heads and shape.full(layer)):
            yield prefix + "self_attn.v_proj.weight", (key, hidden)
    yield prefix + "self_attn.o_proj.weight", (hidden, query)
    yield prefix + "mlp.gate_proj.weight", (inner, hidden)
    yield prefix + "mlp.up_proj.weight", (inner, hidden)
    yield prefix + "mlp.down_proj.weight", (hidden, inner)
    if shape.layer_input:
        yield prefix + "per_layer_input_gate.weight", (shape.layer_input, hidden)
        yield prefix + "per_layer_projection.weight", (hidden, shape.layer_input)
        yield prefix + "post_per_layer_input_norm.weight", (hidden,)


def gemma4_shapes(shape):
    """As tensor_shapes."""
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    if shape.layer_input:
        inputs = shape.layers * shape.layer_input
        yield "model.embed_tokens_per_layer.weight", (shape.vocabulary, inputs)
        yield "model.per_layer_model_projection.weight", (inputs, shape.hidden)
        yield "model.per_layer_projection_norm.weight", (shape.layer_input,)
    for layer in range(shape.layers):
        yield from gemma4_layer(shape, layer)
    yield "model.norm.weight", (shape.hidden,)


def tensor_shapes(shape):
    """Name and shape of every tensor, in file order."""
    if isinstance(shape, MoeShape):
        yield from random_experts.shapes(shape)
        return
    own = {"gpt2": gpt2_shapes, "gemma4_text": gemma4_shapes, "qwen3_5_text": random_hybrids.shapes}.get(shape.family)
    if own:
        yield from own(shape)
        return
    query, key = shape.heads * shape.head_size, shape.key_heads * shape.head_size
    yield "model.embed_tokens.weight", (shape.vocabulary, shape.hidden)
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", (shape.hidden,)
        yield prefix + "self_attn.q_proj.weight", (query, shape.hidden)
        yield prefix + "self_attn.k_proj.weight", (key, shape.hidden)
        yield prefix + "self_attn.v_proj.weight", (key, shape.hidden)
        yield prefix + "self_attn.o_proj.weight", (shape.hidden, query)
        if shape.family != "llama":
            yield prefix + "self_attn.q_norm.weight", (shape.head_size,)
            yield prefix + "self_attn.k_norm.weight", (shape.head_size,)
        yield prefix + "post_attention_layernorm.weight", (shape.hidden,)
        if shape.family == "gemma3_text":
            yield prefix + "pre_feedforward_layernorm.weight", (shape.hidden,)
            yield prefix + "post_feedforward_layernorm.weight", (shape.hidden,)
        yield from random_experts.gated_layer(prefix + "mlp.", shape.hidden, shape.intermediate)
    yield "model.norm.weight", (shape.hidden,)
    if not shape.tied:
        yield "lm_head.weight", (shape.vocabulary, shape.hidden)


def type_of(name):
    if name.endswith(("_blocks", "_scales")):
        return "U8"
    exact = name.endswith("e_score_correction_bias") or random_hybrids.is_exact(name)
    return "F32" if exact else "BF16"


def size_of(name, dimensions):
    return {"U8": 1, "BF16": 2, "F32": 4}[type_of(name)] * torch.Size(dimensions).numel()


def parameters_of(shape):
    counts = ((name, torch.Size(dimensions).numel()) for name, dimensions in tensor_shapes(shape))
    return sum(0 if name.endswith("_scales") else 2 * count if name.endswith("_blocks") else count
               for name, count in counts)


def make_shards(shape):
    """Lists of (name, shape) of at most SHARD_BYTES each."""
    shards, used = [[]], 0
    for name, dimensions in tensor_shapes(shape):
        size = size_of(name, dimensions)
        if used + size > SHARD_BYTES and shards[-1]:
            shards.append([])
            used = 0
        shards[-1].append((name, dimensions))
        used += size
    return shards


def draw(shape, name, dimensions, generator, device):
    if name.endswith("_blocks"):
        return torch.randint(256, dimensions, dtype=torch.uint8, device=device, generator=generator).cpu()
    if name.endswith("_scales"):  # 2^-9 to 2^-7: with any codes the weights deviate by 0.015
        return torch.randint(118, 121, dimensions, dtype=torch.uint8, device=device, generator=generator).cpu()
    if name.endswith("e_score_correction_bias"):
        return torch.zeros(dimensions)
    if name.endswith(".bias"):
        return torch.zeros(dimensions, dtype=torch.bfloat16)
    if isinstance(shape, HybridShape) and len(dimensions) == 1:
        dtype = torch.float32 if random_hybrids.is_exact(name) else torch.bfloat16
        return torch.full(dimensions, random_hybrids.vector_of(name), dtype=dtype)
    if len(dimensions) == 1:  # norms
        value = random_experts.norm_of(name) if isinstance(shape, MoeShape) else 1.0
        return torch.full(dimensions, value, dtype=torch.bfloat16)
    weight = torch.empty(dimensions, dtype=torch.bfloat16, device=device)
    kind = {MoeShape: random_experts, HybridShape: random_hybrids}.get(type(shape))
    deviation = kind.deviation_of(name) if kind else 0.02
    return weight.normal_(0.0, deviation, generator=generator).cpu()


def write_shard(path, shape, tensors, seed, device):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, dimensions in tensors:
        end = offset + size_of(name, dimensions)
        header[name] = {"dtype": type_of(name), "shape": list(dimensions), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator(device).manual_seed(seed)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, dimensions in tensors:
            raw = draw(shape, name, dimensions, generator, device).view(torch.uint8).reshape(-1)
            file.write(raw.numpy())
    return offset


def write_weights(shape, folder, threads):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shards = make_shards(shape)
    names = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        sizes = list(pool.map(lambda job: write_shard(folder / job[0], shape, job[1], job[2], device),
                              [(names[i], shards[i], i) for i in range(len(shards))]))
    index = {"metadata": {"total_size": sum(sizes)},
             "weight_map": {name: file for file, shard in zip(names, shards) for name, _ in shard}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    return sum(sizes)


def gpt2_config(shape):
    return {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "torch_dtype": "bfloat16",
            "n_embd": shape.hidden, "n_inner": shape.intermediate, "n_layer": shape.layers,
            "n_head": shape.heads, "n_positions": 1024, "vocab_size": shape.vocabulary,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True,
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": None, "eos_token_id": 2}


def gemma4_config(shape):
    kinds = ["full_attention" if shape.full(layer) else "sliding_attention" for layer in range(shape.layers)]
    return {"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "torch_dtype": "bfloat16",
            "hidden_activation": "gelu_pytorch_tanh", "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads, "num_key_value_heads": shape.key_heads, "head_dim": shape.head_size,
            "global_head_dim": shape.full_head_size, "attention_k_eq_v": shape.full_key_heads > 0,
            "num_global_key_value_heads": shape.full_key_heads or None, "vocab_size": shape.vocabulary,
            "vocab_size_per_layer_input": shape.vocabulary, "hidden_size_per_layer_input": shape.layer_input,
            "num_kv_shared_layers": shape.sharing, "use_double_wide_mlp": shape.wide, "layer_types": kinds,
            "sliding_window": shape.window, "final_logit_softcapping": 30.0, "rms_norm_eps": 1e-6,
            "max_position_embeddings": 131072, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 2,
            "pad_token_id": 0}


def write_config(shape, folder):
    own = random_experts.config if isinstance(shape, MoeShape) else {
        "gpt2": gpt2_config, "gemma4_text": gemma4_config, "qwen3_5_text": random_hybrids.config}.get(shape.family)
    if own:
        (folder / "config.json").write_text(json.dumps(own(shape), indent=2))
        return
    qwen = shape.family == "qwen3"
    config = {
        "architectures": ["Qwen3ForCausalLM" if qwen else "LlamaForCausalLM"],
        "model_type": shape.family, "torch_dtype": "bfloat16", "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads, "head_dim": shape.head_size,
        "vocab_size": shape.vocabulary, "tie_word_embeddings": shape.tied,
        "max_position_embeddings": 40960 if qwen else 131072,
        "rope_theta": 1e6 if qwen else 5e5, "rope_scaling": None,
        "rms_norm_eps": 1e-6 if qwen else 1e-5, "attention_bias": False, "attention_dropout": 0.0,
        "initializer_range": 0.02, "use_cache": True,
        "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0,
    }
    if shape.family == "gemma3_text":
        config |= {"architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
                   "query_pre_attn_scalar": 168 if shape.head_size == 128 else 256, "sliding_window": 1024,
                   "sliding_window_pattern": 6, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                   "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rms_norm_eps": 1e-6}
        del config["hidden_act"]
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def byte_characters():
    """The printable character that stands for each byte in a ByteLevel vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


def write_tokenizer(folder):
    vocabulary = {token: i for i, token in enumerate(SPECIAL_TOKENS + byte_characters())}
    added = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, token in enumerate(SPECIAL_TOKENS)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>", "bos_token": None, "add_bos_token": False,
        "chat_template": TEMPLATE}, indent=2))


def write_rows(path, count, tokens):
    """Words from a small vocabulary, so that there is something to learn; the end token counts."""
    source = random.Random(7)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 9)))
             for _ in range(200)]
    with open(path, "w", encoding="ascii") as file:
        for _ in range(count):
            text = " ".join(source.choices(words, k=tokens))[:tokens - 1]
            file.write(json.dumps({"text": text}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SHAPES)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rows", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2048)
    options = parser.parse_args()
    start = time.monotonic()
    shape = SHAPES[options.size]
    options.folder.mkdir(parents=True, exist_ok=True)
    written = write_weights(shape, options.folder, options.threads)
    write_config(shape, options.folder)
    write_tokenizer(options.folder)
    if options.rows:
        write_rows(options.rows, options.count, options.tokens)
    seconds = time.monotonic() - start
    print(f"{options.size}: {parameters_of(shape) / 1e9:.2f} B parameters, {written / 1e9:.1f} GB in "
          f"{seconds:.1f} s ({written / 1e9 / seconds:.1f} GB/s)")


if __name__ == "__main__":
    main()
