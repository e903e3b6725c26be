"""Mechanisms by the names they have in configurations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from spark_dphist.errors import ConfigurationError, did_you_mean
from spark_dphist.mechanisms.base import Mechanism
from spark_dphist.mechanisms.constant import Constant
from spark_dphist.mechanisms.fixed_noise import FixedGaussian, FixedLaplace
from spark_dphist.mechanisms.linear_log import LinearLog
from spark_dphist.mechanisms.refuted import REFUSED
from spark_dphist.mechanisms.shifted_log import ShiftedLog


def calibrators() -> dict[str, Callable[..., Mechanism]]:
    """Return the calibrating constructors by name."""
    return {
        ShiftedLog.name: ShiftedLog.calibrate,
        LinearLog.name: LinearLog.calibrate,
        FixedGaussian.name: FixedGaussian.calibrate,
        FixedLaplace.name: FixedLaplace.calibrate,
        Constant.name: Constant.calibrate,
    }


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Check that there is a mechanism of this name and that it has these options.

    Raises
    ------
    ConfigurationError
        If not, with the nearest names; or if it is known to protect nobody (``refuted``).
    """
    if name in REFUSED:
        raise ConfigurationError(REFUSED[name])
    known = calibrators()
    if name not in known:
        raise ConfigurationError(f"mechanism {name!r} is unknown. {did_you_mean(name, known)}")
    accepted = inspect.signature(known[name]).parameters
    for option in options:
        if option not in accepted:
            raise ConfigurationError(
                f"{option!r} is no option of the mechanism {name!r}. "
                f"{did_you_mean(option, accepted)}"
            )


def calibrate(
    name: str, *, relative_error: float, floor: float, options: Mapping[str, Any] | None = None
) -> Mechanism:
    """Return the mechanism of this name, calibrated to the promise on the error.

    Parameters
    ----------
    name
        For example ``shifted_log``.
    relative_error, floor
        The promise E|estimate - x| < relative_error * max(x, floor).
    options
        Further arguments of the mechanism's ``calibrate``, by name.

    Raises
    ------
    ConfigurationError
        If there is no such mechanism or option, or the promise cannot be kept.
    """
    check_options(name, options or {})
    return calibrators()[name](relative_error=relative_error, floor=floor, **(options or {}))


def restored(name: str, parameters: Mapping[str, Any]) -> Mechanism:
    """Return the mechanism whose name and public parameters an audit states.

    Parameters
    ----------
    name, parameters
        As ``Mechanism.name`` and ``Mechanism.parameters()`` gave them.

    Raises
    ------
    ConfigurationError
        If this version has no such mechanism, or one of these parameters has others.
    """
    kinds = (ShiftedLog, LinearLog, FixedGaussian, FixedLaplace, Constant)
    by_name: dict[str, type[Any]] = {kind.name: kind for kind in kinds}
    if name not in by_name:
        raise ConfigurationError(f"mechanism {name!r} is unknown. {did_you_mean(name, by_name)}")
    kind = by_name[name]
    fields = [field.name for field in dataclasses.fields(kind) if field.name in parameters]
    try:
        mechanism: Mechanism = kind(**{field: parameters[field] for field in fields})
    except TypeError:
        raise _other_version(name) from None
    if mechanism.parameters() != dict(parameters):
        raise _other_version(name)
    return mechanism


def _other_version(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"the stated parameters of the mechanism {name!r} are not the ones that this version of "
        "spark-dphist gives it. Read the audit with the version that wrote it."
    )
