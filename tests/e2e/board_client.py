"""Whether Grafana's published types of a dashboard, its panels and its queries take a board as it is: run by monitoring_test.py
in the Python environment that has them (grafana-foundation-sdk). Argument: the board. Prints each thing that they do not know."""

import enum
import json
import pathlib
import sys
import types
import typing

from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(before, after, path):
    """What a board has that is gone once the types have read and written it: they have no such key."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(value, after[key], f"{path}.{key}")
            else:
                yield f"{path}.{key}: unknown"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, (one, other) in enumerate(zip(before, after)):
            yield from lost(one, other, f"{path}[{number}]")
    elif before != after:
        yield f"{path}: {before!r} was read as {after!r}"


def wrong(value, hint, path):
    """What is not of its type: the types themselves look at no value."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        likely = [type(value)] if type(value) in parts else [part for part in parts if part is not type(None)]
        yield from min((list(wrong(value, part, path)) for part in likely), key=len)
    elif origin is typing.Literal:
        if value not in parts:
            yield f"{path}: {value!r} is none of {list(parts)}"
    elif origin is list and isinstance(value, list):
        for number, each in enumerate(value):
            yield from wrong(each, parts[0], f"{path}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, each in value.items():
            yield from wrong(each, parts[1], f"{path}.{key}")
    elif origin is not None:
        yield f"{path}: {value!r} is no {hint}"
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [each.value for each in hint]:
            yield f"{path}: {value!r} is none of {[each.value for each in hint]}"
    elif hint in (str, int, float, bool, type(None)):
        takes = (int, float) if hint is float else hint
        if not isinstance(value, takes) or isinstance(value, bool) != (hint is bool):
            yield f"{path}: {value!r} is no {hint.__name__}"
    elif isinstance(hint, type) and not isinstance(value, hint):
        yield f"{path}: {value!r} is no {hint.__name__}"
    elif type(value).__module__.startswith("grafana_foundation_sdk."):
        for name, each in typing.get_type_hints(type(value)).items():
            yield from wrong(getattr(value, name), each, f"{path}.{name}")


def main():
    plugins.register_default_plugins()
    text = json.loads(pathlib.Path(sys.argv[1]).read_text())
    board = Dashboard.from_json(text)
    found = [*lost(text, json.loads(JSONEncoder().encode(board)), "board"), *wrong(board, Dashboard, "board")]
    for each in found:
        print(each)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
