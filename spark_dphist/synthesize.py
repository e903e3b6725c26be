"""Synthetic records of a release, stored and marked as such: post-processing, free of any budget.

Nothing is read but the release's public tables (docs/synthetic-records.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_dphist.audit import AuditHeader, versions_json
from spark_dphist.errors import ConfigurationError, ReleaseError, SparkDphistError
from spark_dphist.request import new_release_id
from spark_dphist.spark.arrow_exchange import collect_arrow
from spark_dphist.spark.failures import SPARK_ERRORS, condition_of
from spark_dphist.spark.places import OutputTarget, check_places
from spark_dphist.spark.storage import (
    Mode,
    PathTarget,
    lies_within,
    normalised_path,
    path_exists,
)
from spark_dphist.spark.synthetic import released_total, synthetic_records

_GROUPS, _HEADER = "_groups", "_header"
MARK_SUFFIX = "_synthetic"
NOTICE = (
    "Synthetic records, made from noisy counts: no row is about a person or an event, and the "
    "counts have the release's errors."
)

_UNREADABLE: tuple[type[Exception], ...] = (*SPARK_ERRORS, KeyError, ValueError)


@dataclass(frozen=True)
class PublishedRelease:
    """A release as its public tables have it.

    ``groups`` needs the group columns and ``noisy_count``: the released counts, or the groups of
    the public audit, read from where they are stored. ``places`` are the paths of its tables.
    """

    header: AuditHeader
    groups: DataFrame = field(repr=False)
    places: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SyntheticMark:
    """What a synthetic table is, in one row beside it.

    Parameters
    ----------
    synthetic
        True.
    synthetic_id, created_at, output
        Of the synthetic table.
    release_id, release_name, input, mechanism, worst_case_rho, fixed_release_key
        Of the release it was made from.
    group_columns, groups
        The columns of the records, and how many groups were released.
    released_total
        The sum of the released counts, negative ones taken for 0, to the nearest record.
    rows
        How many records were made.
    seed
        Of the rounding of the groups' shares.
    notice, versions
        What a reader should know; the versions it was made with, as JSON.
    """

    synthetic: bool
    synthetic_id: str
    created_at: datetime
    output: str
    release_id: str
    release_name: str
    input: str
    mechanism: str
    worst_case_rho: float
    fixed_release_key: bool
    group_columns: list[str]
    groups: int
    released_total: int
    rows: int
    seed: int
    notice: str
    versions: str

    def to_arrow(self) -> pa.Table:
        """Return the mark as a table of one row."""
        return pa.table(
            {
                name: pa.array([value], pa.timestamp("us", "UTC") if name == "created_at" else None)
                for name, value in self.__dict__.items()
            }
        )


@dataclass(frozen=True)
class Synthetic:
    """A stored synthetic table: ``records`` reads what was stored."""

    mark: SyntheticMark
    records: DataFrame = field(repr=False)


def read_release(spark: SparkSession, path: str) -> PublishedRelease:
    """Read a release's public audit from where it stands.

    Parameters
    ----------
    spark
        A classic or Connect session.
    path
        The path of the released counts, with the audit beside it, or what the paths of the audit
        begin with (``OUTPUT_audit`` of ``OUTPUT_audit_groups`` and ``OUTPUT_audit_header``).

    Raises
    ------
    ConfigurationError
        If there is no audit at the path, or it cannot be read.
    """
    given = path.rstrip("/")
    stem = given.removesuffix(_GROUPS).removesuffix(_HEADER)
    stems = [stem, f"{given}_audit"]
    found = next((stem for stem in stems if path_exists(stem + _HEADER)), None)
    if found is None or not path_exists(found + _GROUPS):
        raise ConfigurationError(
            f"there is no release at {path!r}: neither {stems[0] + _HEADER!r} nor "
            f"{stems[1] + _HEADER!r} is there, with its groups. Give the path of a release's "
            "counts, or what the two paths of its public audit begin with."
        )
    places = (found + _HEADER, found + _GROUPS)
    try:
        header = AuditHeader.from_arrow(
            collect_arrow(spark.read.parquet(normalised_path(places[0])))
        )
        groups = spark.read.parquet(normalised_path(places[1]))
        _ = groups.schema
    except _UNREADABLE as error:
        raise ConfigurationError(
            f"the audit at {found!r} cannot be read ({condition_of(error)}): it is not Parquet, or "
            "not one that this version of spark-dphist writes."
        ) from None
    return PublishedRelease(header, groups, places)


def synthesize(
    spark: SparkSession,
    release: PublishedRelease,
    output: OutputTarget,
    *,
    rows: int | None = None,
    seed: int = 0,
    files: int = 1,
) -> Synthetic:
    """Make synthetic records of a release and store them, with a mark beside them.

    Parameters
    ----------
    spark
        A classic or Connect session.
    release
        Its public tables; see ``read_release``.
    output
        Where the records go; the mark goes beside it, under its name and ``_synthetic``.
    rows, seed
        See ``spark_dphist.spark.synthetic.synthetic_records``.
    files
        How many files, and tasks, the records take.

    Raises
    ------
    ConfigurationError
        If a place is taken, lies in the release, or no such records can be made.
    ReleaseError
        If a step failed, or the release is incomplete; nothing was published then, unless the
        message says so.

    Notes
    -----
    Privacy Guarantee: the records are a function of the release alone (post-processing) and cost
    nothing. They are no more private than the release either: publish them to the same readers.
    """
    mark_place = output.beside(MARK_SUFFIX)
    _check_places(spark, release, output, mark_place)
    if not 1 <= files <= 10_000:
        raise ConfigurationError(f"files must be from 1 to 10,000, got {files}")
    header = release.header
    staged = (mark_place, output)
    try:
        total = released_total(release.groups)
        if total.groups != header.key_set_size:
            raise ReleaseError(
                f"the release {header.release_id!r} has {header.key_set_size:,} groups, but "
                f"{total.groups:,} stand in its table: it was changed. Restore it first"
            )
        records = synthetic_records(
            release.groups, header.group_columns, total, rows=rows, seed=seed, tasks=files
        )
        mark = SyntheticMark(
            synthetic=True,
            synthetic_id=output.release_id,
            created_at=datetime.now(UTC),
            output=output.described,
            release_id=header.release_id,
            release_name=header.release_name,
            input=header.input,
            mechanism=header.mechanism,
            worst_case_rho=header.worst_case_rho,
            fixed_release_key=header.fixed_release_key,
            group_columns=list(header.group_columns),
            groups=total.groups,
            released_total=total.rows,
            rows=total.rows if rows is None else rows,
            seed=seed,
            notice=NOTICE,
            versions=versions_json(spark.version),
        )
        mark_place.stage_arrow(spark, mark.to_arrow())
        output.stage(records)
    except BaseException as error:
        for place in staged:
            place.discard(spark)
        if isinstance(error, ConfigurationError) or not isinstance(error, Exception):
            raise
        reason = str(error) if isinstance(error, SparkDphistError) else condition_of(error)
        raise ReleaseError(
            f"no synthetic records were made of release {header.release_id!r} ({reason}). Nothing "
            "was published."
        ) from None
    for place in staged:
        place.publish(spark)
    return Synthetic(mark, output.read(spark, records.schema))


def synthetic_target(
    path: str, *, file_format: str = "parquet", overwrite: bool = False
) -> PathTarget:
    """Return a place for synthetic records on a file system, under a fresh id."""
    options = {"header": "true"} if file_format == "csv" else {}
    mode: Mode = "overwrite" if overwrite else "error"
    return PathTarget(path, new_release_id("synthetic"), file_format, options, mode)


def _check_places(
    spark: SparkSession, release: PublishedRelease, output: OutputTarget, mark: OutputTarget
) -> None:
    check_places(spark, {"output": output, "synthetic mark": mark}, None, None, None)
    for place in (output, mark):
        # The released counts are where the header says, if that is a path.
        for public in (*release.places, release.header.output):
            if isinstance(place, PathTarget):
                taken = lies_within(place.path, public) or lies_within(public, place.path)
            else:
                taken = place.described == public
            if taken:
                raise ConfigurationError(
                    f"the synthetic records cannot go to {place.described!r}: the release itself "
                    f"is at {public!r}. Choose a place of their own."
                )
        place.refuse_existing(spark)
