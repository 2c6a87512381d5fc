"""Writes the Parquet and Arrow files of this folder and, beside each, its rows as JSON Lines: what a reader has to find.

python3 -m pip install pyarrow==21.0.0; python3 make_files.py
"""

import datetime
import decimal
import json
import math
import pathlib
import uuid

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

HERE = pathlib.Path(__file__).parent
KEPT = ("enum", "const", "default")


def plain(value, keep=False):
    """A row as it was meant: members that are null only because another row has them are left out."""
    if isinstance(value, dict):
        return {key: plain(item, keep or key in KEPT) for key, item in value.items()
                if keep or not (item is None or (isinstance(item, float) and not math.isfinite(item)))}
    if isinstance(value, list):
        return [plain(item, keep) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_rows(name, rows):
    text = "".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows)
    (HERE / f"{name}.jsonl").write_text(text, encoding="utf-8")


def write(name, table, rows=None, **options):
    pq.write_table(table, HERE / f"{name}.parquet", store_schema=False, write_statistics=False, **options)
    if rows is not None:
        write_rows(name, rows)


CHAT = [
    {"messages": [{"role": "user", "content": "2+2? \"quoted\"\n\\ \u2028 \U0001f600"},
                  {"role": "assistant", "content": "4"}], "source": "a", "score": 0.5},
    {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "Weather in Bonn?"},
                  {"role": "assistant", "content": None, "tool_calls": [
                      {"id": "1", "function": {"name": "weather", "arguments": {"city": "Bonn", "days": None}}},
                      {"id": "2", "function": {"name": "time", "arguments": {"city": None, "days": 3}}}]},
                  {"role": "tool", "content": "rain", "tool_call_id": "1"},
                  {"role": "assistant", "content": "It rains."}],
     "tools": [{"type": "function", "function": {"name": "weather", "parameters": {
         "type": "object",
         "properties": {"city": {"type": "string", "enum": ["Bonn", None, "Ulm"], "default": {"a": None, "b": 1}},
                        "days": {"type": "integer"}},
         "required": ["city"]}}}], "source": None, "score": float("nan")},
    {"messages": [], "source": "c", "score": 1.0},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello", "tool_calls": []}],
     "tools": [], "source": "", "score": None},
    {"messages": [{"role": "user", "content": "x" * 300}, {"role": "assistant", "content": "y"}], "source": "a",
     "score": -2.5e-7},
]


def chat_files():
    table = pa.Table.from_pylist(CHAT, schema=pa.schema([
        ("messages", pa.list_(pa.struct([
            ("role", pa.string()), ("content", pa.string()),
            ("tool_calls", pa.list_(pa.struct([
                ("id", pa.string()),
                ("function", pa.struct([("name", pa.string()), ("arguments", pa.struct([
                    ("city", pa.string()), ("days", pa.int64())]))]))]))),
            ("tool_call_id", pa.string())]))),
        ("tools", pa.list_(pa.struct([("type", pa.string()), ("function", pa.struct([
            ("name", pa.string()), ("parameters", pa.struct([
                ("type", pa.string()),
                ("properties", pa.struct([
                    ("city", pa.struct([("type", pa.string()), ("enum", pa.list_(pa.string())),
                                        ("default", pa.struct([("a", pa.int32()), ("b", pa.int32())]))])),
                    ("days", pa.struct([("type", pa.string()), ("enum", pa.list_(pa.string()))]))])),
                ("required", pa.list_(pa.string()))]))]))]))),
        ("source", pa.large_string()), ("score", pa.float64())]))
    rows = [plain({key: row.get(key) for key in ("messages", "tools", "source", "score")}) for row in CHAT]
    write("chat", table, rows, row_group_size=2, compression="snappy", write_page_checksum=True)
    texts = [{"text": f"{i % 3} " * 40 + str(i)} for i in range(40)]
    for codec in ("zstd", "gzip", "lz4", "none", "snappy"):
        write(f"packed_{codec}", pa.Table.from_pylist(texts), compression=codec, use_dictionary=False)
    write_rows("packed", texts)
    write("chat_v2", table, compression="zstd", data_page_version="2.0", data_page_size=64,
          write_batch_size=1, dictionary_pagesize_limit=32)
    for name, options in (("chat_stream", None), ("chat_stream_zstd", "zstd")):
        with pa.ipc.new_stream(HERE / f"{name}.arrow", table.schema,
                               options=pa.ipc.IpcWriteOptions(compression=options)) as writer:
            writer.write_table(table, max_chunksize=2)
    feather.write_feather(table, HERE / "chat_lz4.feather", compression="lz4")
    write("brotli", table.select(["source"]), compression="brotli")
    properties = pe.EncryptionConfiguration(footer_key="footer", uniform_encryption=True)
    for name, hidden in (("encrypted", False), ("encrypted_columns", True)):
        if hidden:
            properties = pe.EncryptionConfiguration(
                footer_key="footer", column_keys={"column": ["source"]}, plaintext_footer=True)
        factory = pe.CryptoFactory(lambda _: Keys())
        secret = factory.file_encryption_properties(pe.KmsConnectionConfig(), properties)
        with pq.ParquetWriter(HERE / f"{name}.parquet", table.select(["source"]).schema,
                              encryption_properties=secret) as writer:
            writer.write_table(table.select(["source"]))


