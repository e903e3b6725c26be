"""A data-set card: one page of Markdown about a release, from its public audit alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np

from spark_dphist.audit import AuditHeader, PublicAudit
from spark_dphist.mechanisms import Constant, Mechanism
from spark_dphist.shown import amount_text, printable, share_text


def card(audit: PublicAudit) -> str:
    """Return the card of a release: what it is, whom it protects, how to use it, its limits."""
    header = audit.header
    mechanism = header.calibrated_mechanism()
    parts = [
        [f"# {_text(header.release_name)}"],
        [f"> **{_text(caution)}**" for caution in header.cautions],
        ["## What it is", *_what(header)],
        ["## Whom it protects, and how well", *_table(header.facts)],
        ["## How to use it", *_items(_use(header, mechanism))],
        ["## What it does not do", *_items(_limits(header))],
        ["## Checking it", *_items(_checks(header))],
    ]
    return "\n\n".join("\n".join(_spaced(part)) for part in parts if part) + "\n"


def _spaced(lines: list[str]) -> Iterator[str]:
    yield lines[0]
    if lines[0].startswith("## "):
        yield ""
    yield from lines[1:]


def _what(header: AuditHeader) -> list[str]:
    keys = ", ".join(map(_code, header.group_columns))
    counted = "records" if header.records_per_group == header.records_per_unit else "units"
    return [
        f"Differentially private numbers of {counted} in {header.key_set_size:,} groups by {keys}, "
        f"made on {header.created_at:%d %B %Y} from {_code(header.input)}.",
        "",
        *_table(
            [
                ("release", header.release_id),
                ("counts", header.output),
                ("columns", ", ".join([*header.group_columns, "noisy_count", "lower", "upper"])),
            ]
        ),
    ]


def _use(header: AuditHeader, mechanism: Mechanism) -> Iterator[str]:
    yield (
        f"`noisy_count` is the true count with noise; it lies between `lower` and `upper` with "
        f"probability {share_text(header.confidence)}, each group for itself."
    )
    yield (
        "Every group of the declared key set is there, with records or without: a small number may "
        "be an empty group."
        if header.key_set_selection is None
        else "Groups were learnt from the data: one that is missing need not be empty."
    )
    if isinstance(mechanism, Constant):
        yield "All counts are the same constant and say nothing of the data."
        return
    if header.relative_error is not None:
        yield (
            f"The expected error of a count n is below {share_text(header.relative_error)} of "
            f"max(n, {amount_text(header.floor)}): groups much smaller than the floor of "
            f"{amount_text(header.floor)} cannot be told apart."
        )
    yield (
        "Do not add counts and intervals up by hand: released counts are biased (about "
        f"{_bias(mechanism)} in large groups, upwards below the floor), and biases add up. `spark-"
        "dphist total` gives totals with valid intervals, `spark-dphist compare-releases` changes "
        "between two releases."
    )
    yield (
        "Whatever is computed from these numbers costs no privacy. Other releases of the same data "
        "do: their budgets add up."
    )


def _bias(mechanism: Mechanism) -> str:
    large = 1000 * np.ceil(mechanism.floor)
    share = float(mechanism.expected_bias(large)) / large
    return "nothing" if abs(share) < 1e-6 else f"{100 * share:+.2g}%"


def _limits(header: AuditHeader) -> Iterator[str]:
    if header.privacy_unit == "record":
        yield (
            "Protected is one record. A person with k records is protected less, by up to k² times "
            "the stated budget."
        )
    else:
        yield (
            f"Protected is {_text(header.privacy_unit)}, with at most "
            f"{header.records_per_unit:,} records; more were not counted."
        )
    yield (
        "The worst case above holds for everyone. Members of large groups are protected better, as "
        "the budget in the audit shows for the released counts; what it really was is confidential."
    )
    if header.key_set_selection is not None:
        learnt = json.loads(header.key_set_selection)
        yield (
            "That budget is of the counts alone: what learning the key set cost, rho = "
            f"{amount_text(learnt['rho'])} and delta = {amount_text(learnt['delta'])}, comes on "
            "top of it for every member, and is part of the worst case."
        )
    yield "Records outside the key set are not counted, and how many there were is not told."
    if header.dataset is None:
        yield "It was not charged to a ledger: nobody adds up what several releases cost."


def _checks(header: AuditHeader) -> Iterator[str]:
    versions = json.loads(header.versions)
    yield f"mechanism {_code(header.mechanism)} with {_code(header.parameters)}"
    yield f"key set, SHA-256: {_code(header.key_set_digest)}"
    yield f"counts, SHA-256: {_code(header.counts_digest)}"
    yield f"made by spark_dphist {_text(str(versions.get('spark_dphist')))}"


def _items(sentences: Iterator[str]) -> list[str]:
    return [f"- {sentence}" for sentence in sentences]


def _table(rows: list[tuple[str, str]]) -> list[str]:
    return ["| | |", "|---|---|", *(f"| {name} | {_text(value)} |" for name, value in rows)]


def _text(value: str) -> str:
    """Return text that Markdown shows as it stands."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", printable(value))


def _code(value: str) -> str:
    """Return a code span, whatever backticks are in it."""
    text = printable(value)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"
