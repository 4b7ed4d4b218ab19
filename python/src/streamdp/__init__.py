"""Reads the releases that streamdp publishes.

>>> import streamdp
>>> releases = streamdp.read("localhost:9092", "orders.dp")       # or read_file("releases.ndjson")
>>> frame = streamdp.frame(releases, "mean_original")             # pandas; backend="polars"
>>> streamdp.plot_mean(releases)

The package itself needs only Python. Frames need pandas or polars, plots need matplotlib, Parquet
files need pyarrow, verify_schema needs jsonschema, and read needs a Kafka client.
"""

from ._frame import frame, records, write_parquet
from ._plot import plot_coefficients, plot_correlation, plot_mean
from ._read import read, read_file
from ._release import Assembler, Release, ReleaseError, Value, assemble, parse
from ._schema import SchemaError, verify_schema

__all__ = [
    "Assembler", "Release", "ReleaseError", "SchemaError", "Value", "assemble", "frame", "parse", "plot_coefficients",
    "plot_correlation", "plot_mean", "read", "read_file", "records", "verify_schema", "write_parquet",
]
__version__ = "0.1.0"