def share_gpt_file():
    """What tests/e2e/data_test.py trains on: 40 conversations, the 10th and the 30th of them long."""
    said = [f"{'abcdef'[i % 6] * 3}?" for i in range(40)]
    answers = ["no" if i % 2 else "yes" for i in range(40)]
    for i in (9, 29):
        said[i] = f"{i}" + "x" * 120
    rows = [{"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
            for question, answer in zip(said, answers)]
    write("share_gpt", pa.Table.from_pylist(rows), rows, row_group_size=16, compression="zstd")


class Keys(pe.KmsClient):
    def wrap_key(self, key_bytes, _):
        return key_bytes

    def unwrap_key(self, wrapped_key, _):
        return wrapped_key


def type_files():
    moment = datetime.datetime(1969, 12, 31, 23, 59, 58, 250000)
    columns = {
        "bool": pa.array([True, None, False]),
        "int8": pa.array([-8, None, 7], pa.int8()),
        "uint8": pa.array([200, None, 0], pa.uint8()),
        "uint32": pa.array([2**32 - 1, None, 1], pa.uint32()),
        "int64": pa.array([-2**63, None, 2**63 - 1], pa.int64()),
        "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "half": pa.array([1.5, None, -0.25], pa.float16()),
        "float": pa.array([0.1, None, math.inf], pa.float32()),
        "double": pa.array([0.1, 1e300, 3.0]),
        "decimal": pa.array([decimal.Decimal("-0.05"), None, decimal.Decimal("123.40")], pa.decimal128(20, 2)),
        "small_decimal": pa.array([decimal.Decimal("-1.5"), None, decimal.Decimal("0.2")], pa.decimal128(4, 1)),
        "date": pa.array([datetime.date(2024, 2, 29), None, datetime.date(1900, 1, 1)]),
        "time": pa.array([datetime.time(1, 2, 3, 4), None, datetime.time(23, 59, 59)], pa.time64("us")),
        "instant": pa.array([moment, None, datetime.datetime(2024, 1, 2)], pa.timestamp("ms")),
        "instant_utc": pa.array([moment, None, moment], pa.timestamp("us", "UTC")),
        "bytes": pa.array([b"text", None, b"\xff\x00"], pa.binary()),
        "fixed": pa.array([b"abc", None, b"xyz"], pa.binary(3)),
        "uuid": pa.array([uuid.UUID(int=1).bytes, None, uuid.UUID(int=2**127).bytes], pa.uuid()),
        "words": pa.array(["a", None, "a"]).dictionary_encode(),
        "nothing": pa.nulls(3),
        "map": pa.array([[("k", 1), ("l", None)], None, []], pa.map_(pa.string(), pa.int32())),
        "lists": pa.array([[[1], [], None, [2, None]], None, []], pa.list_(pa.list_(pa.int32()))),
        "fixed_list": pa.array([[1.0, 2.0], [3.0, 0.0], [0.5, 4.0]], pa.list_(pa.float32(), 2)),
    }
    rows = [
        {"bool": True, "int8": -8, "uint8": 200, "uint32": 2**32 - 1, "int64": -2**63, "uint64": 2**64 - 1,
         "half": 1.5, "float": 0.1, "double": 0.1, "decimal": -0.05, "small_decimal": -1.5, "date": "2024-02-29",
         "time": "01:02:03.000004", "instant": "1969-12-31T23:59:58.250",
         "instant_utc": "1969-12-31T23:59:58.250000Z", "bytes": "text", "fixed": "abc", "uuid": str(uuid.UUID(int=1)),
         "words": "a", "map": {"k": 1, "l": None}, "lists": [[1], [], None, [2, None]], "fixed_list": [1.0, 2.0]},
        {"double": 1e300, "fixed_list": [3.0, 0.0]},
        {"bool": False, "int8": 7, "uint8": 0, "uint32": 1, "int64": 2**63 - 1, "uint64": 0, "half": -0.25,
         "double": 3.0, "decimal": 123.4, "small_decimal": 0.2, "date": "1900-01-01", "time": "23:59:59",
         "instant": "2024-01-02T00:00:00", "instant_utc": "1969-12-31T23:59:58.250000Z",
         "bytes": "2 bytes that are no text", "fixed": "xyz", "uuid": str(uuid.UUID(int=2**127)), "words": "a",
         "map": {}, "lists": [], "fixed_list": [0.5, 4.0]},
    ]
    write("types", pa.table(columns), rows)
    with pa.ipc.new_file(HERE / "types.arrow", pa.table(columns).schema) as writer:
        writer.write_table(pa.table(columns))
    view = pa.table({"text": pa.array(["a"], pa.string_view())})
    with pa.ipc.new_stream(HERE / "view.arrow", view.schema) as writer:
        writer.write_table(view)


def encoding_files():
    count = 300
    columns = {
        "delta": ("DELTA_BINARY_PACKED", pa.array([i * i * (-1)**i for i in range(count)], pa.int32())),
        "delta64": ("DELTA_BINARY_PACKED", pa.array([i**7 if i % 3 else None for i in range(count)], pa.int64())),
        "lengths": ("DELTA_LENGTH_BYTE_ARRAY", pa.array(["x" * (i % 7) for i in range(count)])),
        "prefixes": ("DELTA_BYTE_ARRAY", pa.array([f"prefix {i // 10} {i}" for i in range(count)])),
        "split": ("BYTE_STREAM_SPLIT", pa.array([i / 8 for i in range(count)], pa.float32())),
        "flags": ("RLE", pa.array([i % 5 == 0 for i in range(count)])),
    }
    table = pa.table({name: column for name, (_, column) in columns.items()})
    rows = [plain(row) for row in table.to_pylist()]
    write("encodings", table, rows, use_dictionary=False, compression="none",
          column_encoding={name: encoding for name, (encoding, _) in columns.items()})
    # A dictionary that overflows: the first pages use it, the later ones do not.
    words = [f"word {i % 60}" for i in range(count)]
    write("overflow", pa.table({"text": words}), [{"text": word} for word in words],
          dictionary_pagesize_limit=200, data_page_size=128, write_batch_size=16, compression="none")


def old_files():
    """Lists as they were written before they had a standard: a repeated field without a group."""
    table = pa.table({"text": ["a", "b"], "when": pa.array([0, 86_400_000_000_123], pa.timestamp("ns"))})
    write("int96", table, [{"text": "a", "when": "1970-01-01T00:00:00"},
                           {"text": "b", "when": "1970-01-02T00:00:00.000000123"}],
          use_deprecated_int96_timestamps=True)
    write("empty", table.slice(0, 0), [])


if __name__ == "__main__":
    chat_files()
    share_gpt_file()
    type_files()
    encoding_files()
    old_files()
