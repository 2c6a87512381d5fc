"""Writes the files of this folder: Parquet and Arrow files that no writer makes, to be refused in little time and memory.

python3 make_files.py (needs nothing beside Python)
"""

import pathlib
import struct
import zlib

HERE = pathlib.Path(__file__).parent

# Thrift's compact protocol, in which Parquet's headers are written.
I32, I64, BINARY, LIST, STRUCT, TRUE, FALSE = 5, 6, 8, 9, 12, 1, 2


def varint(number):
    out = b""
    while True:
        byte, number = number & 0x7F, number >> 7
        if number == 0:
            return out + bytes([byte])
        out += bytes([byte | 0x80])


def zigzag(number):
    return varint((number << 1) ^ -1 if number < 0 else number << 1)


def thrift(*fields):
    """A struct of (id, type, value)."""
    out, last = b"", 0
    for number, kind, value in fields:
        if value is None:
            continue
        out += bytes([(number - last) << 4 | kind])
        last = number
        if kind in (I32, I64):
            out += zigzag(value)
        elif kind == BINARY:
            out += varint(len(value)) + value
        elif kind in (STRUCT, LIST):
            out += value
    return out + b"\0"


def structs(items):
    head = bytes([len(items) << 4 | STRUCT]) if len(items) < 15 else bytes([0xF0 | STRUCT]) + varint(len(items))
    return head + b"".join(items)


def element(name, kind=None, repetition=0, children=None, converted=None, scale=None, width=None):
    return thrift((1, I32, kind), (2, I32, width), (3, I32, repetition), (4, BINARY, name), (5, I32, children),
                  (6, I32, converted), (7, I32, scale))


def page(values, body, encoding=0, unpacked=None):
    data = thrift((1, I64, values), (2, I32, encoding), (3, I32, 3), (4, I32, 3))
    size = len(body) if unpacked is None else unpacked
    return thrift((1, I32, 0), (2, I64, size), (3, I32, len(body)), (5, STRUCT, data)) + body


def dictionary_page(values, body):
    data = thrift((1, I32, values), (2, I32, 0))
    return thrift((1, I32, 2), (2, I32, len(body)), (3, I32, len(body)), (7, STRUCT, data)) + body


def chunk(offset, size, values, codec=0):
    meta = thrift((1, I32, 1), (4, I32, codec), (5, I64, values), (7, I64, size), (9, I64, offset))
    return thrift((2, I64, offset), (3, STRUCT, meta))


def parquet(name, data, schema, rows, chunks):
    group = thrift((1, LIST, structs(chunks)), (3, I64, rows))
    footer = thrift((1, I32, 1), (2, LIST, structs(schema)), (3, I64, rows), (4, LIST, structs([group])))
    whole = b"PAR1" + data + footer + struct.pack("<I", len(footer)) + b"PAR1"
    (HERE / f"{name}.parquet").write_bytes(whole)


def one_column(name, data, values=1, rows=1, codec=0, **leaf):
    schema = [element(b"root", children=1), element(b"c", **{"kind": 1, **leaf})]
    parquet(name, data, schema, rows, [chunk(4, len(data), values, codec)])


def gzip(data):
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return packer.compress(data) + packer.flush()


