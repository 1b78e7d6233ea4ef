"""What all tests share: which warnings of other people's packages are not ours to mend."""

from __future__ import annotations

OTHERS_WARNINGS = (
    # kafka-python 3.0 reads its schemas by a call that Python 3.11 and 3.12 call old.
    "ignore:(read|open)_text is deprecated:DeprecationWarning",
)


def pytest_configure(config):
    for line in OTHERS_WARNINGS:
        config.addinivalue_line("filterwarnings", line)
