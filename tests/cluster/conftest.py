"""Let these tests use the small releases of the Spark tests."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "spark"))
