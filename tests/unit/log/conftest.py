"""Lets the tests of logs, wherever they are, import `log_rig`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "log"))
