"""Small tables between Spark and the driver as Arrow, without losing a type.

``toArrow`` and ``createDataFrame(pyarrow.Table)`` exist from pyspark 4 on only, and pandas turns
integers with NULLs into doubles. Arrow batches packed into a binary column work on both lines and
on Spark Connect, though not as fast.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

_PACKED = "batch"


def collect_arrow(frame: DataFrame) -> pa.Table:
    """Collect a DataFrame to the driver as an Arrow table, its row order kept.

    Timestamps come back with the session's time zone as type (empty columns, on
    pyspark 3.5, with UTC), the instants unchanged.
    """
    if hasattr(frame, "toArrow"):
        collected: pa.Table = frame.toArrow()
        return collected

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({_PACKED: [_packed(batch)]})

    # pyspark 3.5 would take dots and backticks in names for syntax here.
    names = frame.columns
    numbered = frame.toDF(*[f"column{position}" for position in range(len(names))])
    rows = numbered.mapInArrow(pack, f"{_PACKED} binary").collect()
    batches = [
        batch
        for row in rows
        for batch in pa.ipc.open_stream(bytes(row[_PACKED])).read_all().to_batches()
    ]
    if not batches:
        # Typed as with rows: what is computed from the columns of an empty table has types too.
        empty: pa.Table = to_arrow_schema(frame.schema).empty_table()
        return empty
    return pa.Table.from_batches(batches).rename_columns(names)


def dataframe_from_arrow(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Make a DataFrame of one partition from a driver-side Arrow table."""

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column(0).to_pylist():
                yield from pa.ipc.open_stream(packed).read_all().to_batches()

    packed = [(_packed(batch),) for batch in table.to_batches()]
    frame = spark.createDataFrame(packed, f"{_PACKED} binary").coalesce(1)
    return frame.mapInArrow(unpack, from_arrow_schema(table.schema, prefer_timestamp_ntz=True))


def _packed(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())
