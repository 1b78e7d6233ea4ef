"""Which rights a copying job asks for, and of which cluster."""

import pytest

from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.errors import RightsMissing
from headrace.pipeline.jobs.transfer import Copy
from headrace.pipeline.jobs.windows import Connection


def test_a_copy_to_another_cluster_needs_of_each_what_it_does_there(monkeypatch):
    """It keeps its progress where it reads, and that of its writes where it writes."""
    hidden = set()
    asked = []

    def is_group_hidden(self, group):
        asked.append((self._client["bootstrap.servers"], group))
        return asked[-1] in hidden

    monkeypatch.setattr(ClusterClient, "authorized", lambda _self, _topics: {})
    monkeypatch.setattr(ClusterClient, "is_group_hidden", is_group_hidden)
    here, there = Connection("here:9092"), Connection("there:9092")
    copy = Copy(
        here, "headrace-replay.a", "", lambda: None, lambda _window, _note: None,
        target="copy", to=there, source="orders",
    )  # fmt: skip
    copy.check_rights(["copy"])
    marks = ("here:9092", "headrace-replay.a")
    writes = ("there:9092", "headrace-sink.headrace-replay.a.0")
    assert asked == [marks, writes]
    for place, prefix in ((marks, "headrace-replay."), (writes, "headrace-sink.headrace-replay.")):
        hidden = {place}
        with pytest.raises(RightsMissing, match=f"--group {prefix} --prefix"):
            copy.check_rights(["copy"])
