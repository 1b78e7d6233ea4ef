"""Planning against a broker that does not answer."""

import socket

import pytest

from headrace.pipeline import cluster
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.errors import BrokerUnavailable
from headrace.pipeline.restarts import is_passing


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.subscription_of(("t",), None),
        lambda client: client.subscription_of((), "t.*"),
        lambda client: client.latest({"t": {"0": 0}}),
        lambda client: client.topic_id_or_none("t"),
        lambda client: client.configuration("t"),
    ],
)
def test_a_broker_that_does_not_answer_is_a_reason_to_try_again(monkeypatch, ask):
    monkeypatch.setattr(cluster, "REQUEST_TIMEOUT_S", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        port = silent.getsockname()[1]
        client = ClusterClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        with pytest.raises(BrokerUnavailable, match=r"Could not .*Check that the broker") as failed:
            ask(client)
    assert is_passing(failed.value)
    # A service that waits for brokers says this too: its user has nothing to start.
    assert "start the job again" not in str(failed.value)
    assert "what has ended continues when it is started again" in str(failed.value)
