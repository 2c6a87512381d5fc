"""Tiny models as quantised checkpoints are published, and what they compute once de-quantised.

`nf4_*` are what transformers writes of a model quantised by bitsandbytes on a CPU. `fp8_blocks` is made
from the format's definition, for transformers reads no partial blocks, and so is `mxfp4`, for it writes
none on a CPU. The reference is the de-quantised
model in float32, with a PEFT adapter as in `families`. tests/parity/README.md lists the files.
"""

import copy
import json
import tempfile

import bitsandbytes
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import experts
import families
import family_steps
import mxfp4

# Weights of more than 16,384 elements have more than one nested block. Rows are whole blocks of 64, for
# bitsandbytes' CPU code reads no others rightly (its CUDA code does); blocks of 128 x 128 end early.
LLAMA = families.llama(hidden_size=192, intermediate_size=128, num_hidden_layers=2, head_dim=32,
                       rope_theta=10000.0, tie_word_embeddings=True)
# Its weights stand transposed in a plain checkpoint, and as those of all others in one in 4 bits.
GPT2 = families.gpt2(n_embd=128, n_inner=192, tie_word_embeddings=True)
GPT_OSS = experts.cases(families.SHAPE)["gpt_oss"] | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
SEEDS = {"mxfp4": "mxfp4 0"}  # with which choices of experts are clear
CONFIGS = {"nf4_transposed": GPT2, "mxfp4": GPT_OSS}
NF4_CASES = {
    # As the repositories of Unsloth's users: some linears are left as they are, alone (k_proj beside
    # quantised q_proj and v_proj) or with all that read the same input.
    "nf4_double_quant": (True, ["lm_head", "model.layers.0.self_attn.k_proj", "model.layers.1.mlp"]),
    "nf4_plain_scales": (False, None),
    "nf4_transposed": (True, ["lm_head", "transformer.h.1.attn"]),
}
FP8_CASE = "fp8_blocks"
FP8_BLOCK = 128
FP8_SKIPPED = ["lm_head", "model.layers.1.self_attn.o_proj"]
MXFP4_CASE = "mxfp4"
# Of the powers of two of each stack, such that many gates and ups are clamped.
MXFP4_EXPONENTS = {"gate_up_proj": (-4, 0), "down_proj": (-9, -6)}
MXFP4_SKIPPED = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]


def build(name):
    generator = families.seeded(SEEDS.get(name, name))
    values = copy.deepcopy(CONFIGS.get(name, LLAMA))
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = transformers.AutoModelForCausalLM.from_config(config, **families.EAGER)
    families.randomize(model, generator)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(0.25)
        for module, weight in linear_weights(model):
            size = torch.exp2(families.noise_of((weight.shape[0], 1), generator))
            weight.copy_((weight * size / size.mean()).to(torch.bfloat16))  # scales that differ
    return model.train(), generator


def linear_weights(model):
    """(name, [outputs, inputs]) of each linear of the blocks."""
    for name, module in model.named_modules():
        if isinstance(module, transformers.pytorch_utils.Conv1D):
            yield name, module.weight.t()
        elif isinstance(module, torch.nn.Linear) and name != "lm_head":
            yield name, module.weight


def quantised_weights(model):
    """The same, and [experts, outputs, inputs] of each stack."""
    yield from linear_weights(model)
    for name, parameter in model.named_parameters():
        if experts.is_stack(name):
            yield name, parameter.transpose(1, 2)


def write_nf4(name, model, folder):
    double_quant, skipped = NF4_CASES[name]
    quantization = transformers.BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=double_quant,
        bnb_4bit_compute_dtype=torch.bfloat16, llm_int8_skip_modules=skipped)
    with tempfile.TemporaryDirectory() as plain:
        # A copy: the conversion rounds the rotary frequencies too.
        copy.deepcopy(model).to(torch.bfloat16).save_pretrained(plain)
        quantized = transformers.AutoModelForCausalLM.from_pretrained(
            plain, dtype=torch.bfloat16, quantization_config=quantization, device_map="cpu")
    quantized.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    config = json.loads((folder / "config.json").read_text())
    config.pop("transformers_version")
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    # In one order, whatever order transformers writes.
    weights = load_file(folder / "model.safetensors")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return {n: bitsandbytes.functional.dequantize_4bit(m.weight.data, float32_state(m))
            for n, m in quantized.named_modules() if isinstance(m, bitsandbytes.nn.Linear4bit)}


def float32_state(module):
    """The state of a weight, but for the type that it is de-quantised to."""
    state = module.weight.quant_state
    state.dtype = torch.float32
    return state


