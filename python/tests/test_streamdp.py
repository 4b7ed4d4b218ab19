from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import streamdp
from streamdp import Release, ReleaseError

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "stream" / "core" / "testdata"


def golden(name: str = "release.json") -> bytes:
    """The value of a message that the daemon's own tests hold to the byte: the file's last line."""
    return (GOLDEN / name).read_bytes().strip().splitlines()[-1]


def release(step: int = 1, epoch: int = 1, **values: Any) -> bytes:
    """A release of the golden form with other numbers."""
    raw = json.loads(golden())
    raw.update(epoch=epoch, step=step, covers=[0, 100 * step], offsets=[100 * step - 100, 100 * step])
    raw["values"].update(values)
    return json.dumps(raw).encode()


@pytest.mark.parametrize("name", ["release.json", "release.base64.json", "release.insecure.json", "release.values.json"])
def test_golden(name: str) -> None:
    """What the daemon writes can be read, and is as the schema says."""
    text = golden(name)
    r = streamdp.parse(text)
    streamdp.verify_schema(r)
    streamdp.verify_schema(text)
    raw = json.loads(text)
    assert r.key == f"{raw['stream']}/{raw['partition']}/{raw['epoch']}/{raw['step']}"
    assert set(r.values) == set(raw["values"])
    for v in r.values.values():
        assert len(v.data) == len(v.se) == len(v.labels)
    assert r.statements


def test_merged_key() -> None:
    """Of a merged stream the value has the partition -1, and the Kafka key says merged."""
    raw = json.loads(release(step=4))
    raw["partition"] = -1
    raw["parts"] = [{"partition": 0, "offsets": [300, 400], "covers": [0, 400]}]
    r = streamdp.parse(json.dumps(raw))
    assert r.key == f"{raw['stream']}/merged/1/4"


def test_guarantee_by_hash() -> None:
    raw = json.loads(release())
    del raw["privacy"]
    raw["privacy_sha256"] = "0" * 64
    r = streamdp.parse(json.dumps(raw))
    assert r.statements == () and streamdp.parse(release()).statements
    streamdp.verify_schema(r)


def test_persons() -> None:
    """A release that protects persons says so, and a mean of the records that count may be absent."""
    raw = json.loads(release())
    assert streamdp.parse(release()).unit == "record"
    raw["privacy"].update(unit="person", persons=[{"count": 2, "epsilon": 2.708}], person={
        "key": "record-key", "cap": 3, "separation": 2, "per_step": 1, "max_users": 36, "norm": 1.9, "epsilon_record": 0.52,
        "population": "orders", "partitioner": "none"})
    raw["values"] = {
        "mean": {"shape": [3], "data": [0.1, 0.2, 0.3], "se": 0.01},
        "counted_share": {"shape": [1], "data": [0.25], "se": 0.01},
        "mean_counted": {"shape": [3], "data": [0.4, 0.8, 1.2], "se": [0.05, 0.06, 0.07]},
    }
    raw["columns"] = ["a", "b", "c"]
    r = streamdp.parse(json.dumps(raw))
    streamdp.verify_schema(r)
    assert r.unit == "person" and r.values["counted_share"].labels == (("counted_share", ""),)
    assert r.values["mean_counted"].labels == (("a", ""), ("b", ""), ("c", "")) and r.values["mean_counted"].se == (0.05, 0.06, 0.07)
    del raw["values"]["mean_counted"]
    assert "mean_counted" not in streamdp.parse(json.dumps(raw)).values
    raw["privacy"]["person"]["epsilon_record"] = 0
    with pytest.raises(Exception, match="epsilon_record|minimum"):
        streamdp.verify_schema(streamdp.parse(json.dumps(raw)))


def test_encodings_agree() -> None:
    a, b = (streamdp.parse(golden(n)) for n in ("release.json", "release.base64.json"))
    assert a.values == b.values


def test_numbers() -> None:
    packed = base64.b64encode(struct.pack("<3d", 1, 2, 3)).decode()
    r = streamdp.parse(release(
        mean={"shape": [3], "data": packed, "se": 0.5},
        covariance={"shape": [3, 3], "layout": "upper", "data": [1, 2, 3, 4, 5, 6], "se": [1, 1, None, 1, 1, 1]},
    ))
    assert r.values["mean"].data == (1, 2, 3)
    assert r.values["mean"].se == (0.5, 0.5, 0.5)
    assert [c for c, _ in r.values["mean"].labels] == list(r.columns)
    cov = r.values["covariance"]
    assert cov.matrix() == [[1, 2, 3], [2, 4, 5], [3, 5, 6]]
    assert cov.se[2] is None
    assert cov.labels[1] == (r.columns[0], r.columns[1])
    with pytest.raises(ReleaseError, match="not a matrix"):
        r.values["mean"].matrix()


