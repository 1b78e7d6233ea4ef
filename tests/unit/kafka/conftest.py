"""Lets the tests of the Kafka face, wherever they are, import `face_rig`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "unit" / "kafka"))
