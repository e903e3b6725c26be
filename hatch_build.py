"""Build hook: beside each wheel, the same archive as a .zip, which spark-submit ships to executors.

``--py-files`` takes .zip, .egg and .py only; a wheel of pure Python works under the other name.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ExecutorsZip(BuildHookInterface[Any]):
    """Copy the finished wheel to NAME-VERSION.zip."""

    PLUGIN_NAME = "custom"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Run after the wheel is written."""
        if version == "standard":
            wheel = Path(artifact_path)
            shutil.copyfile(wheel, wheel.with_name("-".join(wheel.name.split("-")[:2]) + ".zip"))