def fp8_blocks(weight):
    """(e4m3 codes, the scale of each block of 128 x 128); the last blocks may be partial."""
    rows, columns = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -columns % FP8_BLOCK, 0, -rows % FP8_BLOCK))
    blocks = padded.reshape(-1, FP8_BLOCK, padded.shape[1] // FP8_BLOCK, FP8_BLOCK)
    scale = blocks.abs().amax(dim=(1, 3)) / 448
    codes = (blocks / scale[:, None, :, None]).reshape(padded.shape)[:rows, :columns]
    return codes.to(torch.float8_e4m3fn).contiguous(), scale


def spread(scale, shape):
    """The scale of every element."""
    wide = scale.repeat_interleave(FP8_BLOCK, dim=0).repeat_interleave(FP8_BLOCK, dim=1)
    return wide[: shape[0], : shape[1]]


def write_fp8(model, folder):
    weights, dequantized = {}, {}
    linears = dict(linear_weights(model))
    for name, parameter in model.named_parameters():
        module = name.removesuffix(".weight")
        if module not in linears or module in FP8_SKIPPED:
            weights[name] = parameter.detach().to(torch.bfloat16)
            continue
        codes, scale = fp8_blocks(parameter.detach())
        weights[name], weights[f"{name}_scale_inv"] = codes, scale
        dequantized[module] = codes.to(torch.float32) * spread(scale, codes.shape)
    config = {**LLAMA, "quantization_config": {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
        "weight_block_size": [FP8_BLOCK, FP8_BLOCK], "modules_to_not_convert": FP8_SKIPPED}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    families.save_weights(weights, folder, 1)
    return dequantized


def write_mxfp4(model, folder):
    generator = families.seeded("planes")
    weights, dequantized = {}, {}
    for name, parameter in model.named_parameters():
        if not experts.is_stack(name):
            weights[name] = parameter.detach().to(torch.bfloat16)
            continue
        count, inputs, outputs = parameter.shape
        planes = mxfp4.random_planes(count, outputs, inputs, MXFP4_EXPONENTS[name.rpartition(".")[2]], generator)
        weights[f"{name}_blocks"], weights[f"{name}_scales"] = planes
        dequantized[name] = mxfp4.dequantize(*planes)
        if not torch.equal(dequantized[name].transpose(1, 2), convert_moe_packed_tensors(*planes).float()):
            raise AssertionError(f"{name}: transformers de-quantises to other values")
    config = {**GPT_OSS, "quantization_config": {"modules_to_not_convert": MXFP4_SKIPPED, "quant_method": "mxfp4"}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    families.save_weights(weights, folder, 1)
    return dequantized


def write_case(name, model, folder):
    """The case's files; what the quantised weights stand for, by linear or stack."""
    if name in NF4_CASES:
        return write_nf4(name, model, folder)
    return write_fp8(model, folder) if name == FP8_CASE else write_mxfp4(model, folder)


def make_case(name, folder):
    folder.mkdir(parents=True)
    model, generator = build(name)
    dequantized = write_case(name, model, folder)
    with torch.no_grad():
        for module, weight in quantised_weights(model):
            if module in dequantized:
                weight.copy_(dequantized[module])
    input_ids = families.random_tokens((families.ROWS, families.LENGTH), generator)
    labels = input_ids.clone()
    labels[1, :9] = -100
    with experts.Choices() as choices:
        logits, loss = families.forward_backward(model, input_ids, labels)
        save_file({"input_ids": input_ids, "labels": labels, "logits": logits, "loss": loss},
                  folder / "rows.safetensors")
        # bitsandbytes would round these to bfloat16 for the computation; so are they kept, to be small.
        save_file({f"{module}.weight": weight.to(torch.bfloat16).flatten(0, -2) for module, weight in dequantized.items()
                   if any(part in module for part in (".0.self_attn.", ".0.attn.", ".0.mlp.experts."))},
                  folder / "dequantized.safetensors")
        rank = 3 if name == MXFP4_CASE else families.LORA_RANK
        adapted = families.lora_files(model, generator, input_ids, labels, folder, rank=rank)
        if name == MXFP4_CASE:
            # The linears that are plain in the files in NF4, experts as the files have them.
            family_steps.quantise_linears(adapted, experts.ATTENTION)
            families.adapted_file(adapted, input_ids, labels, folder / "qlora.safetensors")
    if name == MXFP4_CASE:
        experts.check_clear(name, choices)


def check_loads(name, folder):
    """transformers reads the folder and computes, with bitsandbytes' products, the logits kept."""
    options = {"quantization_config": transformers.Mxfp4Config(dequantize=True)} if name == MXFP4_CASE else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, device_map="cpu", **families.EAGER, **options)
    if name == MXFP4_CASE:
        model.float()  # transformers de-quantises to bfloat16, whatever is asked for
    model.train()  # bitsandbytes repacks weights for inference on some CPUs, and fails on these
    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.compute_dtype = torch.float32  # not bfloat16, as config.json has it
    expected = load_file(folder / "rows.safetensors")
    logits = model(input_ids=expected["input_ids"]).logits.detach()
    error = (logits - expected["logits"]).norm() / expected["logits"].norm()
    if error > 1e-5:
        raise AssertionError(f"{name}: the saved model's logits differ from those kept by {error}")


def make(out):
    torch.set_num_threads(1)
    for name in [*NF4_CASES, FP8_CASE, MXFP4_CASE]:
        make_case(name, out / name)
        if name != FP8_CASE:
            check_loads(name, out / name)
        print(f"stored/{name}")
