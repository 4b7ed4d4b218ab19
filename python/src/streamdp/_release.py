"""Releases, and their assembly from messages."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = "streamdp.release.v1"


class ReleaseError(ValueError):
    """The input is not a release, or differs from the release that was published."""


@dataclass(frozen=True)
class Value:
    """One released value.

    data holds the numbers in the order of the release. se holds one standard error per entry,
    None if the release states none. A single error for all entries is repeated.
    """

    name: str
    shape: tuple[int, ...]
    layout: str
    data: tuple[float, ...]
    se: tuple[float | None, ...]
    labels: tuple[tuple[str, str], ...]
    """The names of each entry: (column, "") or, for a matrix, (row, column)."""

    def matrix(self) -> list[list[float]]:
        """The symmetric matrix of a value with layout "upper"."""
        if self.layout != "upper":
            raise ReleaseError(f"{self.name} is not a matrix")
        n = self.shape[0]
        out = [[0.0] * n for _ in range(n)]
        k = 0
        for i in range(n):
            for j in range(i, n):
                out[i][j] = out[j][i] = self.data[k]
                k += 1
        return out


@dataclass(frozen=True)
class Release:
    """One release. raw is the whole JSON object."""

    stream: str
    partition: int
    epoch: int
    step: int
    rows: int
    offsets: tuple[int, int]
    covers: tuple[int, int]
    columns: tuple[str, ...]
    failed: str
    values: Mapping[str, Value]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def key(self) -> str:
        """The release's identity, which is its Kafka key. A merged stream's releases have the partition -1."""
        partition = "merged" if self.partition < 0 else self.partition
        return f"{self.stream}/{partition}/{self.epoch}/{self.step}"

    @property
    def order(self) -> tuple[str, int, int, int]:
        """The sort key of releases."""
        return (self.stream, self.partition, self.epoch, self.step)

    @property
    def unit(self) -> str:
        """What the guarantee protects: "record", "person" for all records with one user key, or "person-period"
        for those of one period. Empty if the release has only the hash of its guarantee."""
        return str(self.raw.get("privacy", {}).get("unit", ""))

    @property
    def statements(self) -> tuple[str, ...]:
        """What is promised and what is not, in words. Empty if the release has only the hash of its guarantee; the
        release of step 1 of its epoch then has the statements (output.privacy_every)."""
        return tuple(self.raw.get("privacy", {}).get("statements", ()))


def _numbers(data: Any) -> list[float]:
    if isinstance(data, str):  # little-endian float64s
        raw = base64.b64decode(data, validate=True)
        if len(raw) % 8:
            raise ReleaseError("base64 data are not float64s")
        return list(struct.unpack(f"<{len(raw) // 8}d", raw))
    return [math.nan if x is None else float(x) for x in data]


def _labels(shape: tuple[int, ...], layout: str, n: int, columns: tuple[str, ...], target: str, name: str) -> tuple[tuple[str, str], ...]:
    if layout == "upper":
        names = columns if len(columns) == shape[0] else tuple(str(i + 1) for i in range(shape[0]))
        return tuple((names[i], names[j]) for i in range(shape[0]) for j in range(i, shape[0]))
    if n == 1 and n != len(columns):
        return ((name, ""),)
    if target:
        features = tuple(c for c in columns if c != target)
        if n == len(features):
            return tuple((c, "") for c in features)
        if n == len(features) + 1:
            return (*((c, "") for c in features), ("(intercept)", ""))
    elif n == len(columns):
        return tuple((c, "") for c in columns)
    return tuple((str(i + 1), "") for i in range(n))


def parse(value: bytes | str) -> Release:
    """Parses the JSON object of a release. Raises ReleaseError if it is not a release."""
    try:
        raw = json.loads(value)
        if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
            raise ReleaseError("not a release of " + SCHEMA)
        columns = tuple(raw["columns"])
        mechanism = raw["mechanism"]
        target = mechanism.get("target") or mechanism.get("model", {}).get("target", "")
        values = {}
        for name, v in raw["values"].items():
            data = _numbers(v["data"])
            se = v.get("se_with_clipping", v.get("se"))
            if se is None:
                errors: list[float | None] = [None] * len(data)
            elif isinstance(se, (int, float)):
                errors = [float(se)] * len(data)
            else:
                errors = [None if math.isnan(x) else x for x in _numbers(se)]
                errors = errors * len(data) if len(errors) == 1 else errors
            if len(errors) != len(data):
                raise ReleaseError(f"{name} has {len(data)} numbers but {len(errors)} standard errors")
            shape, layout = tuple(v["shape"]), v.get("layout", "")
            size = shape[0] * (shape[0] + 1) // 2 if layout == "upper" else math.prod(shape)
            if size != len(data):
                raise ReleaseError(f"{name} has {len(data)} numbers, but its shape has {size}")
            values[name] = Value(name, shape, layout, tuple(data), tuple(errors), _labels(shape, layout, len(data), columns, target, name))
        return Release(
            raw["stream"], raw["partition"], raw["epoch"], raw["step"], raw["rows"], (raw["offsets"][0], raw["offsets"][1]),
            (raw["covers"][0], raw["covers"][1]), columns, raw.get("failed", ""), values, raw,
        )
    except ReleaseError:
        raise
    except (KeyError, IndexError, TypeError, AttributeError, ValueError, struct.error) as e:
        raise ReleaseError(f"not a release: {e!r}") from e


class Assembler:
    """Assembles releases from messages in the order of their partition.

    Duplicates are dropped; a duplicate with other content is an error. A large release comes in
    pieces, which are joined and checked against their hash.
    """

    def __init__(self) -> None:
        self._seen: dict[str, bytes] = {}
        self._pieces: list[bytes] = []
        self._of: tuple[str, str, int] = ("", "", 0)  # identity, hash, number of pieces

    def add(self, key: bytes | str | None, value: bytes | str | None, headers: Iterable[tuple[str, bytes | str | None]] | None = None) -> Release | None:
        """Takes the next message. Returns the release that it completes, or None."""
        if value is None:
            return None  # a tombstone
        body = value.encode() if isinstance(value, str) else bytes(value)
        found = {k: (v.encode() if isinstance(v, str) else v or b"") for k, v in headers or ()}
        chunk = found.get("streamdp_chunk")
        if chunk is None:
            return self._whole(body)
        name = key.decode() if isinstance(key, bytes) else key or ""
        identity, _, piece = name.rpartition("/")
        i, _, n = chunk.decode().partition("/")
        expected = found.get("streamdp_sha256", b"").decode()
        if piece != i or not i.isdigit() or not n.isdigit():
            raise ReleaseError(f"{name}: not a piece of a release")
        if identity in self._seen:
            if self._seen[identity].hex() != expected:
                raise ReleaseError(f"{identity} was published twice, with different content")
            return None  # again
        if int(i) == 1:
            self._pieces, self._of = [], (identity, expected, int(n))
        elif (identity, expected, int(n)) != self._of or int(i) != len(self._pieces) + 1:
            if int(i) <= len(self._pieces) and identity == self._of[0]:
                return None  # again
            raise ReleaseError(f"{name}: the previous piece is missing")
        self._pieces.append(body)
        if int(i) < int(n):
            return None
        whole = b"".join(self._pieces)
        self._pieces = []
        if hashlib.sha256(whole).hexdigest() != expected:
            raise ReleaseError(f"{identity}: the pieces do not match the hash in their headers")
        return self._whole(whole)

    def _whole(self, body: bytes) -> Release | None:
        release = parse(body)
        digest = hashlib.sha256(body).digest()
        before = self._seen.get(release.key)
        if before is not None:
            if before != digest:
                raise ReleaseError(f"{release.key} was published twice, with different content")
            return None  # again
        self._seen[release.key] = digest
        return release


def assemble(messages: Iterable[Any]) -> list[Release]:
    """Assembles releases from messages, sorted by stream, partition, epoch and step.

    A message is the value alone (bytes or str), a tuple (key, value) or (key, value, headers),
    or a message of confluent-kafka or kafka-python.
    """
    a = Assembler()
    out = []
    for m in messages:
        release = a.add(*_message(m))
        if release is not None:
            out.append(release)
    return sorted(out, key=lambda r: r.order)


def _message(m: Any) -> tuple[Any, Any, Any]:
    if isinstance(m, (bytes, bytearray, str)):
        return None, m, None
    if isinstance(m, tuple) and not hasattr(m, "value"):
        return (m[0], m[1], m[2] if len(m) > 2 else None)
    if callable(getattr(m, "value", None)):  # confluent-kafka
        return m.key(), m.value(), m.headers()
    if hasattr(m, "value"):  # kafka-python
        return m.key, m.value, m.headers
    raise TypeError(f"{type(m).__name__} is not a message: pass bytes, (key, value[, headers]), or a message of a Kafka client")
