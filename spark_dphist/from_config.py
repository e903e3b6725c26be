"""From a validated configuration to a release request on a Spark session."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from spark_dphist.config import (
    ColumnFilter,
    GroupsSection,
    InputSection,
    KeySetSection,
    ReleaseConfiguration,
)
from spark_dphist.errors import ConfigurationError
from spark_dphist.request import ReleaseRequest, new_release_id
from spark_dphist.spark.bins import Bins
from spark_dphist.spark.failures import SPARK_ERRORS, first_sentence_of
from spark_dphist.spark.key_set import KeySet
from spark_dphist.spark.places import OutputTarget
from spark_dphist.spark.selection import ColumnCondition, select_records
from spark_dphist.spark.snapshots import PinnedInput, read_path, read_table
from spark_dphist.spark.storage import PathTarget, TableTarget, from_working_directory


def request_from(spark: SparkSession, configuration: ReleaseConfiguration) -> ReleaseRequest:
    """Bind a configuration to a session.

    Raises
    ------
    ConfigurationError
        If the input or a key-set table cannot be read, or the mechanism cannot be calibrated.

    Notes
    -----
    The snapshot of an Iceberg or Delta input is resolved here, once.
    """
    mechanism = configuration.mechanism.calibrated()
    source, output = configuration.input, configuration.output
    release_id = configuration.release_id or new_release_id(configuration.name)
    counts = _output(configuration, release_id)
    audit = _audit(configuration, counts)
    secret = configuration.confidential_audit
    called = f"the input {source.described}"
    pinned = _read(spark, source, called, source.snapshot)
    conditions = [_condition(name, each) for name, each in source.where.items()]
    return ReleaseRequest(
        records=_binned(select_records(pinned.records, conditions, called), configuration.groups),
        input=source.counted,
        input_snapshot=pinned.snapshot,
        input_path=source.path,
        input_table=source.table,
        columns=configuration.groups.columns,
        key_set=_key_set(spark, configuration.groups),
        mechanism=mechanism,
        relative_error=configuration.mechanism.relative_error,
        output=counts,
        audit_groups=audit.beside("_groups"),
        audit_header=audit.beside("_header"),
        confidential_audit=PathTarget(secret.path, release_id, mode=output.mode)
        if secret
        else None,
        files=output.files,
        rounding=output.rounding,
        confidence=output.confidence,
        delta=configuration.privacy.delta,
        release_name=configuration.name,
        release_id=release_id,
        privacy_unit=configuration.privacy.privacy_unit,
        dataset=configuration.ledger.dataset if configuration.ledger else None,
        max_collected_groups=configuration.audit.max_collected_groups,
        max_groups=configuration.groups.max_groups,
        delta_log=configuration.audit.delta_log,
    )


def audit_places(configuration: ReleaseConfiguration) -> tuple[OutputTarget, OutputTarget]:
    """Return where the groups and the header of a release's public audit lie."""
    audit = _audit(configuration, _output(configuration, configuration.release_id or "report"))
    return audit.beside("_groups"), audit.beside("_header")


def _output(configuration: ReleaseConfiguration, release_id: str) -> OutputTarget:
    output = configuration.output
    if output.table is not None:
        return TableTarget(output.table, release_id, output.format, output.options, output.mode)
    assert output.path is not None  # noqa: S101 - the section has checked it
    return PathTarget(output.path, release_id, output.format, output.options, output.mode)


def _audit(configuration: ReleaseConfiguration, counts: OutputTarget) -> OutputTarget:
    audit, mode = configuration.audit, configuration.output.mode
    if audit.path is not None:
        return PathTarget(audit.path, counts.release_id, mode=mode)
    if audit.table is not None:
        provider = counts.format if isinstance(counts, TableTarget) else "parquet"
        return TableTarget(audit.table, counts.release_id, provider, mode=mode)
    return counts.beside("_audit")


def _condition(column: str, given: ColumnFilter) -> ColumnCondition:
    return ColumnCondition(column, given.all_values, given.first, given.before)


def _read(
    spark: SparkSession,
    place: InputSection | KeySetSection,
    called: str,
    snapshot: str | None = None,
) -> PinnedInput:
    try:
        if place.table is not None:
            pinned = read_table(spark, place.table, snapshot)
        else:
            path = from_working_directory(place.path or "")
            pinned = read_path(
                spark, path, place.format, place.options, place.declared_schema, snapshot
            )
        _ = pinned.records.schema
    except SPARK_ERRORS as error:
        raise ConfigurationError(
            # Schemas come from catalogs, files' footers and declarations, never from records.
            f"{called} cannot be read: {first_sentence_of(error)}. Check the path or table, its "
            "format and your permissions."
        ) from None
    return pinned


def _binned(records: DataFrame, groups: GroupsSection) -> DataFrame:
    for name, section in groups.bins.items():
        records = Bins(section.column, section.edges, section.labels).add_to(records, name)
    return records


def _key_set(spark: SparkSession, groups: GroupsSection) -> KeySet:
    section, product = groups.keys, groups.product_values
    if product is not None:
        return KeySet.product(product)
    if section.tuples is not None:
        return KeySet.from_tuples(groups.columns, section.tuples)
    if section.select is not None:
        return KeySet.select(**section.select.model_dump())
    called = f"the key set {section.table or section.path}"
    return KeySet.from_dataframe(_read(spark, section, called).records)
