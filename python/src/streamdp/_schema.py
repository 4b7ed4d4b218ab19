"""Validation against the JSON Schema of releases."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

from ._release import Release


class SchemaError(ValueError):
    """A release violates the schema."""


@functools.cache
def _validator() -> Any:
    import jsonschema

    schema = json.loads(resources.files(__package__).joinpath("release.schema.json").read_text("utf-8"))
    return jsonschema.Draft202012Validator(schema)


def verify_schema(release: Release | bytes | str) -> None:
    """Validates a release, or the bytes of one. Raises SchemaError with all faults. Needs jsonschema."""
    raw = release.raw if isinstance(release, Release) else json.loads(release)
    faults = [f"{e.json_path}: {e.message}" for e in _validator().iter_errors(raw)]
    if faults:
        raise SchemaError("\n".join(faults))
