"""Bytes of a trace file to its events: packing, encodings and damaged ends."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from aiak_tune.errors import ProfileError

Scalar = str | int | float | bool | None


class Arguments(msgspec.Struct, gc=False):
    """What we use of an event's args; shapes, stacks and the rest are skipped unparsed."""

    correlation: Any = None
    external: Any = msgspec.field(default=None, name="External id")


class Event(msgspec.Struct, gc=False):
    """One entry of traceEvents; every field is as loose as the producers are."""

    ph: Any = None
    cat: Any = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: Arguments | list[Any] | Scalar = None


class Document(msgspec.Struct):
    """The file's top level."""

    traceEvents: list[Event]  # noqa: N815
    distributedInfo: dict[str, Any] | list[Any] | Scalar = None  # noqa: N815
    baseTimeNanoseconds: Any = None  # noqa: N815


_decoder = msgspec.json.Decoder(Document | list[Event])


def read_document(path: Path) -> tuple[Document, bool]:
    """Return the file's content and whether its end was missing.

    Raises:
        ProfileError: no such file, or it holds no trace.
    """
    try:
        data, cut = _unpack(path.read_bytes(), path)
    except OSError as error:
        raise ProfileError(f"cannot read {path}: {error.strerror or error}") from error
    data = data.removeprefix(b"\xef\xbb\xbf")
    if not data.strip():
        raise ProfileError(f"{path} is empty: record the trace again")
    for text, mended in _readings(data):
        try:
            return _document(_decoder.decode(text)), cut or mended
        except msgspec.DecodeError:
            continue
    raise ProfileError(_complaint(data, path))


def _unpack(data: bytes, path: Path) -> tuple[bytes, bool]:
    """Undo gzip or zip, told by the first bytes since names lie; the prefix of a cut gzip."""
    if data[:4] == b"PK\x03\x04":
        try:
            with zipfile.ZipFile(BytesIO(data)) as archive:
                return archive.read(archive.namelist()[0]), False
        except (zipfile.BadZipFile, IndexError, NotImplementedError, RuntimeError) as error:
            raise ProfileError(f"{path} is a damaged zip archive: {error}") from error
    parts: list[bytes] = []
    while data[:2] == b"\x1f\x8b":
        stream = zlib.decompressobj(wbits=31)
        try:
            parts.append(stream.decompress(data))
        except zlib.error as error:
            raise ProfileError(f"{path} is a damaged gzip file: {error}") from error
        if not stream.eof:
            return b"".join(parts), True
        data = stream.unused_data
    return (b"".join(parts), False) if parts else (data, False)


def _readings(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the text as it is, then mended for each fault we know, and whether cut."""
    yield data, False
    text = data.decode(errors="replace")
    try:
        # The standard parser takes NaN and Infinity, which some producers write.
        yield msgspec.json.encode(json.loads(text, strict=False)), False
    except (ValueError, RecursionError):
        pass
    # A run that was killed leaves the list of events open: keep what is whole.
    for tail in ("}", "]}", "]"):
        yield (text + tail).encode(), True
    last = text.rfind("\n  },")
    for cut in (last + 4, text.rfind("},") + 1):
        for tail in ("]}", "]"):
            yield (text[:cut] + tail).encode(), True


def _document(decoded: Document | list[Event]) -> Document:
    return decoded if isinstance(decoded, Document) else Document(traceEvents=decoded)


def _complaint(data: bytes, path: Path) -> str:
    try:
        msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        return f"{path} is not valid JSON ({error}): record the trace again"
    return f"{path} holds no traceEvents: give a file written by torch.profiler"
