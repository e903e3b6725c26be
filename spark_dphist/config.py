"""The configuration of one release: TOML in, validated values out; no data is touched."""

from __future__ import annotations

import datetime
import decimal
import inspect
import math
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)

from spark_dphist.accounting.key_selection import KeySelection
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.config_faults import KEY_IS_NEVER_READ, fault_sentences, is_named_like_a_key
from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.key_ranges import MAX_GROUPS, bin_labels, values_of
from spark_dphist.mechanisms import Mechanism
from spark_dphist.mechanisms.base import check_promise
from spark_dphist.mechanisms.partition_selection import as_written
from spark_dphist.mechanisms.registry import calibrate, calibrators, check_options


def _setting(value: Any) -> Any:
    # The value is not shown: settings of Spark hold credentials too.
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        raise ValueError(
            "expected a value, got a table. A name with dots is written in quotes: "
            '"spark.ui.enabled" = false'
        )
    if not isinstance(value, str | int | float):
        raise ValueError(f"expected text, a number, true or false, got a {type(value).__name__}")
    return str(value)


def _key_value(value: Any) -> Any:
    if isinstance(value, float):
        raise ValueError(
            f"a group key cannot be a float, got {value!r}. Write decimals in quotes, "
            "and integers without a point"
        )
    if value is None or isinstance(
        value, str | int | datetime.date | decimal.Decimal | bytes | bytearray
    ):
        return value
    raise ValueError(
        f"expected text, an integer, a date, a timestamp, true or false, got {value!r}"
    )


