"""Dependencies point one way, and the pure layers run without Spark."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "spark_dphist"

# What each layer may import of this package (itself apart), and from outside the standard library.
LAYERS = {
    "errors": (set(), set()),
    "mechanisms": ({"errors"}, {"numpy", "scipy"}),
    "streams": ({"errors"}, {"numpy", "cryptography"}),
    # dp_accounting is optional and imported where it is needed.
    "accounting": ({"errors", "mechanisms"}, {"numpy", "scipy", "sqlalchemy", "dp_accounting"}),
    "config_faults": ({"errors"}, {"pydantic"}),
    "key_ranges": ({"errors"}, set()),
    "config": ({"errors", "mechanisms", "accounting", "config_faults", "key_ranges"}, {"pydantic"}),
    "weaknesses": (set(), set()),
    "shown": (set(), set()),
    "optional": ({"errors"}, set()),
    "overview": ({"mechanisms", "shown"}, {"numpy", "pyarrow"}),
    "notebook": ({"overview", "shown"}, set()),
    "figures": ({"accounting", "mechanisms", "overview", "shown"}, {"numpy", "matplotlib"}),
    # matplotlib is optional and imported where it is needed; pandas is named for its type.
    "plan": (
        {
            "errors",
            "mechanisms",
            "accounting",
            "config",
            "key_ranges",
            "weaknesses",
            "figures",
            "notebook",
            "optional",
            "shown",
        },
        {"numpy", "pandas", "matplotlib"},
    ),
    "targets": ({"errors", "mechanisms", "accounting", "config"}, {"scipy"}),
    "comparison": (
        {"errors", "mechanisms", "accounting", "config", "plan"},
        {"numpy", "scipy"},
    ),
    "verification": ({"errors", "mechanisms", "accounting", "streams"}, {"numpy", "scipy"}),
    "attack": (
        {"errors", "mechanisms", "accounting", "streams", "verification"},
        {"numpy"},
    ),
    "attack_figure": (
        {"errors", "optional", "attack", "verification"},
        {"numpy", "matplotlib"},
    ),
    "consistency": (
        {"errors", "mechanisms", "audit", "results"},
        {"numpy", "scipy", "pyarrow"},
    ),
    "report": (
        {
            "errors",
            "mechanisms",
            "accounting",
            "audit",
            "history",
            "plan",
            "figures",
            "overview",
            "shown",
            "weaknesses",
        },
        {"numpy", "pyarrow", "matplotlib", "jinja2", "markupsafe"},
    ),
    "local": ({"errors", "mechanisms"}, {"numpy", "scipy"}),
    "audit_summary": ({"errors", "streams"}, {"numpy", "pyarrow"}),
    "spark": (
        {"errors", "local", "key_ranges", "mechanisms", "accounting", "streams", "audit_summary"},
        {"numpy", "pandas", "pyarrow", "pyspark", "py4j"},
    ),
}
# What is at the end of the chain: only entry points import it.
ENDS = {"cli", "cli_report", "cli_synthesize", "display", "session", "from_config"}


def modules():
    """Every module of the package with the layer it belongs to."""
    for file in sorted(ROOT.rglob("*.py")):
        inside = file.relative_to(ROOT).with_suffix("")
        yield file, inside.parts[0]


def imports(file):
    """Full names of the modules that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide the layer"
            yield node.module
            if node.module == "spark_dphist":
                yield from (f"spark_dphist.{alias.name}" for alias in node.names)


def layers_imported(file):
    """The layers and the outside packages that a file imports."""
    ours, others = set(), set()
    for name in imports(file):
        first, *rest = name.split(".")
        if first == "spark_dphist":
            ours.update(rest[:1])
        elif first not in sys.stdlib_module_names:
            others.add(first)
    # Of the package itself only the version is imported.
    return ours - {"__version__"}, others


@pytest.mark.parametrize("layer", sorted(LAYERS))
def test_a_layer_imports_only_what_is_below_it(layer):
    may_ours, may_others = LAYERS[layer]
    files = [file for file, belongs in modules() if belongs == layer]
    assert files
    for file in files:
        ours, others = layers_imported(file)
        assert ours <= may_ours | {layer}, file
        assert others <= may_others, file


def test_nothing_imports_the_ends_of_the_chain():
    for file, layer in modules():
        ours, _ = layers_imported(file)
        if layer not in ENDS:
            assert not ours & ENDS, file


def test_no_two_layers_import_each_other():
    graph = {}
    for file, layer in modules():
        ours, _ = layers_imported(file)
        graph.setdefault(layer, set()).update(ours - {layer})
    order = list(graphlib.TopologicalSorter(graph).static_order())
    assert order.index("errors") < order.index("mechanisms") < order.index("spark")
    assert order.index("spark") < order.index("release") < order.index("cli")


def test_spark_is_named_by_the_spark_layers_alone():
    named = {layer for file, layer in modules() if "pyspark" in layers_imported(file)[1]}
    # The audit names the types of its to_spark alone.
    ours = {"spark", "request", "audit", "audit_stage", "release", "from_config", "session"}
    ours |= {"synthesize"}
    ours |= {"local_collection", "staged", "committed"}
    assert named <= ours
    assert "spark" in named


def test_the_pure_layers_run_where_spark_cannot_be_imported():
    program = """
import sys
from importlib.abc import MetaPathFinder

class Forbidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pyspark", "py4j"):
            raise ImportError(f"{name} is forbidden here")

sys.meta_path.insert(0, Forbidden())
try:
    import pyspark
except ImportError:
    pass
else:
    raise SystemExit("the hook does not work")

import spark_dphist
import spark_dphist.accounting
import spark_dphist.comparison
import spark_dphist.config
import spark_dphist.mechanisms
import spark_dphist.mechanisms.registry
import spark_dphist.plan
import spark_dphist.streams
import spark_dphist.verification

mechanism = spark_dphist.mechanisms.registry.calibrate(
    "shifted_log", relative_error=0.1, floor=50
)
print(spark_dphist.accounting.epsilon_upper(mechanism.worst_case_budget(), 1e-6))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 1 < float(done.stdout) < 2
