"""The two files that one build of this checkout leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import spark_dphist

REPOSITORY = Path(__file__).parents[1]
WHEEL = f"spark_dphist-{spark_dphist.__version__}-py3-none-any.whl"
# What --py-files and addArtifacts take.
ZIP = f"spark_dphist-{spark_dphist.__version__}.zip"


def build(folder: Path) -> list[str]:
    """Build into a folder and return the names of all that stands there then."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
    )
    return sorted(path.name for path in folder.iterdir())
