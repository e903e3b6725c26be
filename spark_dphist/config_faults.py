"""What is wrong with a configuration, in sentences: place, what was got and expected, the mend."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from spark_dphist.errors import did_you_mean, near_names

KEY_IS_NEVER_READ = (
    "the release key is never read from a file: each release draws a fresh one from the operating "
    "system, and a known key would let anyone subtract the noise. Remove this field."
)

_KEY_NAME = re.compile(r"(^|_)(key|seed|secret)($|_)")
_MOST_SHOWN = 60

# Pydantic's types of error, and what was expected instead.
_EXPECTED = {
    "float_type": "a number",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "bool_type": "true or false",
    "string_type": "text in quotes",
    "list_type": "a list in brackets",
    "dict_type": "a table",
    "model_type": "a section",
    "finite_number": "a finite number",
    "too_short": "at least {min_length} of them",
    "string_too_short": "text that is not empty",
    "string_pattern_mismatch": (
        "1 to 128 letters, digits, '.', '_' and '-', the first a letter or digit"
    ),
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
}


def is_named_like_a_key(field: str) -> bool:
    """Return whether somebody may have meant a field of this name to hold the release key."""
    return _KEY_NAME.search(field.lower()) is not None


def fault_sentences(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return one sentence for each fault, without repetitions.

    Parameters
    ----------
    error
        What validating the model raised.
    model
        The model, for the fields that it knows.
    """
    return list(dict.fromkeys(_sentence(detail, model) for detail in error.errors()))


def _sentence(detail: Any, model: type[BaseModel]) -> str:
    location = [str(part) for part in detail["loc"]]
    where, kind, got = ".".join(location), detail["type"], detail["input"]
    if kind == "extra_forbidden":
        return f"{where}: {_unknown(location, model)}"
    if kind == "missing":
        return f"{where}: missing, but required.{_meant(location[-1], got, model, location)}"
    if kind == "value_error":
        return f"{where}: {detail['ctx']['error']}"
    expected = _EXPECTED.get(kind, detail["msg"]).format(**detail.get("ctx", {}))
    mend = " ".join(_mends(kind, got, expected))
    return f"{where}: expected {expected}, got {_shown(got)}.{' ' + mend if mend else ''}"


def _unknown(location: list[str], model: type[BaseModel]) -> str:
    name, known = location[-1], _fields_at(location[:-1], model)
    # 'key' in [groups] is 'keys' misspelt.
    if is_named_like_a_key(name) and "keys" not in known:
        return KEY_IS_NEVER_READ
    return f"unknown field. {did_you_mean(name, known)}"


def _meant(name: str, section: Any, model: type[BaseModel], location: list[str]) -> str:
    if not isinstance(section, dict):
        return ""
    unknown = [other for other in section if other not in _fields_at(location[:-1], model)]
    meant = near_names(name, unknown)
    return f" Rename {meant[0]!r} to {name!r}?" if meant else ""


def _mends(kind: str, got: Any, expected: str) -> Iterator[str]:
    if kind in ("float_type", "int_type", "bool_type") and isinstance(got, str):
        yield "Remove the quotes."
    if kind == "string_type" and isinstance(got, int | float):
        yield "Put it in quotes."
    if kind == "list_type" and isinstance(got, str | int):
        yield f"Write one value as a list too: [{got!r}]."
    if kind == "model_type":
        yield "Write it as [section] with fields below it."
    if kind == "literal_error":
        near = near_names(str(got), re.findall("'([^']*)'", expected))
        if near:
            yield f"Did you mean {near[0]!r}?"


def _shown(got: Any) -> str:
    if isinstance(got, list | dict):
        return {list: "a list", dict: "a table"}[type(got)] if got else "none"
    text = str(got).lower() if isinstance(got, bool) else repr(got)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…"


def _fields_at(location: list[str], model: type[BaseModel]) -> list[str]:
    for part in location:
        field = model.model_fields.get(part)
        # A part that is no field is a key of a dictionary, whose values have the current model.
        models = _models_in(field.annotation) if field else [model]
        if not models:
            return []
        model = models[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(kind: Any) -> list[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [model for argument in get_args(kind) for model in _models_in(argument)]
