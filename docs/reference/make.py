"""Write the reference pages beside this file from the code: configuration, CLI and API.

``python docs/reference/make.py`` writes them; a test compares them with what the code gives now.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
import typer.models
from pydantic import BaseModel

from spark_dphist import cli
from spark_dphist.config import MechanismSection, ReleaseConfiguration
from spark_dphist.mechanisms.registry import calibrators

HERE = Path(__file__).parent
MADE = "<!-- Made by `python docs/reference/make.py`: do not edit. -->\n"

# What the fields mean. Types, defaults and bounds come from the models; a field without a meaning
# here, or a meaning without a field, stops the script.
MEANINGS = {
    "ReleaseConfiguration": {
        "name": "What the release is called; the beginning of an id that is made up.",
        "release_id": "The release's id, unique in the ledger for ever. Made up anew for each run "
        "by default; with `--interval` it is made of `name` and the interval.",
        "input": "The confidential table.",
        "groups": "Which groups are published.",
        "mechanism": "The promise on the error, and how it is kept.",
        "privacy": "Whom the release protects.",
        "output": "Where the noisy counts go.",
        "audit": "Where the public audit goes.",
        "confidential_audit": "Where true counts and realised budgets go; nowhere by default.",
        "ledger": "What is charged; without it nothing adds up several releases.",
        "spark": "The session that the command line starts.",
    },
    "InputSection": {
        "path": "Local path or URI. Either this or `table`.",
        "table": "A table or view of the catalog.",
        "format": "Of the files at `path`, as Spark calls it.",
        "options": "Of Spark's reader. For CSV, `header = true` if the first line holds names; a "
        "file without such a line would lose its first record.",
        "schema": "Columns and types as in SQL. Needed for csv, json and xml.",
        "where": 'Conditions on columns, joined by "and": [lake-tables.md](../lake-tables.md).',
        "snapshot": "The Iceberg snapshot or Delta version that is read; the current one by "
        "default.",
        "rows": "About how many records there are, if that is public; for a warning about delta.",
    },
    "ColumnFilter": {
        "values": "The column has one of these.",
        "include_null": "NULL is selected too.",
        "from": "The first value of a range.",
        "before": "The first value after the range.",
    },
    "GroupsSection": {
        "columns": "The group columns, in the order in which they are published.",
        "keys": "The key set. Not needed where all columns are bins.",
        "bins": "Group columns made of ranges of another column: [key-sets.md](../key-sets.md).",
        "max_groups": "A larger key set is taken for a mistake.",
    },
    "KeySetSection": {
        "product": "Every combination of these values of the columns.",
        "tuples": "These combinations.",
        "table": "A public table with the group columns.",
        "path": "Public files with the group columns.",
        "format": "Of the files at `path`.",
        "options": "Of Spark's reader.",
        "schema": "Columns and types of the files at `path`, as in SQL.",
        "select": "Learn the groups from the data, at a cost: "
        "[key-selection.md](../key-selection.md).",
    },
    "ColumnValues": {
        "values": "The values. A plain list is the same, and so is a range: `{ from, to, step }` "
        "of integers, `{ from, to, every }` of dates.",
        "include_null": "NULL is a value too.",
    },
    "SelectSection": {
        "epsilon": "What the selection costs, with `delta`.",
        "delta": "As above; below `privacy.delta`.",
        "groups_per_unit": "In how many groups a unit counts for the selection.",
    },
    "BinsSection": {
        "column": "The input's column.",
        "edges": "The bins' edges in rising order, or a range as above.",
        "labels": "Names of the bins between the edges.",
    },
    "MechanismSection": {
        "name": "Which mechanism; the table below has the options of each.",
        "relative_error": "The promise r: expected error below r · max(count, floor).",
        "floor": "The count below which the promised error no longer shrinks, at least 1.",
    },
    "PrivacySection": {
        "delta": "At which epsilon is read.",
        "unit": "`record`, or the column that identifies a unit.",
        "max_records": 'How many records of a unit are counted; with `count = "units"`, in how '
        "many groups it is counted.",
        "count": "Whether a group's count is of its records or of its distinct units.",
    },
    "LedgerSection": {
        "url": "`sqlite:///PATH` or `postgresql+psycopg://USER@HOST/DATABASE`.",
        "dataset": "The data set in it that is charged.",
    },
    "OutputSection": {
        "path": "Local path or URI of a directory. Either this or `table`.",
        "table": "A table of the catalog.",
        "format": "Of the files, or the table's provider.",
        "options": "Of Spark's writer.",
        "files": "How many files there are, whatever the data; one for each 500,000 groups by "
        "default.",
        "rounding": "Whether counts are published as integers.",
        "confidence": "Of each published interval, for itself.",
        "mode": "Whether what is at the place is replaced.",
    },
    "AuditSection": {
        "path": "What the two paths begin with: `PATH_groups`, `PATH_header`. By default the "
        "output's place with `_audit`.",
        "table": "What the names of the two tables begin with.",
        "max_collected_groups": "Up to how many groups the driver writes the audit itself.",
        "delta_log": "A directory of Delta tables to which the audit is appended as well.",
    },
    "ConfidentialAuditSection": {"path": "A directory outside everything public."},
    "SparkSection": {"settings": 'Names in quotes: `"spark.sql.shuffle.partitions" = 8`.'},
}

# What callers may rely on, by module.
API: dict[str, list[str]] = {
    "spark_dphist.config": [
        "load_configuration",
        "parse_configuration",
        "with_release_id",
        "ReleaseConfiguration",
    ],
    "spark_dphist.intervals": ["load_for_interval"],
    "spark_dphist.from_config": ["request_from"],
    "spark_dphist.request": ["ReleaseRequest", "new_release_id", "check_request"],
    "spark_dphist.release": ["run_release", "Release"],
    "spark_dphist.spark.key_set": ["KeySet"],
    "spark_dphist.spark.bins": ["Bins"],
    "spark_dphist.spark.storage": ["PathTarget", "TableTarget"],
    "spark_dphist.audit": ["PublicAudit", "AuditHeader"],
    "spark_dphist.history": ["read_audit", "group_history"],
    "spark_dphist.plan": ["make_plan", "Plan"],
    "spark_dphist.targets": ["find_target"],
    "spark_dphist.comparison": ["compare_mechanisms"],
    "spark_dphist.results.totals": ["totals"],
    "spark_dphist.results.changes": ["changes"],
    "spark_dphist.metadata": ["metadata", "metadata_schema"],
    "spark_dphist.card": ["card"],
    "spark_dphist.report": ["public_release", "read_release", "render_report"],
    "spark_dphist.verification": ["verify"],
    "spark_dphist.mechanisms": [
        "Mechanism",
        "ShiftedLog",
        "LinearLog",
        "FixedGaussian",
        "FixedLaplace",
        "Constant",
    ],
    "spark_dphist.mechanisms.registry": ["calibrate", "restored"],
    "spark_dphist.accounting": [
        "epsilon_upper",
        "delta_upper",
        "rho_lower",
        "zcdp_attacker_accuracy_upper",
        "gaussian_delta_upper",
        "gaussian_epsilon_upper",
        "pure_to_rho_upper",
    ],
    "spark_dphist.accounting.privacy_unit": ["PrivacyUnit"],
    "spark_dphist.accounting.key_selection": ["KeySelection"],
    "spark_dphist.accounting.ledger": [
        "Ledger",
        "Caps",
        "BudgetExceededError",
        "HalfDoneReleaseError",
        "ReleaseConflictError",
        "LedgerBusyError",
        "LedgerError",
    ],
    "spark_dphist.local": ["local_response", "estimate_counts"],
    "spark_dphist.local_collection": ["LocalRequest", "collect_locally"],
    "spark_dphist.synthesize": ["read_release", "synthesize"],
    "spark_dphist.streams": ["ReleaseKey"],
    "spark_dphist.errors": ["ConfigurationError", "ReleaseError", "BudgetError"],
}

# Of these classes only these methods; of all others all that have no underscore.
METHODS = {
    "ReleaseRequest": {"cost", "policy"},
    "LocalRequest": {"cost", "policy"},
    "KeySet": {"from_tuples", "product", "from_table", "from_dataframe", "select"},
    **{name: {"calibrate"} for name in ("ShiftedLog", "LinearLog", "Constant")},
    **{name: {"calibrate", "for_budget"} for name in ("FixedGaussian", "FixedLaplace")},
    "PathTarget": set(),
    "TableTarget": set(),
}

_TYPES = {"number": "number", "integer": "integer", "boolean": "true or false", "string": "text"}
_BOUNDS = {
    "minimum": "at least {:,}",
    "maximum": "at most {:,}",
    "exclusiveMinimum": "above {:,}",
    "exclusiveMaximum": "below {:,}",
}


def configuration_page() -> str:
    """Return the page of all sections and fields."""
    lines = [
        "# Configuration",
        "",
        MADE,
        "One TOML file is one release. Unknown fields are refused with the nearest known name, and "
        "all faults are listed at once. The release key is not part of it: it is never read from a "
        "file. `conf/flights.toml` and `conf/visits.toml` are examples.",
        "",
    ]
    schema = ReleaseConfiguration.model_json_schema(by_alias=True)
    models = {"": ReleaseConfiguration, **dict(_sections("", ReleaseConfiguration))}
    described = set()
    for place, model in models.items():
        described.add(model.__name__)
        fields = (
            schema["properties"]
            if model is ReleaseConfiguration
            else schema["$defs"][model.__name__]["properties"]
        )
        required = (
            schema if model is ReleaseConfiguration else schema["$defs"][model.__name__]
        ).get("required", [])
        lines += [f"## `[{place}]`" if place else "## Top level", "", _paragraphs(model), ""]
        lines += ["| field | value | default | |", "|---|---|---|---|"]
        meanings = MEANINGS[model.__name__]
        if set(meanings) != set(fields):
            raise SystemExit(
                f"MEANINGS of {model.__name__} and its fields differ in "
                f"{sorted(set(meanings) ^ set(fields))}"
            )
        lines += [
            _row(
                f"`{name}`",
                _kind(field),
                "**required**" if name in required else _default(field.get("default")),
                meanings[name],
            )
            for name, field in fields.items()
        ]
        lines.append("")
        if model is MechanismSection:
            lines += [*_options(), ""]
    if set(MEANINGS) != described:
        raise SystemExit(f"MEANINGS has {sorted(set(MEANINGS) - described)}, which is no section")
    return _page(lines)


def _sections(place: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        annotation = str(field.annotation)
        for section in _models(field.annotation):
            name_in_file = field.alias or name
            keyed = ".NAME" if annotation.startswith("dict") or "dict[" in annotation else ""
            at = f"{place}.{name_in_file}".lstrip(".") + keyed
            yield at, section
            yield from _sections(at, section)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    arguments = getattr(annotation, "__args__", ())
    return [model for argument in arguments for model in _models(argument)]


def _kind(field: dict[str, Any]) -> str:
    if "$ref" in field or "allOf" in field:
        return "section"
    if "anyOf" in field:
        kinds = [_kind(each) for each in field["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "enum" in field:
        return " or ".join(f'`"{each}"`' for each in field["enum"])
    kind = field.get("type")
    if kind == "array":
        items = field.get("items", {})
        inner = _kind(items)
        several = {"section": "sections", "list of values": "lists of values"}.get(inner, inner)
        return "list of values" if inner == "value" else f"list of {several}"
    if kind == "object":
        inner = field.get("additionalProperties", {})
        return "a section for each name" if "$ref" in inner else "table of values"
    bounds = [text.format(field[name]) for name, text in _BOUNDS.items() if name in field]
    return ", ".join([_TYPES.get(str(kind), "value"), *bounds])


def _default(value: Any) -> str:
    if value is None or value in ({}, []):
        return "none"
    if isinstance(value, dict):
        return "as below"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _options() -> Iterator[str]:
    yield "| mechanism | option | value | default | |"
    yield "|---|---|---|---|---|"
    for name, calibrate in calibrators().items():
        listed = [
            each
            for each in inspect.signature(calibrate).parameters.values()
            if each.name not in MechanismSection.model_fields
        ]
        if not listed:
            yield _row(f"`{name}`", "none", "", "", _first_paragraph(calibrate))
        meanings = {**_parameters(_owner(calibrate)), **_parameters(calibrate)}
        kinds = get_type_hints(calibrate)
        for each in listed:
            meaning = meanings.get(each.name, "")
            if meaning == "See the class.":
                meaning = _parameters(_owner(calibrate)).get(each.name, "")
            yield _row(
                f"`{name}`",
                f"`{each.name}`",
                _option_kind(kinds[each.name]),
                _default(each.default),
                meaning,
            )


def _option_kind(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(f'`"{each}"`' for each in get_args(kind))
    numbers = (int, float, type(None))
    return "number" if all(each in numbers for each in get_args(kind) or (kind,)) else "value"


def _owner(calibrate: Callable[..., Any]) -> Any:
    return getattr(calibrate, "__self__", calibrate)


def _parameters(thing: Any) -> dict[str, str]:
    """Return the parameters of a NumPy docstring with their descriptions."""
    text = inspect.getdoc(thing) or ""
    found = re.search(r"^Parameters\n-+\n(.*?)(?=^\S[^\n]*\n-{3,}|\Z)", text, re.M | re.S)
    if not found:
        return {}
    described: dict[str, str] = {}
    blocks = re.findall(r"^(\S[^\n]*)\n((?:[ ]+[^\n]*\n?|\n)+)", found.group(1), re.M)
    for names, body in blocks:
        for name in names.split(","):
            described[name.strip()] = _joined(body)
    return described


def cli_page() -> str:
    """Return the page of all commands."""
    lines = [
        "# Command line",
        "",
        MADE,
        "Exit codes: 0 done, 1 the release or a verified claim failed, 2 the configuration or the "
        "request is wrong, 3 the budget does not allow it. What is printed for programs "
        "(`--json`) goes to standard output; warnings and faults go to standard error.",
        "",
    ]
    for name, command in _commands("spark-dphist", cli.app):
        lines += [f"## `{name}`", "", _first_paragraph(command), ""]
        parameters = list(_command_parameters(command))
        if parameters:
            lines += ["| | value | default | |", "|---|---|---|---|", *parameters, ""]
    return _page(lines)


def _commands(name: str, app: typer.Typer) -> Iterator[tuple[str, Callable[..., Any]]]:
    for command in app.registered_commands:
        callback: Any = command.callback
        own = command.name or callback.__name__.replace("_", "-")
        yield f"{name} {own}", callback
    for group in app.registered_groups:
        inner: Any = group.typer_instance
        yield from _commands(f"{name} {group.name}", inner)


def _command_parameters(command: Callable[..., Any]) -> Iterator[str]:
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        kind, info = get_args(hints[parameter.name])[:2]
        inner = [each for each in (get_args(kind) or (kind,)) if each is not type(None)]
        several = get_origin(kind) is list or any(get_origin(each) is list for each in inner)
        inner = [part for each in inner for part in (get_args(each) or (each,))]
        metavar = (info.metavar or parameter.name.upper()).removesuffix("...")
        is_argument = isinstance(info, typer.models.ArgumentInfo)
        # Within Annotated, the first name is passed as the default.
        first = [info.default] if isinstance(info.default, str) else []
        declared = ", ".join([*first, *(info.param_decls or [])])
        if is_argument:
            shown, value = metavar, ""
        else:
            shown = declared or "--" + parameter.name.replace("_", "-")
            value = f"`{info.metavar}`" if info.metavar else _option_value(inner[0])
        if several and "may be repeated" not in (info.help or ""):
            value = (value + ", may be repeated").removeprefix(", ")
        default = parameter.default
        if default is parameter.empty:
            said = "**required**"
        else:
            said = "" if default in (None, False) else f"`{default}`"
        yield _row(f"`{shown}`", value, said, info.help or "")


def _option_value(kind: type) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return " or ".join(f"`{each.value}`" for each in kind)
    names: dict[type, str] = {bool: "flag", int: "integer", float: "number"}
    return names.get(kind, "text")


def api_page() -> str:
    """Return the page of the public names."""
    lines = [
        "# Python API",
        "",
        MADE,
        "What other code may rely on; everything else can change without notice. Each name's "
        "docstring says more: parameters with units, errors, sources.",
        "",
    ]
    for module_name, names in API.items():
        module = importlib.import_module(module_name)
        lines += [f"## `{module_name}`", ""]
        for name in names:
            thing = getattr(module, name)
            lines += [*_described(name, thing, "###"), ""]
            for inner, method in _methods(thing):
                lines += [*_described(f"{name}.{inner}", method, "####"), ""]
    return _page(lines)


def _described(name: str, thing: Any, level: str) -> list[str]:
    heading = f"{level} `{name}`"
    if isinstance(thing, property):
        return [heading, "", _first_paragraph(thing)]
    if isinstance(thing, type) and (
        issubclass(thing, Exception | BaseModel) or inspect.isabstract(thing)
    ):
        return [heading, "", _first_paragraph(thing)]
    return [heading, "", "```text", _signature(name, thing), "```", "", _first_paragraph(thing)]


def _methods(thing: Any) -> list[tuple[str, Any]]:
    if not isinstance(thing, type) or issubclass(thing, Exception | BaseModel):
        return []
    fields = {each.name for each in dataclasses.fields(thing)} if _is_dataclass(thing) else set()
    found = []
    for name, member in vars(thing).items():
        wanted = METHODS.get(thing.__name__, {name})
        if name.startswith("_") or name in fields or name not in wanted:
            continue
        if isinstance(member, classmethod | staticmethod):
            found.append((name, getattr(thing, name)))
        elif isinstance(member, property) or inspect.isfunction(member):
            found.append((name, member))
        elif hasattr(member, "func"):  # a cached property
            found.append((name, property(member.func)))
    return found


def _is_dataclass(thing: Any) -> bool:
    return dataclasses.is_dataclass(thing)


def _signature(name: str, thing: Any) -> str:
    signature = inspect.signature(thing)
    parameters = []
    marked = False
    for each in signature.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not marked:
            parameters.append("*")
            marked = True
        marked = marked or each.kind is each.VAR_POSITIONAL
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        said = f"{stars}{each.name}"
        if each.annotation is not each.empty:
            said += f": {_written(each.annotation)}"
        if each.default is not each.empty:
            said += f" = {_written_default(each.default)}"
        parameters.append(said)
    result = signature.return_annotation
    returns = "" if isinstance(thing, type) or result is signature.empty else _written(result)
    tail = f" -> {returns}" if returns and returns != "None" else ""
    flat = f"{name}({', '.join(parameters)}){tail}"
    if len(flat) <= 96:
        return flat
    return "\n".join([f"{name}(", *[f"    {each}," for each in parameters], f"){tail}"])


def _written(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _written_default(default: Any) -> str:
    text = repr(default)
    return "..." if text.startswith("<") or " at 0x" in text else text


def _first_paragraph(thing: Any) -> str:
    return _joined((inspect.getdoc(thing) or "").split("\n\n")[0])


def _paragraphs(model: type[BaseModel]) -> str:
    paragraphs = (inspect.getdoc(model) or "").split("\n\n")
    return "\n\n".join(_joined(each) for each in paragraphs)


def _joined(text: str) -> str:
    return " ".join(text.split()).replace("``", "`")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _page(lines: list[str]) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "configuration.md": configuration_page,
    "cli.md": cli_page,
    "api.md": api_page,
}


if __name__ == "__main__":
    for file, page in PAGES.items():
        (HERE / file).write_text(page(), encoding="utf-8")
        print(HERE / file)
