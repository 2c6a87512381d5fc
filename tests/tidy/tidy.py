#!/usr/bin/env python3
"""Checks the rules of the tree (docs/development.md): include edges, lengths, banned calls, dead
files, comments of every rpc and public class, links of the documents, and that no binary links both
LibTorch and protobuf.

    python3 tests/tidy/tidy.py [--binaries DIR]

Prints file:line: message for each breach and ends with 1 if there is any.
"""

import argparse
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import rules  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCE_SUFFIXES = {".cc", ".h", ".cu", ".cuh", ".def"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".proto", ".py", ".rs", ".md", ".toml", ".cmake", ".sh", ".txt", ".js", ".css", ".html"}


def tracked_files():
    """Files of the tree, tracked or not yet added, without ignored ones; of an exported tree, all but
    what a build makes."""
    listing = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"],
                             cwd=ROOT, check=False, capture_output=True, text=True)
    if listing.returncode == 0:
        return [line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]
    made = {".git", "build", "dist", "__pycache__"}
    return [str(path.relative_to(ROOT)) for path in sorted(ROOT.rglob("*"))
            if path.is_file() and not made.intersection(path.relative_to(ROOT).parts)]


def folder_of(path, table):
    """The longest prefix of path that is a key of the table."""
    best = None
    for folder in table:
        if path.startswith(folder + "/") and (best is None or len(folder) > len(best)):
            best = folder
    return best


def check_includes(path, lines, report):
    folder = folder_of(path, rules.EDGES)
    if folder is None:
        return
    allowed = rules.EDGES[folder]
    for number, line in enumerate(lines, 1):
        match = re.match(r'#include "([^"]+)"', line)
        if not match:
            continue
        target = match.group(1)
        if target.startswith(("sft/v1/", "google/rpc/", "grpc/health/")):
            target = "proto/" + target
        if target.startswith(folder + "/") or target == "common/base/version.h":
            continue
        if any(target.startswith(edge + "/") for edge in allowed):
            continue
        if target.endswith((".h", ".def")) and "/" in target:
            report(path, number, f"{folder} may not include {target} (tests/tidy/rules.py: EDGES)")


def check_banned(path, lines, report):
    if path.startswith("tests/"):
        return
    for number, line in enumerate(lines, 1):
        code = line.split("//")[0] if "TODO" not in line and "FIXME" not in line else line
        for pattern, allowed, instead in rules.BANNED:
            if re.search(pattern, code) and not any(path.startswith(a) for a in allowed):
                report(path, number, f"banned: {pattern}; use {instead}")
        if path.endswith((".h", ".cuh")):
            for pattern, instead in rules.BANNED_IN_HEADERS:
                if re.search(pattern, code):
                    report(path, number, f"banned in headers: {pattern}; use {instead}")


def check_processes(path, lines, report):
    for number, line in enumerate(lines, 1):
        if re.match(rules.TORCH, line) and not path.startswith(tuple(rules.TORCH_FOLDERS)):
            report(path, number, "LibTorch outside the engine")
        if re.match(rules.PROTOBUF, line) and not path.startswith(tuple(rules.PROTOBUF_FOLDERS)):
            report(path, number, "protobuf or gRPC outside the service")


def check_text(path, lines, text, report):
    if text and not text.endswith("\n"):
        report(path, len(lines), "no newline at the end")
    for number, line in enumerate(lines, 1):
        if line.rstrip() != line:
            report(path, number, "space at the end of the line")
        if "\t" in line and not path.endswith("Makefile"):
            report(path, number, "tab")
        limit = 120 if path.endswith((".cmake", "CMakeLists.txt", ".py", ".js")) else 100
        if len(line) > limit and path.endswith(tuple(SOURCE_SUFFIXES) + (".js",)) and "http" not in line:
            report(path, number, f"line of {len(line)} characters (limit {limit})")
    if path.endswith((".h", ".cuh")) and "#pragma once" not in text:
        report(path, 1, "no #pragma once")


def check_dashboard(path, lines, report):
    """A module imports along the edges, makes no markup of text and names no other host."""
    name = path[len(rules.DASHBOARD):]
    own = name.split("/")[0] if "/" in name else ""
    for number, line in enumerate(lines, 1):
        imported = re.search(r"(?:from|import) '([^']+)'", line)
        if imported:
            target = pathlib.PurePosixPath(own, imported[1])
            folder = imported[1].split("/")[1] if imported[1].startswith("../") or own == "" else own
            if not imported[1].startswith(".") or folder not in rules.DASHBOARD_EDGES[own]:
                report(path, number, f"may not import {target} (tests/tidy/rules.py: DASHBOARD_EDGES)")
        for pattern, instead in rules.DASHBOARD_BANNED:
            if re.search(pattern, line):
                report(path, number, f"banned: {re.search(pattern, line)[0]}; use {instead}")


def strip_code(text):
    """Comments, strings and character constants blanked, so that braces can be counted."""
    pattern = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/',
                         re.S)
    return pattern.sub(lambda m: re.sub(r"[^\n]", " ", m.group(0)), text)


def functions(text):
    """(first line, last line, heading) of each function body, found by braces at namespace or class
    level: good enough for code that a formatter laid out."""
    code = strip_code(text)
    stack, start, found = [], 0, []
    line = 1
    for position, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char in ";":
            start = position + 1
        elif char == "{":
            heading = code[start:position].strip()
            is_scope = re.search(r"\b(namespace|class|struct|enum|union|extern)\b[^()]*$", heading) is not None
            inside = any(kind == "function" for kind, _, _ in stack)
            kind = "scope" if is_scope or heading == "" else "function"
            if kind == "function" and (inside or ")" not in heading):
                kind = "block"
            stack.append((kind, line, " ".join(heading.split())[-80:]))
            start = position + 1
        elif char == "}" and stack:
            kind, first, heading = stack.pop()
            if kind == "function":
                found.append((first, line, heading))
            start = position + 1
    return found