def test_regression_labels() -> None:
    raw = json.loads(release())
    raw["columns"], raw["mechanism"] = ["a", "y", "b"], {"name": "sgd", "method": "newton", "target": "y"}
    raw["values"] = {"theta_average": {"shape": [3], "data": [1, 2, 3], "se": None}, "theta": {"shape": [2], "data": [1, 2]}, "zeta": {"shape": [1], "data": [1], "se": None}}
    r = streamdp.parse(json.dumps(raw))
    assert [c for c, _ in r.values["theta_average"].labels] == ["a", "b", "(intercept)"]
    assert [c for c, _ in r.values["theta"].labels] == ["a", "b"]
    assert r.values["zeta"].labels == (("zeta", ""),)
    assert r.values["theta_average"].se == (None, None, None)


@pytest.mark.parametrize("bad", [
    b"", b"[]", b"{}", b'{"schema": "streamdp.release.v2"}', b'{"schema": "streamdp.release.v1"}',
    release(mean={"shape": [3], "data": [1, 2], "se": 1}), release(mean={"shape": [3], "data": [1, 2, 3], "se": [1, 2]}),
    release(mean={"shape": [3], "data": "AAAA", "se": 1}), release(mean={"data": [1]}),
])
def test_not_a_release(bad: bytes) -> None:
    with pytest.raises(ReleaseError):
        streamdp.parse(bad)


def pieces(body: bytes, size: int, key: str) -> list[tuple[bytes, bytes, list[tuple[str, bytes]]]]:
    cut = [body[i:i + size] for i in range(0, len(body), size)]
    hash_ = hashlib.sha256(body).hexdigest().encode()
    return [(f"{key}/{i + 1}".encode(), c, [("streamdp_chunk", f"{i + 1}/{len(cut)}".encode()), ("streamdp_sha256", hash_)]) for i, c in enumerate(cut)]


def test_assemble() -> None:
    """Duplicates are dropped, order is by step, pieces are joined."""
    first, second, other = release(1), release(2), release(1, epoch=2)
    got = streamdp.assemble([second, (b"k", first), (b"k", first, []), other, second, (b"k", None)])
    assert [(r.epoch, r.step) for r in got] == [(1, 1), (1, 2), (2, 1)]
    key = got[0].key
    parts = pieces(first, 400, key)
    assert len(parts) > 2
    assert [r.step for r in streamdp.assemble([parts[0], parts[1], parts[1], parts[0], *parts[1:], parts[-1], *parts, (b"k", first)])] == [1]
    with pytest.raises(ReleaseError, match="missing"):
        streamdp.assemble([parts[0], *parts[2:]])
    with pytest.raises(ReleaseError, match="hash"):
        streamdp.assemble([*parts[:-1], (parts[-1][0], parts[-1][1] + b" ", parts[-1][2])])
    with pytest.raises(ReleaseError, match="twice"):
        streamdp.assemble([*parts, *pieces(first + b" ", 400, key)])
    with pytest.raises(ReleaseError, match="twice"):
        streamdp.assemble([first, release(1, mean={"shape": [3], "data": [9, 9, 9], "se": 1})])
    with pytest.raises(TypeError):
        streamdp.assemble([7])


def test_clients() -> None:
    """Messages of both clients are taken as they are."""

    class Confluent:
        def key(self) -> bytes: return b"k"
        def value(self) -> bytes: return release(3)
        def headers(self) -> None: return None

    class KafkaPython:
        key, value, headers = b"k", release(4), [("content-type", b"application/json")]

    assert [r.step for r in streamdp.assemble([Confluent(), KafkaPython()])] == [3, 4]


def test_files(tmp_path: Path) -> None:
    import gzip

    lines = release(2) + b"\n\n" + release(1) + b"\n"
    for name, data in {
        "a.ndjson": lines, "b.ndjson.gz": gzip.compress(lines), "c.json": b"[" + release(1) + b"," + release(2) + b"]",
        "d.json": b'{"status": "success", "data": [' + release(2) + b"," + release(1) + b"]}",
    }.items():
        (tmp_path / name).write_bytes(data)
        assert [r.step for r in streamdp.read_file(tmp_path / name)] == [1, 2], name
    (tmp_path / "one.json").write_bytes(release(5))
    assert [r.step for r in streamdp.read_file(tmp_path / "one.json")] == [5]


