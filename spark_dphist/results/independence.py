"""Whether several releases have independent noise, which all that joins them takes for granted."""

from __future__ import annotations

from collections.abc import Sequence

from spark_dphist.audit import AuditHeader
from spark_dphist.errors import ConfigurationError


def check_independent_noise(headers: Sequence[AuditHeader]) -> None:
    """Refuse releases whose noise is, or may be, the same.

    Raises
    ------
    ConfigurationError
        If a release is given twice, or two were made with fixed release keys.
    """
    identifiers = [header.release_id for header in headers]
    for release_id in identifiers:
        if identifiers.count(release_id) > 1:
            raise ConfigurationError(
                f"release {release_id!r} is given twice: its noise is independent of that of other "
                "releases, not of itself"
            )
    fixed = [header.release_id for header in headers if header.fixed_release_key]
    if len(fixed) > 1:
        raise ConfigurationError(
            f"releases {fixed[0]!r} and {fixed[1]!r} were both made with fixed release keys, so "
            "their noise may be the same, and nothing that takes it for independent holds"
        )
