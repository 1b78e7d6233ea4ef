"""Lets the tests of groups, wherever they are, import `group_rig`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "coordination"))
