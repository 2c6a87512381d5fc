#!/usr/bin/env python3
"""Makes the NF4 goldens of bitsandbytes' CUDA kernels, on a machine with an NVIDIA GPU.

    python3 deploy/gpu/make_nf4_goldens.py --out FOLDER

Reads the weights of tests/parity/goldens/nf4/*.safetensors, quantises them on the GPU with and
without double quantisation, and writes files of the same names and results to FOLDER, to be kept in
tests/parity/goldens/nf4_cuda. Prints how they compare with the definition (the files read); the exit
status is 1 if anything but the order of one sum differs: everything must be equal bit for bit, the
offset within one unit in the last place, and with another offset the values made from it within
their rounding.

Needs torch and bitsandbytes alone; the few lines that read and write safetensors are here for that.
"""

import argparse
import json
import pathlib
import sys

import bitsandbytes
import bitsandbytes.functional as bnb
import torch

DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "U8": torch.uint8}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = torch.frombuffer(bytearray(data[start + begin : start + end]), dtype=torch.uint8)
            tensors[name] = raw.view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors, metadata):
    header, parts, offset = {"__metadata__": metadata}, [], 0
    for name, tensor in tensors.items():
        raw = bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).tolist())
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(raw)]}
        parts.append(raw)
        offset += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


def quantize_on_gpu(weight):
    """The tensors of the definition's file but for the weight, made by bitsandbytes."""
    on_gpu = weight.cuda()
    packed, nested = bnb.quantize_4bit(on_gpu, blocksize=64, quant_type="nf4",
                                       compress_statistics=True)
    packed_plain, plain = bnb.quantize_4bit(on_gpu, blocksize=64, quant_type="nf4",
                                            compress_statistics=False)
    if not torch.equal(packed, packed_plain):
        raise AssertionError("double quantisation changed the 4-bit codes")
    return {
        "packed": packed.reshape(-1).cpu(),
        "absmax": plain.absmax.cpu(),
        "absmax_codes": nested.absmax.cpu(),
        "absmax2": nested.state2.absmax.cpu(),
        "offset": nested.offset.reshape(1).cpu(),
        "dequantized": bnb.dequantize_4bit(packed, nested).cpu(),
    }


def float_distance(a, b):
    """Units in the last place between two float32 tensors of equal signs."""
    return (a.view(torch.int32) - b.view(torch.int32)).abs().max().item()


def compare(name, made, defined):
    """Prints each difference; true if there is none that the sum's order does not explain."""
    offset_ulp = float_distance(made["offset"], defined["offset"])
    from_offset = {"absmax_codes", "absmax2", "dequantized"}
    good = offset_ulp <= 1
    print(f"{name}: offset differs by {offset_ulp} units in the last place")
    for key, value in made.items():
        differing = (value != defined[key]).sum().item()
        if key != "offset" and differing:
            explained = offset_ulp == 1 and key in from_offset
            good = good and explained
            print(f"{name}: {key}: {differing} of {value.numel()} differ"
                  + (" (made from the offset)" if explained else ""))
    return good


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder to write to")
    parser.add_argument("--weights", type=pathlib.Path, default=root / "tests/parity/goldens/nf4",
                        help="folder of the definition's files (default: tests/parity/goldens/nf4)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("make_nf4_goldens: this needs an NVIDIA GPU that torch can use, and found none")
    sources = sorted(args.weights.glob("*.safetensors"))
    if not sources:
        sys.exit(f"make_nf4_goldens: {args.weights} holds no .safetensors files")
    args.out.mkdir(parents=True, exist_ok=True)
    metadata = {"made_by": f"bitsandbytes {bitsandbytes.__version__}, torch {torch.__version__}, "
                           f"{torch.cuda.get_device_name()}"}
    good = True
    for source in sources:
        defined = read_safetensors(source)
        made = quantize_on_gpu(defined["weight"])
        write_safetensors(args.out / source.name, made, metadata)
        good = compare(source.stem, made, defined) and good
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
