"""Tiny models as quantised checkpoints are published, and what they compute once de-quantised.

`nf4_*` are what transformers writes of a model quantised by bitsandbytes on a CPU. `fp8_blocks` is made
from the format's definition, for transformers reads no partial blocks. The reference is the de-quantised
model in float32, with a PEFT adapter as in `families`. tests/parity/README.md lists the files.
"""

import copy
import json
import tempfile

import bitsandbytes
import torch
import transformers
from safetensors.torch import load_file, save_file

import families

# Weights of more than 16,384 elements have more than one nested block. Rows are whole blocks of 64, for
# bitsandbytes' CPU code reads no others rightly (its CUDA code does); blocks of 128 x 128 end early.
LLAMA = families.llama(hidden_size=192, intermediate_size=128, num_hidden_layers=2, head_dim=32,
                       rope_theta=10000.0, tie_word_embeddings=True)
# Its weights stand transposed in a plain checkpoint, and as those of all others in one in 4 bits.
GPT2 = families.gpt2(n_embd=128, n_inner=192, tie_word_embeddings=True)
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


def build(name):
    generator = families.seeded(name)
    values = dict(GPT2 if name == "nf4_transposed" else LLAMA)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager")
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


def make_case(name, folder):
    folder.mkdir(parents=True)
    model, generator = build(name)
    write = write_fp8 if name == FP8_CASE else lambda m, f: write_nf4(name, m, f)
    dequantized = write(model, folder)
    with torch.no_grad():
        for module, weight in linear_weights(model):
            if module in dequantized:
                weight.copy_(dequantized[module])
    input_ids = families.random_tokens((families.ROWS, families.LENGTH), generator)
    labels = input_ids.clone()
    labels[1, :9] = -100
    logits, loss = families.forward_backward(model, input_ids, labels)
    save_file({"input_ids": input_ids, "labels": labels, "logits": logits, "loss": loss},
              folder / "rows.safetensors")
    # bitsandbytes would round these to bfloat16 for the computation; so are they kept, to be small.
    save_file({f"{module}.weight": weight.to(torch.bfloat16)
               for module, weight in dequantized.items() if ".0.self_attn." in module or ".0.attn." in module},
              folder / "dequantized.safetensors")
    families.lora_files(model, generator, input_ids, labels, folder)


def check_loads(name, folder):
    """transformers reads the folder and computes, with bitsandbytes' products, the logits kept."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", device_map="cpu")
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
    for name in [*NF4_CASES, FP8_CASE]:
        make_case(name, out / name)
        if name != FP8_CASE:
            check_loads(name, out / name)
        print(f"stored/{name}")
