"""What a release is, for other programs: JSON with a published schema, from public data alone."""

from __future__ import annotations

import json
from typing import Any, Literal, get_type_hints

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, create_model

from spark_dphist.audit import AuditHeader, PublicAudit

METADATA_VERSION = "1"

# Header fields that hold JSON as text; here they are objects.
_OBJECTS = ("parameters", "versions", "key_set_selection")
_MEANINGS = {
    "noisy_count": "the released count",
    "lower": "the true count is at least this, with the stated confidence for both bounds",
    "upper": "the true count is at most this",
    "rho_at_noisy_count": "zCDP budget of a member of a group of the released count",
    "rho_lower": "least budget over the interval",
    "rho_upper": "greatest budget over the interval",
    "expected_bias": "expected error of the released count, at the released count",
}


class Column(BaseModel):
    """One column of the table of groups."""

    model_config = ConfigDict(extra="forbid")

    name: str
    type: str = Field(description="As Apache Arrow writes it, for example int64, string, date32")
    role: Literal["key", "number"]
    meaning: str


def _model() -> type[BaseModel]:
    kinds = get_type_hints(AuditHeader)
    fields: dict[str, Any] = {
        "metadata_version": (Literal["1"], ...),
        "columns": (
            list[Column] | None,
            Field(description="Of the public table of groups; null where it was not collected"),
        ),
    }
    for name in AuditHeader.__annotations__:
        kind: Any = kinds[name]
        if name in _OBJECTS:
            kind = dict[str, Any] | None if type(None) in _arguments(kind) else dict[str, Any]
        fields[name] = (kind, ...)
    config = ConfigDict(
        extra="forbid",
        title="spark_dphist release metadata",
        json_schema_extra={
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "description": (
                "What one differentially private release is and promises; public. docs/audit.md "
                "describes each field. Budgets are in rho (zCDP), epsilon in nats."
            ),
        },
    )
    model: type[BaseModel] = create_model("ReleaseMetadata", __config__=config, **fields)
    return model


def _arguments(kind: Any) -> tuple[Any, ...]:
    return getattr(kind, "__args__", ())


def metadata(audit: PublicAudit) -> dict[str, Any]:
    """Return what a release is as JSON values: the audit header's fields, by the same names.

    ``parameters``, ``versions`` and ``key_set_selection`` are objects, ``created_at`` is ISO 8601;
    ``metadata_version`` and ``columns`` come on top. ``metadata_schema`` describes it.
    """
    fields: dict[str, Any] = dict(audit.header.__dict__)
    for name in _OBJECTS:
        if fields.get(name) is not None:
            fields[name] = json.loads(fields[name])
    fields["metadata_version"] = METADATA_VERSION
    fields["columns"] = None if audit.groups is None else _columns(audit.groups, audit.header)
    made: dict[str, Any] = _model().model_validate(fields).model_dump(mode="json")
    return made


def metadata_json(audit: PublicAudit) -> str:
    """Return ``metadata`` as text."""
    return json.dumps(metadata(audit), indent=2, allow_nan=False, ensure_ascii=False)


def metadata_schema() -> str:
    """Return the JSON Schema of ``metadata`` as text; docs/schemas has it as a file."""
    return json.dumps(_model().model_json_schema(mode="serialization"), indent=2) + "\n"


def _columns(groups: pa.Table, header: AuditHeader) -> list[dict[str, str]]:
    return [
        {
            "name": field.name,
            "type": str(field.type),
            "role": "key" if field.name in header.group_columns else "number",
            "meaning": "part of the group's key; NULL is a value of its own"
            if field.name in header.group_columns
            else _MEANINGS.get(field.name, "see docs/audit.md"),
        }
        for field in groups.schema
    ]
