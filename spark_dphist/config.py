"""The configuration of one release: TOML in, validated values out; no data is touched."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.mechanisms import Mechanism
from spark_dphist.mechanisms.registry import calibrate

ReleaseId = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Location(_Section):
    """A path with a format, or a table of the catalog."""

    path: str | None = None
    table: str | None = None
    format: str = "parquet"
    options: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.table is None):
            raise ValueError("give either 'path' or 'table'")
        if not (self.path or self.table):
            raise ValueError("the path or table is empty")
        return self

    @property
    def described(self) -> str:
        """The path or table as it is shown to people."""
        return f"table {self.table}" if self.table else f"{self.format} {self.path}"


class InputSection(_Location):
    """The confidential table."""


class ColumnValues(_Section):
    """The values of one column of a product; TOML has no null, so NULL is asked for by name.

    A plain list stands for its values without NULL.
    """

    values: list[Any]
    include_null: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        return {"values": given} if isinstance(given, list) else given

    @property
    def all_values(self) -> list[Any]:
        """The values, with None for NULL."""
        return [*self.values, None] if self.include_null else self.values


class KeySetSection(_Section):
    """The public key set: exactly one of product, tuples, table and path."""

    product: dict[str, ColumnValues] | None = None
    tuples: list[list[Any]] | None = None
    table: str | None = None
    path: str | None = None
    format: str = "parquet"
    options: dict[str, str] = {}

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [
            name
            for name in ("product", "tuples", "table", "path")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                "declare the key set by exactly one of 'product', 'tuples', 'table' and 'path', "
                f"got {', '.join(given) or 'none'}"
            )
        return self


class GroupsSection(_Section):
    """What a group is: the columns, and the keys that are published (tuples in their order)."""

    columns: list[str]
    keys: KeySetSection


class MechanismSection(BaseModel):
    """The promise on the error and the mechanism that keeps it; further fields are its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "shifted_log"
    relative_error: float
    floor: float

    def calibrated(self) -> Mechanism:
        """Return the mechanism, calibrated to the promise."""
        return calibrate(
            self.name,
            relative_error=self.relative_error,
            floor=self.floor,
            options=self.model_extra,
        )


class PrivacySection(_Section):
    """How budgets are reported."""

    delta: float = Field(default=1e-6, gt=0, lt=1)


class OutputSection(_Location):
    """Where the noisy counts go."""

    files: int = Field(default=1, ge=1, le=10_000)
    rounding: Literal["nearest", "none"] = "nearest"
    confidence: float = Field(default=0.95, gt=0, lt=1)
    mode: Literal["error", "overwrite"] = "error"


class AuditSection(_Section):
    """Where the public audit goes: beside the output unless said otherwise."""

    path: str | None = None
    table: str | None = None

    @model_validator(mode="after")
    def _at_most_one_place(self) -> Self:
        if self.path is not None and self.table is not None:
            raise ValueError("give either 'path' or 'table', not both")
        return self


class ConfidentialAuditSection(_Section):
    """Where the confidential audit goes: a place that only those may read who may read the data."""

    path: str


class SparkSection(_Section):
    """Settings of the Spark session that the command line starts."""

    settings: dict[str, str] = {}


class ReleaseConfiguration(_Section):
    """One release. The release key is not part of it and is never read from a file."""

    name: ReleaseId = "release"
    release_id: ReleaseId | None = None
    input: InputSection
    groups: GroupsSection
    mechanism: MechanismSection
    privacy: PrivacySection = PrivacySection()
    output: OutputSection
    audit: AuditSection = AuditSection()
    confidential_audit: ConfidentialAuditSection | None = None
    spark: SparkSection = SparkSection()


def load_configuration(path: str | Path) -> ReleaseConfiguration:
    """Read and validate a TOML configuration.

    Raises
    ------
    ConfigurationError
        If the file is missing, is not TOML, or any field is unknown, missing or wrong; the message
        lists every fault with its place and the nearest mend.
    """
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = sorted(str(other) for other in file.parent.glob("*.toml"))
        raise ConfigurationError(
            f"configuration {str(path)!r} does not exist. {did_you_mean(str(path), near)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"configuration {str(path)!r} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"configuration {str(path)!r} is not TOML: {error}") from None
    return parse_configuration(content, str(path))


def parse_configuration(content: dict[str, Any], source: str) -> ReleaseConfiguration:
    """Validate a configuration given as nested dictionaries; see ``load_configuration``."""
    try:
        return ReleaseConfiguration.model_validate(content)
    except ValidationError as error:
        faults = dict.fromkeys(_fault(detail) for detail in error.errors())
        lines = "\n".join(f"  {fault}" for fault in faults)
        raise ConfigurationError(f"configuration {source!r} is not valid:\n{lines}") from None


def _fault(detail: Any) -> str:
    location = [str(part) for part in detail["loc"]]
    where = ".".join(location)
    if detail["type"] == "extra_forbidden":
        known = _fields_at(location[:-1])
        return f"{where}: unknown field. {did_you_mean(location[-1], known)}"
    if detail["type"] == "missing":
        return f"{where}: missing, but required"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "value_error":
        return f"{where}: {message}"
    return f"{where}: {message}, got {detail['input']!r}"


def _fields_at(location: list[str]) -> list[str]:
    model: type[BaseModel] = ReleaseConfiguration
    for part in location:
        field = model.model_fields.get(part)
        # A part that is no field is a key of a dictionary, whose values have the current model.
        models = _models_in(field.annotation) if field else [model]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)


def _models_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for argument in get_args(kind) for model in _models_in(argument)]
