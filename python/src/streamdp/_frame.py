"""Releases as tables."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ._release import Release, ReleaseError

Z = 1.959963984540054  # standard errors on each side of a 95 % band

COLUMNS = ("stream", "partition", "epoch", "step", "first", "end", "rows", "value", "column", "other", "x", "se", "low", "high")


def records(releases: Iterable[Release], value: str | None = None) -> list[dict[str, Any]]:
    """Returns one record for each number of each release, for one value or for all.

    column names the number's column; for an entry of a matrix, column and other name its row and
    column. low and high are x ∓ 1.96 se, a 95 % band. se is the standard error of the noise alone
    or, if the release has it, se_with_clipping. All three are None if the release states no error.
    """
    out = []
    for r in releases:
        if value is not None and value not in r.values and r.values:
            raise ReleaseError(f"{r.key} has no {value}, only {', '.join(r.values)}")
        for v in r.values.values():
            if value is not None and v.name != value:
                continue
            for (column, other), x, se in zip(v.labels, v.data, v.se):
                out.append(dict(zip(COLUMNS, (
                    r.stream, r.partition, r.epoch, r.step, r.covers[0], r.covers[1], r.rows, v.name, column, other, x, se,
                    None if se is None else x - Z * se, None if se is None else x + Z * se,
                ))))
    return out


def frame(releases: Iterable[Release], value: str | None = None, *, backend: str = "pandas") -> Any:
    """Returns records as a data frame of "pandas" or "polars"."""
    rows = records(releases, value)
    columns = {c: [row[c] for row in rows] for c in COLUMNS}
    if backend == "pandas":
        import pandas

        return pandas.DataFrame(columns).astype({"se": "float64", "low": "float64", "high": "float64"})
    if backend == "polars":
        import polars

        return polars.DataFrame(columns, schema_overrides={"se": polars.Float64, "low": polars.Float64, "high": polars.Float64})
    raise ValueError(f"backend is {backend!r}, must be 'pandas' or 'polars'")


def write_parquet(releases: Iterable[Release], path: str | os.PathLike[str], value: str | None = None) -> None:
    """Writes records to a Parquet file."""
    import pyarrow
    import pyarrow.parquet

    types = [pyarrow.string(), pyarrow.int32(), *[pyarrow.int64()] * 5, *[pyarrow.string()] * 3, *[pyarrow.float64()] * 4]
    rows = records(releases, value)
    table = pyarrow.table({c: pyarrow.array([row[c] for row in rows], t) for c, t in zip(COLUMNS, types)})
    pyarrow.parquet.write_table(table, os.fspath(path))