def check_lengths(path, lines, text, report, warn):
    if path.startswith("tests/") and not path.endswith((".cc", ".h")):
        return
    if len(lines) > rules.FILE_HARD and path not in rules.EXCEPTIONS:
        report(path, 1, f"{len(lines)} lines (hard limit {rules.FILE_HARD})")
    elif len(lines) > rules.FILE_SOFT:
        warn(path, 1, f"{len(lines)} lines (soft limit {rules.FILE_SOFT})")
    for first, last, heading in functions(text):
        length = last - first + 1
        if length > rules.FUNCTION_HARD and f"{path}:{heading}" not in rules.EXCEPTIONS:
            report(path, first, f"function of {length} lines (hard limit {rules.FUNCTION_HARD}): {heading}")
        elif length > rules.FUNCTION_SOFT:
            warn(path, first, f"function of {length} lines (soft limit {rules.FUNCTION_SOFT}): {heading}")


def check_comments(path, lines, report):
    """Every rpc, and every class and struct that a header exports, has a comment above it."""
    for number, line in enumerate(lines, 1):
        if path.endswith(".proto"):
            named = re.match(r"\s*rpc (\w+)", line)
        elif path.endswith(".h") and not path.startswith("tests/"):
            named = re.match(r"(?:class|struct) (?:SFT_TSA\(.*\) )?(\w+)[^;]*$", line)
        else:
            return
        if not named:
            continue
        above = number - 2
        while above >= 0 and re.match(r"\s*(template\b|\[\[)", lines[above]):
            above -= 1
        if above < 0 or not lines[above].lstrip().startswith("//"):
            report(path, number, f"{named.group(1)} has no comment")


def check_dead_files(files, contents, report):
    """Every source is named in a CMakeLists.txt; every header is included somewhere."""
    cmake = {}
    for path in files:
        if path.endswith(("CMakeLists.txt", ".cmake")):
            cmake[str(pathlib.PurePosixPath(path).parent)] = contents[path]
    everything = "\n".join(contents[p] for p in files if p.endswith(tuple(SOURCE_SUFFIXES)))
    included = set(re.findall(r'#include "([^"]+)"', everything))
    for path in files:
        pure = pathlib.PurePosixPath(path)
        if pure.suffix in {".cc", ".cu"}:
            listed = False
            for parent in [pure.parent, *pure.parent.parents]:
                relative = str(pure.relative_to(parent)) if str(parent) != "." else path
                if re.search(rf"(?<![\w/]){re.escape(relative)}(?!\w)", cmake.get(str(parent), "")):
                    listed = True
                    break
            if not listed:
                report(path, 1, "in no CMakeLists.txt: nothing builds it")
        elif pure.suffix in {".h", ".cuh", ".def"} and path not in included:
            report(path, 1, "no file includes it")


def check_links(path, text, report):
    if not path.endswith(".md"):
        return
    for match in re.finditer(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        target = match.group(1)
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        if not (ROOT / path).parent.joinpath(target).exists():
            line = text.count("\n", 0, match.start()) + 1
            report(path, line, f"broken link: {target}")


def check_binaries(folder, report):
    """No process links both LibTorch and protobuf or gRPC: NEEDED, and names of static archives."""
    for binary in sorted(pathlib.Path(folder).glob("sft*")):
        needed = subprocess.run(["readelf", "-d", binary], capture_output=True, text=True).stdout
        libraries = re.findall(r"NEEDED.*\[(.*)\]", needed)
        torch = any(name.startswith(("libtorch", "libc10")) for name in libraries)
        protobuf = any(name.startswith(("libprotobuf", "libgrpc")) for name in libraries)
        if torch and not protobuf:
            data = binary.read_bytes()
            protobuf = b"google/protobuf/descriptor" in data or b"grpc_call_cancel" in data
        if torch and protobuf:
            report(str(binary), 0, "links both LibTorch and protobuf or gRPC")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binaries", help="folder of built programs to check as well")
    parser.add_argument("--warnings", action="store_true", help="print what is over a soft limit")
    arguments = parser.parse_args()
    breaches, warnings = [], []

    def report(path, line, message):
        breaches.append(f"{path}:{line}: {message}")

    def warn(path, line, message):
        warnings.append(f"{path}:{line}: {message}")

    files = tracked_files()
    contents = {}
    for path in files:
        if path.startswith(rules.DASHBOARD + "vendor/"):
            continue  # made by others
        if pathlib.PurePosixPath(path).suffix in TEXT_SUFFIXES or path.endswith("Makefile"):
            contents[path] = (ROOT / path).read_text(encoding="utf-8")
    for path, text in contents.items():
        lines = text.splitlines()
        if path.endswith(tuple(SOURCE_SUFFIXES)):
            check_includes(path, lines, report)
            check_banned(path, lines, report)
            check_processes(path, lines, report)
            check_lengths(path, lines, text, report, warn)
        if path.endswith(tuple(SOURCE_SUFFIXES) + (".proto", ".py", ".rs", ".js", ".css", ".html")):
            check_text(path, lines, text, report)
        if path.startswith(rules.DASHBOARD) and path.endswith(".js"):
            check_dashboard(path, lines, report)
        check_comments(path, lines, report)
        check_links(path, text, report)
    check_dead_files([p for p in files if p in contents], contents, report)
    if arguments.binaries:
        check_binaries(arguments.binaries, report)

    for line in breaches:
        print(line)
    if arguments.warnings:
        for line in warnings:
            print("warning:", line)
    print(f"tidy: {len(contents)} files, {len(breaches)} breaches, {len(warnings)} over a soft limit")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