def parquet_files():
    seven = struct.pack("<i", 7)
    one = page(1, seven)
    one_column("decimal_scale", one, converted=5, scale=1 << 29)
    one_column("decimal_wide", page(1, bytes(32)), kind=7, width=32, converted=5, scale=2)
    long = [element(b"root", children=1), element(b"x" * 66_000, children=1), element(b"c", 1)]
    parquet("name_long", one, long, 1, [chunk(4, len(one), 1)])
    leaves = 300
    many = [element(b"root", children=1), element(b"x" * 60_000, children=leaves)]
    parquet("names_many", one, many + [element(b"c", 1)] * leaves, 1, [chunk(4, len(one), 1)] * leaves)
    deep = [element(b"root", children=1), element(b"array", children=1, converted=3)]
    deep += [element(b"array", repetition=2, children=1, converted=3)] * 200 + [element(b"array", 1, repetition=2)]
    parquet("deep", one, deep, 1, [chunk(4, len(one), 1)])
    empty = page(0, gzip(bytes(2 << 20)), unpacked=2 << 20) + page(1, gzip(seven), unpacked=4)
    one_column("page_empty", empty, codec=2)
    # Differences of no bits: a few bytes for 2^40 numbers.
    block = varint(1 << 20) + varint(1) + varint(1 << 40) + zigzag(0) + (zigzag(0) + b"\0") * 100
    one_column("page_values", page(1 << 61, block, 5), values=1 << 62)
    block = varint(1 << 20) + varint(1) + varint(100 << 20) + zigzag(0) + (zigzag(0) + b"\0") * 100
    one_column("page_delta", page(100 << 20, block, 5), values=100 << 20, rows=100 << 20)
    one_column("page_unpacked", page(1, b"abcd", unpacked=(1 << 63) - 1))
    shared = [element(b"root", children=2), element(b"a", 1), element(b"b", 1)]
    parquet("shared", one, shared, 1, [chunk(4, len(one), 1)] * 2)
    # A value of a dictionary, whose page has no bytes to say which.
    one_column("dictionary_index", dictionary_page(1, seven) + page(1, b"", 8))


class Flat:
    """A flat buffer, written front to back."""

    def __init__(self):
        self.bytes = bytearray(4)

    def align(self, size):
        self.bytes += bytes(-len(self.bytes) % size)

    def table(self, fields, place):
        """`fields`: a format and value, or None and what writes the field; `place`: what leads to the table."""
        entries = [0] * (max(fields, default=-1) + 1)
        self.align(8)
        start = len(self.bytes)
        self.bytes += bytes(4 + 2 * len(entries))
        self.align(8)
        table = len(self.bytes)
        struct.pack_into("<I", self.bytes, place, table - place)
        self.bytes += struct.pack("<i", table - start)
        later = []
        for number, (form, value) in sorted(fields.items()):
            self.align(struct.calcsize("<" + (form or "I")))
            entries[number] = len(self.bytes) - table
            if form is None:
                later.append((len(self.bytes), value))
            self.bytes += struct.pack("<" + (form or "I"), value if form else 0)
        head = [4 + 2 * len(entries), len(self.bytes) - table, *entries]
        struct.pack_into(f"<{len(head)}H", self.bytes, start, *head)
        for at, write in later:
            write(at)

    def _vector(self, at, count):
        struct.pack_into("<I", self.bytes, at, len(self.bytes) - at)
        self.bytes += struct.pack("<I", count)

    def text(self, text):
        def write(at):
            self.align(4)
            self._vector(at, len(text))
            self.bytes += text + b"\0"
        return None, write

    def pairs(self, items):
        def write(at):
            self.align(8)
            self.bytes += bytes(4)
            self._vector(at, len(items))
            self.bytes += b"".join(struct.pack("<qq", *item) for item in items)
        return None, write

    def tables(self, items):
        def write(at):
            self.align(4)
            self._vector(at, len(items))
            first = len(self.bytes)
            self.bytes += bytes(4 * len(items))
            for i, item in enumerate(items):
                self.table(item, first + 4 * i)
        return None, write

    def one(self, fields):
        return None, lambda at: self.table(fields, at)

    def field(self, name, kind, type_fields=None, children=(), dictionary=None):
        made = {0: self.text(name), 1: ("B", 1), 2: ("B", kind), 3: self.one(type_fields or {}),
                5: self.tables(list(children))}
        if dictionary is not None:
            made[4] = self.one(dictionary(self))
        return made


def message(kind, header, body=b""):
    flat = Flat()
    flat.table({0: ("h", 4), 1: ("B", kind), 2: flat.one(header(flat)), 3: ("q", len(body))}, 0)
    flat.align(8)
    return b"\xff\xff\xff\xff" + struct.pack("<i", len(flat.bytes)) + bytes(flat.bytes) + body


def schema(fields):
    return message(1, lambda flat: {0: ("h", 0), 1: flat.tables(fields(flat))})


