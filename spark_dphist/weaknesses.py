"""Settings that protect less than they seem to, in plain words."""

from __future__ import annotations

import math

# Above this, epsilon says next to nothing for a table of people.
_LARGEST_DELTA = 1e-3
# Above this, an attacker is right in more than 84 % of cases.
_LARGEST_RHO = 1.0
# An error below half a record tells a group of one from an empty one.
_LEAST_ERROR = 0.5


def weak_settings(
    *,
    relative_error: float | None,
    floor: float,
    worst_rho: float,
    delta: float,
    selection_rho: float = 0.0,
    rows: int | None = None,
) -> tuple[str, ...]:
    """Return a sentence or two for each setting that somebody should think about again.

    Parameters
    ----------
    relative_error, floor
        The promise E|estimate - x| < relative_error * max(x, floor); None where it is not known.
    worst_rho
        The budget of everyone, in rho; the selection's part is in it.
    delta
        Probability at which epsilon is read.
    selection_rho
        What of it learning the key set takes; 0 where the key set is declared.
    rows
        The public number of records, where one was declared; never a count of the data.
    """
    found = []
    if worst_rho > _LARGEST_RHO:
        found.append(_little_privacy(worst_rho, selection_rho))
    if relative_error is not None and relative_error * floor < _LEAST_ERROR:
        found.append(
            f"The promise asks for an error below {relative_error * floor:.3g} records even in a "
            "group of one, so the released count tells whether that one record is there. A floor "
            "of 20 to 100 protects small groups far better."
        )
    if rows is not None and delta > 1 / rows:
        found.append(
            f"delta = {delta:g} is above one in the {rows:,} declared rows, so that (epsilon, "
            "delta) would allow publishing somebody's record as it is. Set delta to "
            f"{_power_of_ten_up_to(1 / rows):g} or less."
        )
    elif delta > _LARGEST_DELTA:
        found.append(
            f"delta = {delta:g} lets epsilon fail for one person in {1 / delta:,.0f}. Choose it "
            "well below one in the number of people in the data."
        )
    return tuple(found)


def _little_privacy(worst_rho: float, selection_rho: float) -> str:
    of_counts = worst_rho - selection_rho
    who = (
        "Members of the smallest groups have"
        if of_counts >= selection_rho
        else "Everyone has up to"
    )
    sentences = [f"{who} rho = {worst_rho:.3g}, which is little privacy."]
    if selection_rho > 0:
        sentences.append(
            f"Learning the key set takes {selection_rho:.3g} of it, in groups of every size."
        )
    if selection_rho > min(of_counts, _LARGEST_RHO):
        sentences.append("Lower the selection's epsilon, or declare the key set.")
    if of_counts >= min(selection_rho, _LARGEST_RHO):
        sentences.append("Raise the floor, or allow a larger relative error.")
    return " ".join(sentences)


def _power_of_ten_up_to(value: float) -> float:
    exponent = math.floor(math.log10(value))
    return float(f"1e{exponent}")
