"""`headrace.quorum`: what is taken, what is refused, and what it means to a log."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.broker import running

from headrace.broker.topics.overrides import copies_of, log_config
from headrace.broker.topics.topic_config import ENSEMBLE_MAX, QUORUM, check_config
from headrace.errors import ConfigInvalid
from headrace.storage.ledger import Copies

NUMBERS = st.integers(0, ENSEMBLE_MAX + 2)


@given(NUMBERS, NUMBERS, NUMBERS)
def test_exactly_the_quorums_that_can_be_are_taken(ensemble: int, write: int, ack: int) -> None:
    text = f"{ensemble},{write},{ack}"
    if ENSEMBLE_MAX >= ensemble >= write >= ack >= 1:
        check_config(QUORUM, text)
        assert log_config({QUORUM: text}).copies == Copies(ensemble, write, ack)
    else:
        with pytest.raises(ConfigInvalid, match="E >= W >= A >= 1"):
            check_config(QUORUM, text)


@pytest.mark.parametrize("text", ["", "3", "3,3", "3,3,2,1", "3, 3, 2", "a,b,c", "+3,3,2", "٣,3,2"])
def test_malformed_quorums_are_refused(text: str) -> None:
    with pytest.raises(ConfigInvalid):
        check_config(QUORUM, text)


def test_a_topic_that_does_not_say_leaves_it_to_the_store() -> None:
    assert copies_of({}) is None
    assert log_config({"retention.ms": "5"}).copies is None


async def test_a_broker_with_files_refuses_copies_and_takes_what_is_true_there() -> None:
    async with running() as one:
        with pytest.raises(ConfigInvalid, match=r"headrace serve --zookeeper"):
            await one.topics.create("t", configs={QUORUM: "3,3,2"})
        await one.topics.create("t", configs={QUORUM: "1,1,1"})
        topic = one.topics.get("t")
        with pytest.raises(ConfigInvalid):
            await one.topics.change_configs(topic, lambda now: {**now, QUORUM: "2,2,1"})
        await one.topics.change_configs(topic, lambda _now: {"retention.ms": "5"})
        assert topic.fact.configs == {"retention.ms": "5"}