def test_frames(tmp_path: Path) -> None:
    releases = streamdp.assemble([release(s, mean={"shape": [3], "data": [s, 0, 0], "se": 0.5}, theta={"shape": [2], "data": [1, 2], "se": None}) for s in (1, 2)])
    pandas = streamdp.frame(releases, "mean")
    assert list(pandas["x"]) == [1, 0, 0, 2, 0, 0]
    assert list(pandas["column"])[:3] == list(releases[0].columns)
    assert pandas["low"][0] == pytest.approx(1 - 0.98, abs=1e-4)
    polars = streamdp.frame(releases, "theta", backend="polars")
    assert polars["x"].to_list() == [1, 2, 1, 2]
    assert polars["se"].null_count() == 4
    everything = streamdp.frame(releases)
    assert set(everything["value"]) == set(releases[0].values)
    with pytest.raises(ReleaseError, match="no nothing"):
        streamdp.frame(releases, "nothing")
    with pytest.raises(ValueError, match="must be"):
        streamdp.frame(releases, backend="abacus")
    import pyarrow.parquet

    streamdp.write_parquet(releases, tmp_path / "r.parquet")
    assert pyarrow.parquet.read_table(tmp_path / "r.parquet").num_rows == len(everything)


def test_plots() -> None:
    import matplotlib

    matplotlib.use("agg")
    releases = streamdp.assemble([release(s) for s in (1, 2, 3)] + [release(1, epoch=2)])
    ax = streamdp.plot_mean(releases, releases[0].columns[1])
    assert len(ax.lines) == 2  # one an epoch
    assert [tuple(x) for x in ax.lines[0].get_xydata()] == [(100 * r.step, r.values["mean"].data[1]) for r in releases[:3]]
    with pytest.raises(ReleaseError, match="no column"):
        streamdp.plot_mean(releases, "nothing")
    matrix = streamdp.assemble([release(1, covariance={"shape": [3, 3], "layout": "upper", "data": [4, 1, -3, 1, 0, -9], "se": 1})])
    shown = streamdp.plot_correlation(matrix).images[0].get_array()
    assert shown[0][1] == shown[1][0] == 0.5
    assert shown.mask[0][2] if shown.mask is not False and hasattr(shown.mask, "__len__") else math.isnan(shown[0][2])
    with pytest.raises(ReleaseError, match="none of"):
        streamdp.plot_coefficients(releases)
    regression = streamdp.assemble([release(1, theta={"shape": [2], "data": [1, -2], "se": [0.1, None]})])
    ax = streamdp.plot_coefficients(regression)
    assert list(ax.lines[0].get_xdata()) == pytest.approx([1 - 0.196, 1 + 0.196], abs=1e-3)


def test_schema() -> None:
    with pytest.raises(streamdp.SchemaError, match="step"):
        streamdp.verify_schema(release(step=0))
    own = Path(streamdp.__file__).with_name("release.schema.json").read_bytes()
    assert own == (ROOT / "stream" / "httpapi" / "release.schema.json").read_bytes(), "copy stream/httpapi/release.schema.json to python/src/streamdp"


@pytest.mark.skipif("STREAMDP_PROGRAM" not in os.environ, reason="STREAMDP_PROGRAM names no streamdp program")
def test_demo_and_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demonstration's topic, read through Kafka; and the notebook, cell by cell, against it."""
    import matplotlib

    matplotlib.use("agg")
    demo = subprocess.Popen([os.environ["STREAMDP_PROGRAM"], "demo"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert demo.stderr is not None
        demo.stderr.readline()
        found = re.match(r"broker at (\S+),", demo.stderr.readline())
        assert found
        broker = found[1]
        deadline = time.monotonic() + 300  # one release a second
        releases: list[Release] = []
        while time.monotonic() < deadline and len(releases) < 30:
            time.sleep(1)
            try:
                releases = streamdp.read(broker, "demo.dp")
            except LookupError:
                continue
        assert [r.step for r in releases] == list(range(1, len(releases) + 1)) and len(releases) >= 30
        for r in releases:
            streamdp.verify_schema(r)
        monkeypatch.setenv("STREAMDP_BROKER", broker)
        monkeypatch.chdir(tmp_path)
        cells = json.loads((ROOT / "python" / "demo.ipynb").read_text())["cells"]
        scope: dict[str, Any] = {}
        for cell in cells:
            if cell["cell_type"] == "code":
                exec("".join(cell["source"]), scope)
        assert (tmp_path / "mean.png").stat().st_size > 10_000
    finally:
        demo.terminate()
        demo.wait(60)
