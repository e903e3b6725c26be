"""Where releases and audits are stored: written beside their place first, then moved into it."""

from __future__ import annotations

import hashlib
import posixpath
import re
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

import pyarrow
import pyarrow.fs
import pyarrow.parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from spark_dphist.errors import ConfigurationError, ReleaseError
from spark_dphist.spark.arrow_exchange import dataframe_from_arrow
from spark_dphist.spark.failures import SPARK_ERRORS

Mode = Literal["error", "overwrite"]

# Hadoop's names of file systems that Arrow knows under another name.
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}

# Formats that create or replace a table with its rows by one commit, and the table property by
# which such a copy is known to be one of what is staged.
_TRANSACTIONAL = ("iceberg", "delta")
_STAGED_AS = "spark_dphist.staged_as"

# Arrow's names of the file systems that rename a directory at once.
_RENAMING = ("local", "hdfs")


class Target(ABC):
    """A place that receives one DataFrame: staged beside it, checked, then published.

    Publishing is one rename on local file systems, HDFS and catalogs. Object stores have none:
    there Spark copies, and readers must wait for its mark of a whole write, ``_SUCCESS``.
    """

    @abstractmethod
    def refuse_existing(self, spark: SparkSession) -> None:
        """Raise ``ConfigurationError`` if the place is taken and may not be overwritten."""

    @abstractmethod
    def stage(self, frame: DataFrame) -> None:
        """Write the DataFrame beside the place."""

    @abstractmethod
    def stage_arrow(self, spark: SparkSession, table: pyarrow.Table) -> None:
        """Write a driver-side table beside the place."""

    @abstractmethod
    def read_staged(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read what was staged, with this schema where the format does not keep one."""

    @abstractmethod
    def is_staged(self, spark: SparkSession) -> bool:
        """Return whether something stands beside the place under this release's id."""

    @abstractmethod
    def exists(self, spark: SparkSession) -> bool:
        """Return whether something is at the place."""

    def read_current(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read what is staged, or what was published if nothing is."""
        read = self.read_staged if self.is_staged(spark) else self.read
        return read(spark, schema)

    @abstractmethod
    def publish(self, spark: SparkSession) -> None:
        """Move what was staged into place."""

    @abstractmethod
    def discard(self, spark: SparkSession) -> None:
        """Remove what was staged, if anything."""

    @abstractmethod
    def read(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read what was published, with this schema where the format does not keep one."""

    @property
    @abstractmethod
    def described(self) -> str:
        """The place as it is shown to people."""


@dataclass(frozen=True)
class PathTarget(Target):
    """A directory on a local or distributed file system.

    Parameters
    ----------
    path
        Local path or URI.
    release_id
        Names the staging directory.
    format, options
        As Spark's writer takes them.
    mode
        ``error`` refuses an existing directory, ``overwrite`` replaces it.
    """

    path: str
    release_id: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = "error"

    @property
    def described(self) -> str:
        """The path."""
        return self.path

    @property
    def staging_path(self) -> str:
        """The directory beside the path that is written first."""
        return f"{normalised_path(self.path)}.staging-{self.release_id}"

    def refuse_existing(self, spark: SparkSession) -> None:
        """Raise ``ConfigurationError`` if the path may not be overwritten, or not be written."""
        fault = _why_not_writable(self.path)
        if fault is not None:
            raise ConfigurationError(
                f"nothing can be written to {self.path!r} ({fault}). Choose another path, or give "
                "this user the permission to write there."
            )
        if self.mode == "error" and path_exists(self.path):
            raise ConfigurationError(
                f"output path {self.path!r} exists. A release is never overwritten silently: "
                'choose another path, remove it, or set mode = "overwrite".'
            )
        if path_exists(self.staging_path):
            raise ConfigurationError(
                f"{self.staging_path!r} is left over from a release with the same id that did not "
                "finish. Remove it, or choose another release_id."
            )

    def stage(self, frame: DataFrame) -> None:
        """Write the DataFrame to the staging directory."""
        writer = frame.write.format(self.format).options(**self.options)
        # The number of files must not depend on the session's settings or the data.
        writer.option("maxRecordsPerFile", 0).mode("error").save(self.staging_path)
        if not path_exists(self.staging_path):
            raise ReleaseError(
                f"Spark wrote {self.staging_path!r} where this driver cannot see it. Give the "
                "output as a full URI (hdfs://..., s3://...) or as a table. Nothing was published."
            )

    def stage_arrow(self, spark: SparkSession, table: pyarrow.Table) -> None:
        """Write the table to the staging directory as one Parquet file, from this driver."""
        file_system, staged = _resolve(self.staging_path)
        file_system.create_dir(staged)
        # Milliseconds and seconds are no Spark types; microseconds are.
        pyarrow.parquet.write_table(
            table, f"{staged}/part-00000.parquet", filesystem=file_system, coerce_timestamps="us"
        )

    def read_staged(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read the staging directory."""
        return self._load(spark, self.staging_path, schema)

    def is_staged(self, spark: SparkSession) -> bool:
        """Return whether the staging directory is there."""
        return path_exists(self.staging_path)

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the path is there."""
        return path_exists(self.path)

    def publish(self, spark: SparkSession) -> None:
        """Rename the staging directory, or copy it where renaming is not atomic."""
        file_system, staged = _resolve(self.staging_path)
        _, final = _resolve(self.path)
        renames = file_system.type_name in _RENAMING
        # Where files are copied, a directory without Spark's mark is a copy that did not finish.
        taken = path_exists(self.path if renames else f"{self.path.rstrip('/')}/_SUCCESS")
        if self.mode == "error" and taken:
            raise ReleaseError(
                f"output path {self.path!r} has come into being while the release ran; the "
                f"finished release is in {self.staging_path!r}."
            )
        if renames:
            replaced = f"{final}.replaced-{self.release_id}"
            if path_exists(self.path):
                file_system.move(final, replaced)
            file_system.move(staged, final)
            _delete(file_system, replaced)
        else:
            # Object stores rename file by file, so Spark's own committer writes the files again.
            copy = self.read_staged(spark).write.format(self.format).options(**self.options)
            copy.mode("overwrite").save(normalised_path(self.path))
            _delete(file_system, staged)

    def discard(self, spark: SparkSession) -> None:
        """Remove the staging directory, if there is one."""
        _delete(*_resolve(self.staging_path))

    def read(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read the published directory."""
        return self._load(spark, normalised_path(self.path), schema)

    def _load(self, spark: SparkSession, location: str, schema: T.StructType | None) -> DataFrame:
        reader = spark.read.format(self.format).options(**self.options)
        return (reader if schema is None else reader.schema(schema)).load(location)

    def beside(self, suffix: str) -> Self:
        """Return a target of the same kind whose path ends in a further suffix."""
        return type(self)(
            normalised_path(self.path) + suffix, self.release_id, "parquet", {}, self.mode
        )


@dataclass(frozen=True)
class TableTarget(Target):
    """A table of the catalog; ``format`` names the provider.

    Parameters
    ----------
    table
        Name, qualified by schema and catalog as needed.
    release_id
        Names the staging table.
    format, options
        As Spark's writer takes them.
    mode
        ``error`` refuses an existing table, ``overwrite`` replaces it.
    """

    table: str
    release_id: str
    format: str = "parquet"
    options: Mapping[str, str] = field(default_factory=dict)
    mode: Mode = "error"

    @property
    def described(self) -> str:
        """The table's name."""
        return self.table

    @property
    def staging_table(self) -> str:
        """The table beside it that is written first."""
        # A digest, as catalogs fold case and allow few characters: two ids must never share a name.
        digest = hashlib.sha256(self.release_id.encode()).hexdigest()[:16]
        return _suffixed(self.table, f"__staging_{digest}")

    def refuse_existing(self, spark: SparkSession) -> None:
        """Raise ``ConfigurationError`` if the table exists and may not be overwritten."""
        if self.mode == "error" and self.exists(spark):
            raise ConfigurationError(
                f"output table {self.table!r} exists. A release is never overwritten silently: "
                'choose another table, drop it, or set mode = "overwrite".'
            )
        if self.is_staged(spark):
            raise ConfigurationError(
                f"table {self.staging_table!r} is left over from a release with the same id that "
                "did not finish. Drop it, or choose another release_id."
            )

    def stage(self, frame: DataFrame) -> None:
        """Write the DataFrame to the staging table."""
        if self._transactional:
            marked = frame.writeTo(self.staging_table).using(self.format).options(**self.options)
            marked.tableProperty(_STAGED_AS, uuid.uuid4().hex).create()
            return
        writer = frame.write.format(self.format).options(**self.options)
        writer.option("maxRecordsPerFile", 0).mode("error").saveAsTable(self.staging_table)

    def stage_arrow(self, spark: SparkSession, table: pyarrow.Table) -> None:
        """Write the table to the staging table."""
        self.stage(dataframe_from_arrow(spark, table))

    def read_staged(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read the staging table."""
        return spark.table(self.staging_table)

    def is_staged(self, spark: SparkSession) -> bool:
        """Return whether the staging table is there."""
        return bool(spark.catalog.tableExists(self.staging_table))

    def exists(self, spark: SparkSession) -> bool:
        """Return whether the table is there."""
        return bool(spark.catalog.tableExists(self.table))

    def publish(self, spark: SparkSession) -> None:
        """Rename the staging table, or copy it in one commit of the format.

        Iceberg and Delta replace a table by one commit, so that no reader finds it missing. Some
        of their catalogs cannot rename at all.
        """
        if not self._transactional:
            if self.mode == "overwrite":
                spark.sql(f"DROP TABLE IF EXISTS {self.table}")
            self._rename(spark)
            return
        staged_as = _property(spark, self.staging_table, _STAGED_AS)
        if self.exists(spark) and _property(spark, self.table, _STAGED_AS) == staged_as:
            # A run has copied it, and died before it dropped the rest.
            self.discard(spark)
            return
        if self.mode == "error":
            try:
                self._rename(spark)
            except SPARK_ERRORS:
                # The catalog's class, and so its error, may be any. Where it was not that it
                # cannot rename, copying fails as well and says what is in the way.
                pass
            else:
                return
        copy = self.read_staged(spark).writeTo(self.table).using(self.format)
        copy = copy.options(**self.options).tableProperty(_STAGED_AS, staged_as or "")
        if self.mode == "overwrite":
            copy.createOrReplace()
        else:
            copy.create()
        self.discard(spark)

    @property
    def _transactional(self) -> bool:
        return self.format.lower() in _TRANSACTIONAL

    def _rename(self, spark: SparkSession) -> None:
        spark.sql(f"ALTER TABLE {self.staging_table} RENAME TO {self.table}")

    def discard(self, spark: SparkSession) -> None:
        """Drop the staging table, if there is one, with its files."""
        # Iceberg keeps the files of a dropped table otherwise, and noisy counts in them.
        purge = " PURGE" if self.format.lower() == "iceberg" else ""
        spark.sql(f"DROP TABLE IF EXISTS {self.staging_table}{purge}")

    def read(self, spark: SparkSession, schema: T.StructType | None = None) -> DataFrame:
        """Read the published table."""
        return spark.table(self.table)

    def beside(self, suffix: str) -> Self:
        """Return a target of the same kind whose name ends in a further suffix."""
        return type(self)(
            _suffixed(self.table, suffix), self.release_id, self.format, self.options, self.mode
        )


def _property(spark: SparkSession, table: str, name: str) -> str | None:
    rows = spark.sql(f"SHOW TBLPROPERTIES {table}").collect()
    return next((row.value for row in rows if row.key == name), None)


def normalised_path(path: str) -> str:
    """Return a path as Spark takes it: absolute, without trailing slash, links or dots."""
    file_system, inside = _resolve(path)
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        return inside
    if file_system.type_name == "local":
        return f"{scheme}:{inside.removeprefix('/dbfs') if scheme == 'dbfs' else '//' + inside}"
    return f"{scheme}://{posixpath.normpath(rest.removeprefix('//'))}"


def from_working_directory(path: str) -> str:
    """Return a relative path as an absolute one: Spark's JVM may have started elsewhere."""
    scheme, separator, _ = path.partition(":")
    has_scheme = separator and "/" not in scheme
    return path if has_scheme or path.startswith("/") else str(Path.cwd() / path)


def path_exists(path: str) -> bool:
    """Return whether there is a file or directory."""
    file_system, inside = _resolve(path)
    return bool(file_system.get_file_info(inside).type != pyarrow.fs.FileType.NotFound)


def _why_not_writable(path: str) -> str | None:
    """Return why nothing can be put at a local path; None where it can, or that is not known.

    It is tried in the directory that the path lies in, or in the one where the first missing
    directory would be made.
    """
    file_system, inside = _resolve(path)
    if file_system.type_name != "local":
        return None
    directory = Path(inside).parent
    try:
        while not directory.exists():
            directory = directory.parent
        with tempfile.TemporaryDirectory(prefix=".spark-dphist-", dir=directory):
            return None
    except OSError as error:
        return f"{directory}: {error.strerror}"


def _suffixed(table: str, suffix: str) -> str:
    """Return a table's name with a suffix, inside the quotes of a quoted one."""
    return f"{table[:-1]}{suffix}`" if table.endswith("`") else table + suffix


def before_pattern(path: str) -> str:
    """Return the directory that holds all a path with a pattern (``data/*``) can match."""
    fixed = re.split(r"[*?\[{]", path, maxsplit=1)
    return path if len(fixed) == 1 else posixpath.dirname(fixed[0]) or "."


def lies_within(path: str, directory: str) -> bool:
    """Return whether a path is the directory or lies inside it."""
    (inner_system, inner), (outer_system, outer) = _resolve(path), _resolve(directory)
    if inner_system.type_name != outer_system.type_name:
        return False
    inner, outer = posixpath.normpath(inner), posixpath.normpath(outer)
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _resolve(path: str) -> tuple[pyarrow.fs.FileSystem, str]:
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        return pyarrow.fs.LocalFileSystem(), _absolute(path)
    if scheme == "file":
        if not rest.startswith("/"):
            raise ConfigurationError(
                f"path {path!r} is a relative file: URI. Write file:///absolute/path, or the "
                "relative path alone."
            )
        return pyarrow.fs.LocalFileSystem(), _absolute("/" + rest.lstrip("/"))
    if scheme == "dbfs":
        return pyarrow.fs.LocalFileSystem(), _absolute("/dbfs/" + rest.lstrip("/"))
    try:
        file_system, inside = pyarrow.fs.FileSystem.from_uri(
            f"{_ARROW_SCHEMES.get(scheme, scheme)}:{rest}"
        )
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ConfigurationError(
            f"path {path!r} cannot be used by this driver: {str(error).splitlines()[0]}. Use a "
            "local path, hdfs://, s3://, gs:// or abfss://, or a table."
        ) from None
    return file_system, inside.rstrip("/")


def _delete(file_system: pyarrow.fs.FileSystem, inside: str) -> None:
    kind = file_system.get_file_info(inside).type
    if kind == pyarrow.fs.FileType.Directory:
        file_system.delete_dir(inside)
    elif kind == pyarrow.fs.FileType.File:
        file_system.delete_file(inside)


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())
