"""The how-to pages, run in the order in which a reader would: each block does what its page says.

In a page, ``<!-- file: NAME -->`` before a block of TOML writes it, ``<!-- exits: N -->`` before a
block of commands says how the last of them leaves, and ``<!-- output -->`` before a block of text
says which lines the commands above printed, in this order, with ``...`` for what lies between.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_dphist.cli import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:<!-- (\w+)(?:: (\S+))? -->\n)?^( *)```(\w+)\n(.*?)^ *```$", re.M | re.S)
COMMANDS_OF_A_SHELL = ("python3 -m venv", ". .venv", "pip install")


class Reader:
    """Goes through pages in one folder and does what they say."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self.capfd = capfd
        self.names: dict[str, object] = {}
        self.printed = ""
        self.ran: list[str] = []

    def read(self, page: str) -> None:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        for mark, value, indent, language, block in BLOCK.findall(text):
            content = re.sub(rf"^{indent}", "", block, flags=re.M)
            if language == "toml" and mark == "file":
                Path(value).write_text(content, encoding="utf-8")
            elif language == "bash":
                self.run(content.splitlines(), int(value) if mark == "exits" else 0)
            elif language == "python":
                exec(compile(content, page, "exec"), self.names)  # noqa: S102 - our own page
            elif mark == "output":
                self.compare(content.splitlines())

    def run(self, lines: list[str], last_exit: int) -> None:
        self.capfd.readouterr()
        for position, line in enumerate(lines, start=1):
            if line.startswith(COMMANDS_OF_A_SHELL):
                continue
            words = [word.strip("'") for word in line.split()]
            if words[0] == "python":
                self.script(words[1:])
                continue
            assert words[0] == "spark-dphist", line
            with pytest.raises(SystemExit) as left:
                main(words[1:])
            expected = last_exit if position == len(lines) else 0
            printed = self.capfd.readouterr()
            assert (left.value.code or 0) == expected, (line, printed.err)
            self.printed = printed.out + printed.err
            self.ran.append(line)

    def script(self, words: list[str]) -> None:
        before, sys.argv = sys.argv, words
        try:
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        finally:
            sys.argv = before

    def compare(self, lines: list[str]) -> None:
        rest = " ".join(self.printed.split())
        for shown in lines:
            if shown != "...":
                wanted = " ".join(shown.split())
                assert wanted in rest, shown
                rest = rest[rest.index(wanted) + len(wanted) :]


@pytest.fixture
def reader(
    spark: SparkSession,  # noqa: ARG001 - the session that the commands find
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return Reader(capfd)


@pytest.mark.usefixtures("classic_only")  # the same commands again would show nothing more
def test_the_tutorial_and_the_pages_after_it_do_what_they_say(reader: Reader) -> None:
    reader.read("tutorial.md")
    assert Path("report.html").stat().st_size > 10_000
    assert any(line.startswith("spark-dphist run by-month") for line in reader.ran)

    for page in ("read-audit.md", "choosing.md", "refused-budget.md"):
        before = len(reader.ran)
        reader.read(page)
        assert len(reader.ran) > before or page == "read-audit.md"
