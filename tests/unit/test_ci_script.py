"""The script of continuous integration runs what the README says, or fails."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = "<!-- command: {mark} -->\n```bash\n{command}\n```\n"


def run_in(directory: Path, readme: str) -> subprocess.CompletedProcess[str]:
    """Run the script's step "README: tests", with its own functions, beside another README."""
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    functions = re.findall(r"^\w+\(\) \{(?: .*?\}|\n.*?^\})$", script, re.DOTALL | re.MULTILINE)
    (step,) = re.findall(r'^step "README: tests"\n(.*?)\n\n', script, re.DOTALL | re.MULTILINE)
    (directory / "README.md").write_text(readme, encoding="utf-8")
    made = "\n".join(["set -euo pipefail", *functions, step, "echo reached the end"])
    return subprocess.run(
        ["bash", "-c", made], cwd=directory, capture_output=True, text=True, check=False
    )


def test_the_step_runs_the_command_below_its_mark_with_its_options(tmp_path: Path) -> None:
    command = 'echo "ran with $PYTEST_ADDOPTS"\necho twice'
    done = run_in(tmp_path, BLOCK.format(mark="tests", command=command) + "```bash\necho no\n```\n")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ran with -n 3 .*\ntwice\nreached the end\n", done.stdout)


@pytest.mark.parametrize(
    "readme",
    [
        BLOCK.format(mark="test", command="echo ran"),
        BLOCK.format(mark="tests", command=""),
        "<!-- command: tests -->\n",
        "",
    ],
    ids=["other mark", "empty block", "no block", "empty"],
)
def test_a_readme_that_lost_the_command_fails_the_step(tmp_path: Path, readme: str) -> None:
    done = run_in(tmp_path, readme)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "no command below <!-- command: tests -->" in done.stderr


def test_a_command_that_fails_fails_the_step(tmp_path: Path) -> None:
    done = run_in(tmp_path, BLOCK.format(mark="tests", command="false\necho went on"))
    assert (done.returncode, done.stdout) == (1, "")
