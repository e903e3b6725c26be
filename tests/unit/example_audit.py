"""An audit header that no release has made."""

import datetime

from spark_dphist.audit import AuditHeader, parameters_json, versions_json
from spark_dphist.mechanisms.registry import calibrate


def example_header(**changes):
    mechanism = calibrate("shifted_log", relative_error=0.1, floor=50)
    values = {
        "release_id": "visits-1",
        "release_name": "visits",
        "created_at": datetime.datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=datetime.UTC),
        "input": "parquet data/visits",
        "input_snapshot": None,
        "output": "out/visits",
        "group_columns": ["city", "month"],
        "key_set_size": 12345,
        "key_set_digest": "ab" * 32,
        "key_set_selection": None,
        "counts_digest": "cd" * 32,
        "mechanism": mechanism.name,
        "parameters": parameters_json(mechanism),
        "relative_error": 0.1,
        "floor": 50.0,
        "rounding": "nearest",
        "confidence": 0.95,
        "privacy_unit": "record",
        "records_per_unit": 1,
        "records_per_group": 1,
        "dataset": None,
        "neighbouring": "add or remove one privacy unit",
        "worst_case_rho": 0.04986,
        "delta": 1e-6,
        "epsilon": 1.469,
        "attacker_accuracy": 0.5627,
        "least_rho_at_noisy_count": 1e-6,
        "greatest_rho_at_noisy_count": 0.02,
        "fixed_release_key": False,
        "versions": versions_json("4.3.0"),
    }
    known = AuditHeader.__annotations__
    return AuditHeader(**{name: values[name] for name in known if name in values} | changes)
