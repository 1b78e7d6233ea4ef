"""Lets the tests of machines import their rigs and worlds."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "coordination"))
sys.path.insert(0, str(Path(__file__).parent))
