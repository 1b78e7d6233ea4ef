"""Each planted bug must be found: a harness that never failed proves nothing."""

from __future__ import annotations

import pytest

from headrace_verify.crash.bugs import BUGS, is_found
from headrace_verify.crash.run import BY_NAME


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{bug.found_by[0]}: {bug.name}")
def test_a_planted_bug_is_found(tmp_path, bug):
    task = is_found(bug, BY_NAME, 1, tmp_path)
    if task.is_impossible:
        pytest.skip("; ".join(task.skipped))
    assert task.violation_count, f"nobody noticed: {bug.name}"
