"""Files that nobody should trust: what each is called, and its bytes. None may do more than be refused."""

import gzip
import io
import json
import pickle
import struct
import zipfile
import zlib
from itertools import product


class _Call:
    """A pickle of it calls what it was made of."""

    def __init__(self, call, *arguments):
        self._call = call, arguments

    def __reduce__(self):
        return self._call


def pickles(sign):
    """Pickles that would leave the file `sign` if anything in them were executed, and broken ones."""
    code = f"open({sign!r}, 'w').close()"
    calls = {
        "system": b"cposix\nsystem\n", "eval": b"cbuiltins\neval\n", "exec": b"cbuiltins\nexec\n",
        "open": b"cbuiltins\nopen\n", "getattr": b"cbuiltins\ngetattr\n", "import": b"cbuiltins\n__import__\n",
        "popen": b"csubprocess\nPopen\n", "run_path": b"crunpy\nrun_path\n", "code": b"ccode\ninteract\n",
        "partial": b"cfunctools\npartial\n", "torch": b"ctorch._utils\n_rebuild_tensor_v2\n",
        "own": b"czerolab.opening\nopen_files\n", "dict": b"cbuiltins\ndict\n", "nothing": b"cno_such_module\nf\n",
    }  # fmt: skip
    argument = b"X" + struct.pack("<I", len(code)) + code.encode() + b"\x85"
    modern = {key: value[1:-1].split(b"\n") for key, value in calls.items()}
    stack = {
        key: b"".join(b"\x8c" + bytes([len(part)]) + part for part in two) + b"\x93" for key, two in modern.items()
    }
    for (name, asked), protocol in product(calls.items(), (2, 4)):
        yield f"{name}-{protocol}.pickle", bytes([0x80, protocol]) + asked + argument + b"R."
    for name, asked in stack.items():
        yield f"{name}-stack.pickle", b"\x80\x04" + asked + argument + b"R."
    for protocol in (2, 3, 4, 5):
        yield f"reduce-{protocol}.pickle", pickle.dumps(_Call(exec, code), protocol)
        hidden = {"segments": [], "device_traces": [[{"action": "alloc", "size": _Call(eval, code)}]]}
        yield f"hidden-{protocol}.pickle", pickle.dumps(hidden, protocol)
        dump = {"version": "2.10", "entries": [_Call(exec, code)], "pg_config": {}}
        yield f"dump-{protocol}.pickle", pickle.dumps(dump, protocol)


def operations():
    """Pickles with operations that make objects, or that ask for far more than they have."""
    head = b"\x80\x02"
    yield "inst.pickle", head + b"(X\x01\x00\x00\x00aios\nsystem\n."
    yield "obj.pickle", head + b"(cos\nsystem\nX\x01\x00\x00\x00ao."
    yield "newobj.pickle", head + b"cbuiltins\nlist\n)\x81."
    yield "newobj-ex.pickle", b"\x80\x04cbuiltins\nlist\n)}\x92."
    yield "build.pickle", head + b"}}b."
    yield "persid.pickle", head + b"Psomething\n."
    yield "binpersid.pickle", head + b"K\x01Q."
    yield "ext1.pickle", head + b"\x82\x01."
    yield "ext2.pickle", head + b"\x83\x01\x00."
    yield "ext4.pickle", head + b"\x84\x01\x00\x00\x00."
    yield "buffer.pickle", b"\x80\x05\x97\x98."
    yield "memo-bomb.pickle", head + b"]r\xff\xff\xff\xff."
    yield "long-of-a-gigabyte.pickle", head + b"\x8b\xff\xff\xff\x7f."
    yield "long-of-minus-one.pickle", head + b"\x8b\xff\xff\xff\xff."
    yield "text-of-an-exabyte.pickle", b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"a."
    yield "text-of-four-gigabytes.pickle", head + b"X\xff\xff\xff\xffa."
    yield "frame-of-an-exabyte.pickle", b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"K\x01."
    yield "itself.pickle", head + b"]q\x00h\x00a."
    yield "deep.pickle", head + b"]" * 100_000 + b"a" * 99_999 + b"."
    yield "marks.pickle", head + b"(" * 100_000 + b"."
    yield "unhashable.pickle", head + b"}]K\x01s."
    yield "nothing-on-the-stack.pickle", head + b"a."
    yield "two-values.pickle", head + b"K\x01K\x02."
    yield "no-such-memo.pickle", head + b"h\x07."
    yield "only-a-head.pickle", head
    yield "protocol-9.pickle", b"\x80\x09K\x01."
    yield "protocol-0.pickle", b"cposix\nsystem\n(S'true'\ntR."


