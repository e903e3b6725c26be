"""A running log of releases: public audits appended to Delta tables, each release once.

No JVM is involved: the ``deltalake`` package writes from the driver, with Delta's optimistic
concurrency, so that any number of processes may append to one log.
"""

from __future__ import annotations

import datetime
import decimal
import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from spark_dphist.audit import AUDIT_COLUMNS, PublicAudit
from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.optional import needing

RELEASES, GROUPS = "releases", "groups"

_ATTEMPTS = 30
_LONGEST_WAIT_IN_SECONDS = 0.5
_ROWS_AT_ONCE = 65_536
_NUMBERS = ("noisy_count", "lower", "upper", *AUDIT_COLUMNS)
_GROUP_SCHEMA = pa.schema(
    [
        ("release_id", pa.string()),
        ("created_at", pa.timestamp("us", "UTC")),
        ("group", pa.string()),
        *[(name, pa.float64()) for name in _NUMBERS],
    ]
)


def check_delta_log(location: str) -> None:
    """Refuse a log that cannot be appended to, before anything is charged; writes nothing.

    Raises
    ------
    ConfigurationError
        If the package is missing, or what stands at the location cannot be read as Delta tables.
    """
    with needing("audit.delta_log", "delta"):
        import deltalake
    for name in (RELEASES, GROUPS):
        place = _place(location, name)
        try:
            if deltalake.DeltaTable.is_deltatable(place):
                deltalake.DeltaTable(place)
        except Exception as error:
            raise ConfigurationError(
                f"the log of releases {place!r} cannot be used ({type(error).__name__}). Give "
                "audit.delta_log a directory of its own, on a local disk or an object store."
            ) from None


def append_audit(location: str, audit: PublicAudit) -> bool:
    """Append a release's public audit to the log, unless the log has it.

    Parameters
    ----------
    location
        The log's directory or URI. It holds two Delta tables, ``releases`` (the audit header, a
        row for each release) and ``groups``, which are made if there are none.
    audit
        Of a published release. Where its groups were not collected, only the header is appended.

    Returns
    -------
    bool
        False if the log had the release, which is what a retry finds.

    Raises
    ------
    ReleaseError
        If the log cannot be written.

    Notes
    -----
    Each commit carries Delta's application transaction of the release id (Delta's protocol,
    "Transaction Identifiers"). Of two writers of one release that start from the same version one
    is refused by the other's commit, looks again and finds the release there; writers of
    different releases never conflict. ``releases`` is written last: a release in it has its
    groups in the log.
    """
    header = audit.header
    if audit.groups is not None:
        groups = audit.groups
        _append(
            _place(location, GROUPS),
            header.release_id,
            _GROUP_SCHEMA,
            lambda: pa.RecordBatchReader.from_batches(_GROUP_SCHEMA, _group_rows(audit, groups)),
        )
    row = header.to_arrow()
    nullable = pa.schema([field.with_nullable(True) for field in row.schema])
    return _append(
        _place(location, RELEASES), header.release_id, nullable, lambda: row.cast(nullable)
    )


def _append(place: str, release_id: str, schema: pa.Schema, rows: Callable[[], Any]) -> bool:
    import deltalake
    from deltalake.exceptions import CommitFailedError, TableNotFoundError

    once = deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction(f"spark-dphist:{release_id}", 1)]
    )
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            try:
                table = deltalake.DeltaTable(place)
            except TableNotFoundError:
                table = deltalake.DeltaTable.create(place, schema, mode="ignore")
            if table.transaction_version(f"spark-dphist:{release_id}") is not None:
                return False
            # The schema of an older version of this package grows by the columns it lacks.
            deltalake.write_deltalake(
                table, rows(), mode="append", schema_mode="merge", commit_properties=once
            )
        except CommitFailedError as error:
            if attempt == _ATTEMPTS:
                raise _not_appended(place, release_id, error) from None
            wait = min(0.01 * 2**attempt, _LONGEST_WAIT_IN_SECONDS)
            time.sleep(random.uniform(0, wait))  # noqa: S311 - spreads writers, no secret
        except Exception as error:
            raise _not_appended(place, release_id, error) from None
        else:
            return True
    raise AssertionError("unreachable")


def _not_appended(place: str, release_id: str, error: Exception) -> ReleaseError:
    return ReleaseError(
        f"release {release_id!r} is published, but was not appended to the log {place!r} "
        f"({type(error).__name__}). Mend the log, then ask for the same release id again, or "
        "append its stored audit with spark_dphist.delta_log.append_audit."
    )


def _group_rows(audit: PublicAudit, groups: pa.Table) -> Iterator[pa.RecordBatch]:
    keys = audit.header.group_columns
    for batch in groups.to_batches(max_chunksize=_ROWS_AT_ONCE):
        texts = [
            json.dumps(key, default=_as_text, ensure_ascii=False)
            for key in batch.select(keys).to_pylist()
        ]
        columns = [
            pa.array([audit.header.release_id] * len(batch)),
            pa.array([audit.header.created_at] * len(batch), pa.timestamp("us", "UTC")),
            pa.array(texts, pa.string()),
            *[batch.column(name).cast(pa.float64(), safe=False) for name in _NUMBERS],
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_GROUP_SCHEMA)


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC)
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return str(value)
    raise TypeError(f"a group key cannot be a {type(value).__name__}")


def _place(location: str, name: str) -> str:
    return f"{location.rstrip('/')}/{name}"