def rows_of(flat, rows, nodes, buffers):
    return {0: ("q", rows), 1: flat.pairs(nodes), 2: flat.pairs(buffers)}


def batch(rows, nodes, buffers, body):
    return message(3, lambda flat: rows_of(flat, rows, nodes, buffers), body)


def dictionary(rows, nodes, buffers, body):
    return message(2, lambda flat: {0: ("q", 1), 1: flat.one(rows_of(flat, rows, nodes, buffers))}, body)


def arrow(name, *messages):
    (HERE / f"{name}.arrow").write_bytes(b"".join(messages) + b"\xff\xff\xff\xff\0\0\0\0")


NULL, INT, UTF8, BOOL, DECIMAL, STRUCT_TYPE, MAP, LARGE_LIST = 1, 2, 5, 6, 7, 13, 17, 21
INT64 = {0: ("i", 64), 1: ("B", 1)}


def arrow_files():
    # A map whose entries are numbers of a dictionary's.
    entries = lambda flat: flat.field(b"entries", STRUCT_TYPE, {}, [flat.field(b"key", INT, INT64),
                                      flat.field(b"value", INT, INT64)], lambda _: {0: ("q", 1)})
    values = struct.pack("<qq", 5, 6)
    arrow("map_dictionary", schema(lambda flat: [flat.field(b"m", MAP, {}, [entries(flat)])]),
          dictionary(1, [(1, 0)] * 3, [(0, 0), (0, 0), (0, 8), (0, 0), (0, 8)], values),
          batch(1, [(1, 0), (1, 0)], [(0, 0), (0, 8), (0, 0), (8, 4)], struct.pack("<iiii", 0, 1, 0, 0)))
    # A length to which nothing can be added.
    body = struct.pack("<qq", 1 << 50, (1 << 50) + 1)
    arrow("length", schema(lambda flat: [flat.field(b"l", LARGE_LIST, {}, [flat.field(b"item", BOOL)])]),
          batch(1, [(1, 0), ((1 << 63) - 4, 0)], [(0, 0), (0, 16), (0, 0), (0, 1)], body))
    arrow("decimal", schema(lambda flat: [flat.field(b"d", DECIMAL, {0: ("i", 5), 1: ("i", 1 << 29)})]))
    arrow("decimal_wide", schema(lambda flat: [flat.field(b"d", DECIMAL, {0: ("i", 60), 1: ("i", 2), 2: ("i", 256)})]))
    # A buffer that many columns share.
    size, count = 100_000, 50
    body = struct.pack("<ii", 0, size) + b"y" * size
    arrow("shared", schema(lambda flat: [flat.field(b"a", UTF8)] * count),
          batch(1, [(1, 0)] * count, [(0, 0), (0, 8), (8, size)] * count, body))
    arrow("name_long", schema(lambda flat: [flat.field(b"x" * 66_000, UTF8)]))
    # A list of very many objects, whose many members are null.
    count = 300
    nulls = lambda flat: flat.field(b"item", STRUCT_TYPE, {}, [flat.field(b"c", NULL)] * count)
    arrow("nulls", schema(lambda flat: [flat.field(b"l", LARGE_LIST, {}, [nulls(flat)])]),
          batch(1, [(1, 0)] + [(1 << 40, 0)] * (count + 1), [(0, 0), (0, 16), (0, 0)], struct.pack("<qq", 0, 1 << 40)))
    # Legal: entry 200 of a dictionary, told by an unsigned byte.
    count = 201
    body = b"".join(struct.pack("<i", i) for i in range(count + 1)) + b"a" * (count - 1) + b"z"
    byte = lambda flat: {0: ("q", 1), 1: flat.one({0: ("i", 8), 1: ("B", 0)})}
    arrow("unsigned_index", schema(lambda flat: [flat.field(b"c", UTF8, {}, [], byte)]),
          dictionary(count, [(count, 0)], [(0, 0), (0, 4 * (count + 1)), (4 * (count + 1), count)], body),
          batch(1, [(1, 0)], [(0, 0), (0, 1)], b"\xc8"))


parquet_files()
arrow_files()