def broken():
    """Dumps and snapshots that are cut off, changed, or have what none has."""
    half = pickle.dumps({"version": "2.10", "entries": [{"record_id": place} for place in range(200)]}, 2)
    for part in (0.01, 0.3, 0.6, 0.99):
        yield f"half-{part}.pickle", half[: int(len(half) * part)]
    for place in range(0, len(half), len(half) // 12):
        yield f"flipped-{place}.pickle", half[:place] + bytes([half[place] ^ 0xFF]) + half[place + 1 :]
    wrong = {"segments": [], "device_traces": [[{"action": "alloc", "size": -1, "time_us": 5}]]}
    yield "negative-size.pickle", pickle.dumps(wrong)
    yield "no-history.pickle", pickle.dumps({"segments": [], "device_traces": [[]]})
    yield "another-dictionary.pickle", pickle.dumps({"state_dict": [1, 2]})
    entry = {"time_created_ns": "now", "collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}
    yield "no-time.pickle", pickle.dumps({"version": "2.10", "entries": [entry]})
    yield "no-entries.pickle", pickle.dumps({"version": "2.10", "entries": []})
    yield "entries-of-text.pickle", pickle.dumps({"version": "2.10", "entries": ["all_reduce"]})


def texts():
    """JSON of others, half of it, damaged, or made to take long."""
    head = '{"schemaVersion": 1, "baseTimeNanoseconds": 0, "traceEvents": ['
    bar = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "c10d::allreduce_",
        "pid": 1,
        "tid": 1,
        "ts": 1.0,
        "dur": 2.0,
        "args": {},
    }
    whole = head + json.dumps(bar) + '], "traceName": "t"}'
    yield "chrome.json", '{"traceEvents": [{"ph": "X", "name": "RunTask", "ts": 1, "dur": 2}], "metadata": {}}'
    yield "tensorflow.json", '{"displayTimeUnit": "ns", "metadata": {"highres-ticks": true}, "traceEvents": [{}]}'
    yield "zerolab-chrome.json", '{"traceEvents": [], "otherData": {"title": "zero2 on 2 ranks", "simulated": false}}'
    yield "list.json", json.dumps([bar])
    yield "nsight.json", '{"Type": 79, "NvtxEvent": {"Text": "step"}}\n{"Type": 79}'
    yield "settings.json", '{"zero_optimization": {"stage": 2}}'
    yield "recording.json", '{"format": "zerolab-recording", "version": 1}'
    yield "brackets.json", "{" + '"a":[' * 200_000
    yield "brackets-in-entries.json", '{"entries": ' + "[" * 200_000
    yield "brackets-in-a-trace.json", head + '{"name": "c10d::x", "args": ' * 20_000
    yield "no-events.json", head + "]}"
    yield "only-a-head.json", head
    yield "number-of-a-million-digits.json", '{"version": 1, "entries": [' + "9" * 1_000_000 + "]}"
    for part in (0.2, 0.5, 0.9, 0.97):
        yield f"half-{part}.json", whole[: int(len(whole) * part)]
    for name, value in {"ts": "soon", "dur": -1, "args": 7}.items():
        yield f"wrong-{name}.json", head + json.dumps({**bar, name: value}) + "]}"
    for value in ("NaN", "Infinity", "1e300"):
        yield f"time-{value}.json", head + json.dumps(bar).replace('"ts": 1.0', f'"ts": {value}') + "]}"
    yield "base.json", whole.replace('"baseTimeNanoseconds": 0', '"baseTimeNanoseconds": "then"')
    yield "zeros-in-it.json", whole.replace("cpu_op", "cpu\0op")
    yield "ranks.json", whole.replace('{"schema', '{"distributedInfo": {"rank": 7, "world_size": 2}, "schema')
    yield "many.json", whole.replace('{"schema', '{"distributedInfo": {"rank": 1, "world_size": 9999999999}, "schema')
    yield "page.html", "<!DOCTYPE html><html><body>memory_viz</body></html>"
    yield "words.txt", "step 1 loss 0.5\n"
    yield "spaces.json", " " * 100_000


def bomb(start, filler):
    """300 MB as gzip would pack them but for the end, which nobody should reach: one block again and again."""
    packer = zlib.compressobj(wbits=zlib.MAX_WBITS + 16)
    head, block = (packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH) for data in (start, filler * 1_000_000))
    return head + 300 * block


def archives():
    """What is no text: packed, binary, or nothing."""
    yield "nothing.json", b""
    yield "sqlite.sqlite", b"SQLite format 3\0" + bytes(100)
    yield "report.nsys-rep", b"QDSTRM" + bytes(range(256))
    yield "perfetto.pftrace", b"\n\x12\x08\x01" * 50
    yield "program", b"\x7fELF" + bytes(range(256))
    yield "noise.bin", bytes((37 * place * place) % 251 for place in range(5_000))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data.pkl", b"\x80\x02cos\nsystem\n.")
    yield "checkpoint.pt", packed.getvalue()
    yield "half.json.gz", gzip.compress(b'{"schemaVersion": 1, "traceEvents": [' + bytes(range(1, 250)) * 50)[:200]
    yield "changed.json.gz", gzip.compress(b"{}")[:-8] + bytes(8)
    yield "bomb.json.gz", bomb(b'{"schemaVersion": 1, "traceEvents": [', b" ")
    yield "bomb.pickle.gz", bomb(b"\x80\x02", b"]")
    yield "no-gzip.json.gz", b"\x1f\x8b" + b"not at all" * 10


def all_files(sign):
    """Names and bytes of all of them; `sign` is the file that none may make."""
    yield from pickles(sign)
    yield from operations()
    yield from broken()
    yield from ((name, text.encode()) for name, text in texts())
    yield from archives()