def _snapshot(value: Any) -> Any:
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,19}", text):
        raise ValueError(
            f"expected the digits of a snapshot id (Iceberg) or version (Delta), got {value!r}"
        )
    return text


Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Integer = Annotated[int, Field(strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Text = Annotated[str, Field(strict=True, min_length=1)]
ReleaseId = Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Settings = dict[str, Annotated[str, BeforeValidator(_setting)]]
KeyValue = Annotated[Any, BeforeValidator(_key_value)]
Snapshot = Annotated[str, BeforeValidator(_snapshot)]


# What stands for the data interval in a template; see ``intervals``.
PLACEHOLDER = re.compile(r"@(INTERVAL|FROM|BEFORE)@")

# Formats whose files do not say what their columns are, and options that make Spark find out.
_SCHEMALESS = ("csv", "json", "xml")
_INFERRING = ("inferschema", "samplingratio", "mergeschema", "prefersdate")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Location(_Section):
    """A path with a format, or a table of the catalog."""

    path: Text | None = None
    table: Text | None = None
    format: Text = "parquet"
    options: Settings = {}

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.path is None) == (self.table is None):
            got = "neither" if self.path is None else "both"
            raise ValueError(f"expected either 'path' or 'table', got {got}")
        return self

    @property
    def described(self) -> str:
        """The path or table as it is shown to people."""
        return f"table {self.table}" if self.table else f"{self.format} {self.path}"


class ColumnFilter(_Section):
    """What one column of the counted records holds: listed values, or a range without its end.

    A plain list stands for its values without NULL. ``from`` is in the range, ``before`` is not.
    """

    values: Annotated[list[KeyValue], Field(min_length=1)] | None = None
    include_null: Flag = False
    first: KeyValue = Field(default=None, alias="from")
    before: KeyValue = None

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        if isinstance(given, dict):
            return given
        if isinstance(given, list | tuple):
            return {"values": given}
        raise ValueError(
            "expected a list of values, or a table with 'from' and 'before', "
            f"got {given!r}. Write one value as a list too: [{given!r}]"
        )

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        listed = self.values is not None or self.include_null
        ranged = self.first is not None or self.before is not None
        if listed == ranged:
            raise ValueError(
                "expected either 'values' (and 'include_null') or a range of 'from' and 'before', "
                f"got {'both' if listed else 'neither'}"
            )
        return self

    @property
    def all_values(self) -> tuple[Any, ...] | None:
        """The listed values, with None for NULL; None for a range."""
        if self.first is not None or self.before is not None:
            return None
        return (*(self.values or []), *([None] if self.include_null else []))

    def described(self, column: str) -> str:
        """Return the condition as it is shown to people; no two conditions read the same."""
        name = column if column.isidentifier() else repr(column)
        if self.all_values is not None:
            return f"{name} in ({', '.join(map(_shown_value, self.all_values))})"
        ends = [("from", self.first), ("before", self.before)]
        given = [f"{end} {_shown_value(value)}" for end, value in ends if value is not None]
        return " ".join([name, *given])


def _shown_value(value: Any) -> str:
    if value is None:
        return "NULL"
    return repr(value) if isinstance(value, str | bytes) else str(value)


class InputSection(_Location):
    """The confidential table.

    ``schema`` declares its columns (``region STRING, day DATE``). Formats without one of their own
    need it: finding a schema in the records would read them before anything is charged, and one
    record could decide whether the release is refused.

    ``where`` selects the records that are counted, by their own values alone; columns are joined by
    "and". ``snapshot`` is the state that is read of an Iceberg or Delta table, the current one by
    default.

    ``rows`` is about how many records there are, where that is public: plans warn of a delta above
    one in that many. It is never counted, and changes nothing else.
    """

    declared_schema: Text | None = Field(default=None, alias="schema")
    where: dict[Text, ColumnFilter] = {}
    snapshot: Snapshot | None = None
    rows: Integer | None = Field(default=None, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _where_is_a_table(cls, given: Any) -> Any:
        if isinstance(given, dict) and isinstance(given.get("where"), str):
            raise ValueError(
                "'where' is no SQL: a condition must be about each record for itself, or the "
                "budget would not hold. Write a table of columns, for example "
                "where.day = { from = 2013-01-01, before = 2013-02-01 }, or select in a view"
            )
        return given

    @property
    def counted(self) -> str:
        """What is counted, as it is shown to people: the place, its snapshot and the selection."""
        at = f" at snapshot {self.snapshot}" if self.snapshot else ""
        conditions = " and ".join(each.described(name) for name, each in self.where.items())
        return f"{self.described}{at}{' where ' + conditions if conditions else ''}"

    @model_validator(mode="after")
    def _schema_is_not_inferred(self) -> Self:
        if self.format.lower() in _SCHEMALESS and self.declared_schema is None:
            raise ValueError(
                f"format {self.format!r} needs a declared 'schema', for example "
                "'region STRING, day DATE': it must not be found in the confidential records"
            )
        for option, value in self.options.items():
            if option.lower() == "header" and value.lower() not in ("true", "false"):
                raise ValueError(f"option {option!r} must be true or false, got {value!r}")
            if option.lower() in _INFERRING:
                raise ValueError(
                    f"option {option!r} would find the schema in the confidential records: remove "
                    "it, and declare 'schema'"
                )
        return self


class ColumnValues(_Section):
    """The values of one column of a product; TOML has no null, so NULL is asked for by name.

    A plain list stands for its values without NULL. ``from`` and ``to`` with ``step`` or ``every``
    stand for a range of integers or of dates (``key_ranges``).
    """

    values: list[KeyValue]
    include_null: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, given: Any) -> Any:
        if isinstance(given, dict) and ("from" in given or "to" in given):
            others = {name: value for name, value in given.items() if name != "include_null"}
            return {"values": values_of(others), "include_null": given.get("include_null", False)}
        if isinstance(given, dict):
            return given
        if isinstance(given, list | tuple):
            return {"values": given}
        raise ValueError(
            "expected a list of values, or a table with 'values' and 'include_null', or with "
            f"'from' and 'to', got {given!r}. Write one value as a list too: [{given!r}]"
        )

    @model_validator(mode="after")
    def _some_value(self) -> Self:
        if not self.all_values:
            raise ValueError("the column has no values, so the key set is empty: declare some")
        return self

    @property
    def all_values(self) -> list[Any]:
        """The values, with None for NULL."""
        return [*self.values, None] if self.include_null else self.values


class SelectSection(_Section):
    """A key set that is learnt from the data with (epsilon, delta)-DP; its keys become public.

    A unit is counted in ``groups_per_unit`` groups at most, once in each.
    """

    epsilon: Number
    delta: Number
    groups_per_unit: Integer = 1

    @model_validator(mode="after")
    def _can_be(self) -> Self:
        _ = self.selection
        return self

    @property
    def selection(self) -> KeySelection:
        """How groups are kept."""
        return KeySelection(
            epsilon=self.epsilon, delta=self.delta, groups_per_unit=self.groups_per_unit
        )


class KeySetSection(_Section):
    """The key set: a public one (product, tuples, table or path), or how to learn one (select)."""

    product: dict[str, ColumnValues] | None = None
    tuples: Annotated[list[list[KeyValue]], Field(min_length=1)] | None = None
    table: Text | None = None
    path: Text | None = None
    format: Text = "parquet"
    options: Settings = {}
    declared_schema: Text | None = Field(default=None, alias="schema")
    select: SelectSection | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [
            name
            for name in ("product", "tuples", "table", "path", "select")
            if getattr(self, name) is not None
        ]
        if len(given) != 1:
            raise ValueError(
                "declare the key set by exactly one of 'product', 'tuples', 'table' and 'path', or "
                "learn it from the data by 'select', "
                f"got {' and '.join(map(repr, given)) or 'none'}"
            )
        return self


def _edges(given: Any) -> Any:
    if isinstance(given, dict):
        return values_of(given)
    if not isinstance(given, list | tuple):
        raise ValueError(
            f"expected a list of edges, or a range with 'from' and 'to', got {given!r}"
        )
    return [_edge(value) for value in given]


def _edge(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return decimal.Decimal(value)
        except decimal.DecimalException:
            raise ValueError(
                f"an edge in quotes is a decimal, got {value!r}. Write dates without quotes"
            ) from None
    if type(value) in (int, float, decimal.Decimal, datetime.date):
        return value
    raise ValueError(f"expected a number or a date as an edge, got {value!r}")


class BinsSection(_Section):
    """A group column of bins of a column of the input; see ``spark.bins.Bins``."""

    column: Text
    edges: Annotated[list[Any], BeforeValidator(_edges)]
    labels: list[Text] | None = None

    @model_validator(mode="after")
    def _bins_make_sense(self) -> Self:
        _ = self.all_labels
        return self

    @property
    def all_labels(self) -> list[str]:
        """The labels of all bins, in order."""
        return bin_labels(self.edges, self.labels)


class GroupsSection(_Section):
    """What a group is: the columns, and the keys that are published (tuples in their order).

    ``bins`` makes group columns; in a product one without values has all bins and NULL.
    ``max_groups`` stops a key set that is larger than anybody meant.
    """

    columns: list[Text] = Field(min_length=1)
    keys: KeySetSection
    bins: dict[str, BinsSection] = {}
    max_groups: Integer = Field(default=MAX_GROUPS, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _bins_alone_need_no_keys(cls, given: Any) -> Any:
        if isinstance(given, dict) and "keys" not in given and given.get("bins"):
            binned, columns = given["bins"], given.get("columns")
            if isinstance(columns, list) and all(name in binned for name in columns):
                return {**given, "keys": {"product": {}}}
        return given

    @property
    def product_values(self) -> dict[str, list[Any]] | None:
        """The values of each column, None for NULL, if the key set is a product."""
        if self.keys.product is None:
            return None
        bins = {name: [*section.all_labels, None] for name, section in self.bins.items()}
        listed = {name: values.all_values for name, values in self.keys.product.items()}
        return {name: listed.get(name, bins.get(name, [])) for name in self.columns}

    @property
    def declared_size(self) -> int | None:
        """The number of groups as far as the configuration alone says, duplicates counted."""
        product = self.product_values
        if product is not None:
            return math.prod(len(values) for values in product.values())
        return None if self.keys.tuples is None else len(self.keys.tuples)

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        size = self.declared_size
        if size is not None and size > self.max_groups:
            raise ValueError(
                f"the key set would have {size:,} groups, more than max_groups = "
                f"{self.max_groups:,}. Declare fewer values, or the combinations that exist, as a "
                "table; or raise 'max_groups'"
            )
        return self

    @model_validator(mode="after")
    def _bins_are_group_columns(self) -> Self:
        for name, section in self.bins.items():
            if name not in self.columns:
                raise ValueError(
                    f"bins has the column {name!r}, which is not one of 'columns'. "
                    f"{did_you_mean(name, self.columns)}"
                )
            listed = (self.keys.product or {}).get(name)
            for label in listed.values if listed else []:
                if label not in section.all_labels:
                    raise ValueError(
                        f"keys.product.{name} has {label!r}, which is not the label of a bin. "
                        f"{did_you_mean(label, section.all_labels)}"
                    )
        return self

    @model_validator(mode="after")
    def _keys_fit_columns(self) -> Self:
        columns = self.columns
        for name in columns:
            if columns.count(name) > 1:
                raise ValueError(f"column {name!r} is named twice in 'columns'")
        if self.keys.product is not None:
            declared = list(self.keys.product)
            for name in declared:
                if name not in columns:
                    raise ValueError(
                        f"keys.product has the column {name!r}, which is not one of 'columns'. "
                        f"{did_you_mean(name, columns)}"
                    )
            for name in columns:
                if name not in declared and name not in self.bins:
                    raise ValueError(f"keys.product lacks the column {name!r}: declare its values")
        for position, row in enumerate(self.keys.tuples or [], start=1):
            if len(row) != len(columns):
                raise ValueError(
                    f"number {position} of keys.tuples has {len(row)} values, expected "
                    f"{len(columns)}, one for each of 'columns'"
                )
        return self


class MechanismSection(BaseModel):
    """The promise on the error and the mechanism that keeps it; further fields are its options."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: Text = "shifted_log"
    relative_error: Number
    floor: Number

    @model_validator(mode="after")
    def _known_and_of_the_right_types(self) -> Self:
        options = self.model_extra or {}
        for option in options:
            if is_named_like_a_key(option):
                raise ValueError(f"{option!r}: {KEY_IS_NEVER_READ}")
        check_options(self.name, options)
        _options_model(self.name).model_validate(options)
        check_promise(self.relative_error, self.floor)
        return self

    def calibrated(self) -> Mechanism:
        """Return the mechanism, calibrated to the promise.

        Raises
        ------
        ConfigurationError
            If the mechanism cannot keep the promise with these options.
        """
        try:
            return calibrate(
                self.name,
                relative_error=self.relative_error,
                floor=self.floor,
                options=self.model_extra,
            )
        except ConfigurationError as error:
            raise ConfigurationError(f"mechanism: {error}") from None


def _options_model(mechanism: str) -> type[BaseModel]:
    """Return a model of a mechanism's options with the types of its ``calibrate``."""
    calibrator = calibrators()[mechanism]
    kinds = get_type_hints(calibrator)
    fields: dict[str, Any] = {
        name: (kinds[name], parameter.default)
        for name, parameter in inspect.signature(calibrator).parameters.items()
        if name not in MechanismSection.model_fields
    }
    strict = ConfigDict(strict=True, allow_inf_nan=False)
    model: type[BaseModel] = create_model(mechanism, __config__=strict, **fields)
    return model


class PrivacySection(_Section):
    """Whom the release protects, and how its budget is reported.

    ``unit`` is ``record`` or the column that identifies a unit. With ``count = "units"`` a group
    counts its distinct units; ``max_records`` then bounds in how many groups one is counted.
    """

    delta: Number = Field(default=1e-6, gt=0, lt=1)
    unit: Text = "record"
    max_records: Integer = Field(default=1, ge=1)
    count: Literal["records", "units"] = "records"

    @property
    def privacy_unit(self) -> PrivacyUnit:
        """The privacy unit with its bound."""
        return PrivacyUnit(
            column=None if self.unit == "record" else self.unit,
            max_records=self.max_records,
            distinct=self.count == "units",
        )

    @model_validator(mode="after")
    def _unit_makes_sense(self) -> Self:
        _ = self.privacy_unit
        return self


class LedgerSection(_Section):
    """The ledger that is charged, and the data set in it."""

    url: Text
    dataset: Text


class OutputSection(_Location):
    """Where the noisy counts go."""

    files: Integer | None = Field(default=None, ge=1, le=10_000)
    rounding: Literal["nearest", "none"] = "nearest"
    confidence: Number = Field(default=0.95, gt=0, lt=1)
    mode: Literal["error", "overwrite"] = "error"


class AuditSection(_Section):
    """Where the public audit goes: beside the output unless said otherwise.

    Up to ``max_collected_groups`` groups the driver collects what was released; beyond, Spark
    writes the audit. ``delta_log`` is a directory of Delta tables to which it is appended as well.
    """

    path: Text | None = None
    table: Text | None = None
    max_collected_groups: Integer = Field(default=5_000_000, ge=0)
    delta_log: Text | None = None

    @model_validator(mode="after")
    def _at_most_one_place(self) -> Self:
        if self.path is not None and self.table is not None:
            raise ValueError("expected either 'path' or 'table', got both")
        return self


class ConfidentialAuditSection(_Section):
    """Where the confidential audit goes: a place that only those may read who may read the data."""

    path: Text


class SparkSection(_Section):
    """Settings of the Spark session that the command line starts."""

    settings: Settings = {}


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
    ledger: LedgerSection | None = None
    spark: SparkSection = SparkSection()

    @property
    def selection(self) -> KeySelection | None:
        """How the key set is learnt, if it is."""
        select = self.groups.keys.select
        return None if select is None else select.selection

    @model_validator(mode="after")
    def _selection_fits(self) -> Self:
        select = self.groups.keys.select
        if select is None:
            return self
        if select.groups_per_unit != 1 and self.privacy.unit == "record":
            raise ValueError(
                "groups.keys.select.groups_per_unit needs the column that tells units apart, as a "
                "record lies in one group: name it as privacy.unit, or leave it out"
            )
        if as_written(select.delta) >= as_written(self.privacy.delta):
            raise ValueError(
                f"groups.keys.select.delta = {select.delta:g} must be below privacy.delta = "
                f"{self.privacy.delta:g}, of which it is a part: a tenth of it, for example"
            )
        return self

    @model_validator(mode="after")
    def _promise_covers_what_is_published(self) -> Self:
        method = (self.mechanism.model_extra or {}).get("method", "exact")
        if method == "closed_form" and self.output.rounding == "nearest":
            raise ValueError(
                "mechanism.method 'closed_form' does not count what rounding adds to the error, so "
                "the promise could fail for the published integers: leave it out, or set "
                'output.rounding = "none"'
            )
        return self


def load_configuration(path: str | Path) -> ReleaseConfiguration:
    """Read and validate a TOML configuration.

    Raises
    ------
    ConfigurationError
        If the file is missing, is not TOML, or any field is unknown, missing or wrong; the message
        lists every fault with its place and the nearest mend. Also if it is a template, which
        ``intervals.load_for_interval`` reads.
    """
    text = read_text(path)
    template = PLACEHOLDER.search(text)
    if template is not None:
        raise ConfigurationError(
            f"configuration {str(path)!r} is a template: it has {template[0]}, which stands for a "
            "data interval. Name the interval, for example --interval 2026-01."
        )
    return parse_toml(text, str(path))


def read_text(path: str | Path) -> str:
    """Return the text of a configuration, or say in one sentence why it cannot be read."""
    file = Path(path)
    try:
        # Some editors put a byte order mark in front.
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigurationError(
            f"configuration {str(path)!r} does not exist. {_files_beside(file)}"
        ) from None
    except IsADirectoryError:
        raise ConfigurationError(
            f"configuration {str(path)!r} is a directory, expected a TOML file. "
            f"{_files_beside(file / 'release.toml')}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(
            f"configuration {str(path)!r} is not UTF-8 (byte {error.object[error.start]:#04x} at "
            f"position {error.start}). Save it as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"configuration {str(path)!r} cannot be read: {error.strerror}."
        ) from None


def parse_toml(text: str, source: str) -> ReleaseConfiguration:
    """Validate a configuration given as TOML; see ``load_configuration``."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"configuration {source!r} is not TOML: {error}. Text is written in quotes, "
            "sections as [section]; see https://toml.io."
        ) from None
    return parse_configuration(content, source)


def _files_beside(file: Path) -> str:
    if not file.parent.is_dir():
        return f"There is no directory {str(file.parent)!r} either."
    near = sorted(str(other) for other in file.parent.glob("*.toml"))
    if not near:
        return f"There is no *.toml file in {str(file.parent)!r}."
    return did_you_mean(str(file), near)


def with_release_id(
    configuration: ReleaseConfiguration, release_id: str, source: str = "--release-id"
) -> ReleaseConfiguration:
    """Return the configuration with another release id, validated like one from a file.

    ``source`` is what an error names.
    """
    content = {
        **configuration.model_dump(exclude_unset=True, by_alias=True),
        "release_id": release_id,
    }
    return parse_configuration(content, source)


def parse_configuration(content: dict[str, Any], source: str) -> ReleaseConfiguration:
    """Validate a configuration given as nested dictionaries; see ``load_configuration``."""
    try:
        return ReleaseConfiguration.model_validate(content)
    except ValidationError as error:
        sentences = fault_sentences(error, ReleaseConfiguration)
        lines = "\n".join(f"  {sentence}" for sentence in sentences)
        raise ConfigurationError(f"configuration {source!r} is not valid:\n{lines}") from None
