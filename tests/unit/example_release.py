"""Public audits as releases write them, made without Spark."""

import pyarrow as pa
import pyarrow.parquet
from example_audit import example_header
from word_sources import RandomWords

from spark_dphist.accounting.policy import read_worst_case
from spark_dphist.accounting.privacy_unit import PrivacyUnit
from spark_dphist.audit import PublicAudit, audit_groups, parameters_json, selection_json
from spark_dphist.mechanisms import publish
from spark_dphist.mechanisms.registry import calibrate

CITIES = ["Oslo", "Bergen", "Ålesund", "Bodø"]
MONTHS = [1, 2, 3]
COUNTS = [12_345, 0, 987, 54_321, 7, 640, 2, 88_000, 310, 4_096, 51, 16]


RECORD = PrivacyUnit()


def keys(cities=CITIES, months=MONTHS):
    pairs = [(city, month) for city in cities for month in months]
    return {"city": [city for city, _ in pairs], "month": [month for _, month in pairs]}


def example_release(
    columns=None,
    counts=COUNTS,
    *,
    name="linear_log",
    relative_error=0.1,
    floor=50,
    unit=RECORD,
    rounding="nearest",
    confidence=0.95,
    delta=1e-6,
    selection=None,
    **changes,
):
    """A public audit of groups with these counts; the noise comes from a fixed seed."""
    columns = keys() if columns is None else columns
    mechanism = calibrate(name, relative_error=relative_error, floor=floor)
    made = publish(mechanism, counts, RandomWords(7), rounding=rounding, confidence=confidence)
    released = pa.table({**columns, **vars(made)})
    groups = audit_groups(released, mechanism, unit.records_per_group)
    rho = groups["rho_at_noisy_count"].to_numpy()
    worst = read_worst_case(mechanism, unit, delta, selection)
    header = example_header(
        group_columns=list(columns),
        key_set_size=groups.num_rows,
        mechanism=name,
        parameters=parameters_json(mechanism),
        key_set_selection=selection_json(selection),
        relative_error=relative_error,
        floor=float(floor),
        rounding=rounding,
        confidence=confidence,
        privacy_unit=unit.described,
        records_per_unit=unit.max_records,
        records_per_group=unit.records_per_group,
        worst_case_rho=worst.rho,
        epsilon=worst.epsilon,
        attacker_accuracy=worst.attacker_accuracy,
        delta=delta,
        least_rho_at_noisy_count=float(rho.min()),
        greatest_rho_at_noisy_count=float(rho.max()),
    )
    return PublicAudit(type(header)(**(header.__dict__ | changes)), groups)


def stored(audit, directory):
    """Store a public audit as a release does, and return the path of its counts."""
    for suffix, table in (("groups", audit.groups), ("header", audit.header.to_arrow())):
        place = directory / f"counts_audit_{suffix}"
        place.mkdir(parents=True)
        pyarrow.parquet.write_table(table, place / "part-00000.parquet")
        (place / "_SUCCESS").touch()
    return str(directory / "counts")
