#!/usr/bin/env python3
"""Embeds the files of a folder into a program: embed_files.py FOLDER OUT writes OUT/assets.S, which has each
file as it is and with gzip -9, and OUT/assets.inc, a table of them. Files that the same names reach change their
folder, a hash of all contents, so that browsers may keep them for ever."""

import gzip
import hashlib
import pathlib
import sys

TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
         ".ico": "image/x-icon", ".txt": "text/plain; charset=utf-8",
         ".woff2": "font/woff2"}
SHELL = "index.html"


def files_of(folder):
    """Path -> content of what is served: sorted, without notes and what begins with a dot."""
    files = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and path.suffix in TYPES and not any(part.startswith(".") for part in name.split("/")):
            files[name] = path.read_bytes()
    return files


def main():
    folder, out = map(pathlib.Path, sys.argv[1:])
    files = files_of(folder)
    if SHELL not in files:
        sys.exit(f"embed_files: {folder} has no {SHELL}")
    digest = hashlib.sha256()
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    version = digest.hexdigest()[:16]
    files[SHELL] = files[SHELL].replace(b"/assets/", f"/assets/{version}/".encode())
    out.mkdir(parents=True, exist_ok=True)
    assembler = ['.section .rodata,"a"\n']
    table = [f'constexpr char kAssetsVersion[] = "{version}";\n']
    rows = []
    for number, (name, content) in enumerate(files.items()):
        for form, data in (("plain", content), ("gzip", gzip.compress(content, 9, mtime=0))):
            label, path = f"sft_asset_{number}_{form}", out / f"{number}.{form}"
            path.write_bytes(data)
            assembler.append(f'.global {label}, {label}_end\n{label}:\n.incbin "{path}"\n{label}_end:\n.byte 0\n')
            table.append(f'extern "C" const char {label}[], {label}_end[];\n')
        text = lambda form, number=number: f"sft_asset_{number}_{form}, sft_asset_{number}_{form}_end"
        rows.append(f'    {{"{name}", "{TYPES[pathlib.PurePath(name).suffix]}", {{{text("plain")}}}, '
                    f'{{{text("gzip")}}}}},\n')
    assembler.append('.section .note.GNU-stack,"",%progbits\n')
    table.append("const Embedded kEmbedded[] = {\n" + "".join(rows) + "};\n")
    (out / "assets.S").write_text("".join(assembler))
    (out / "assets.inc").write_text("".join(table))


if __name__ == "__main__":
    main()
