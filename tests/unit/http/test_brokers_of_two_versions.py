"""A rolling upgrade: brokers whose tables of calls differ answer so that a client tries again."""

from __future__ import annotations

import pytest
from tests.unit.http.test_queues_of_brokers import TOPIC, with_brokers
from tests.unit.http.test_whole_topics import webs_of

from headrace.broker.services.owner_calls import OwnerCalls, checked
from headrace.errors import PeerVersionDiffers, RequestInvalid


def become_old(monkeypatch, calls: OwnerCalls, *names: str, answers: bool = True) -> None:
    """A broker that lacks these calls. `answers`: as the versions before 0.3 do."""

    async def carry_out(name, topic, number, body):
        if name in names:
            raise RequestInvalid(f"there is no operation {name!r}: all brokers need one version")
        return await OwnerCalls.carry_out(calls, name, topic, number, body)

    if answers:
        monkeypatch.setattr(calls, "carry_out", carry_out)
        return
    for table in (calls._of_broker, calls._of_partition):
        for name in names:
            table.pop(name, None)


@pytest.mark.parametrize("answers", [True, False])
def test_what_an_older_broker_does_not_know_is_tried_again_later(monkeypatch, answers):
    @with_brokers(3)
    async def scenario(cluster):
        webs = await webs_of(cluster)
        for web in webs[1:]:
            names = "reads.page", "brokers.state", "searches.get"
            become_old(monkeypatch, web.node.services.calls, *names, answers=answers)
        calls = webs[0].node.services.calls
        with pytest.raises(PeerVersionDiffers, match="brokers have different versions"):
            await calls.ask_broker("brokers.state", 2, [])
        answered = await calls.ask_brokers("searches.list", [])
        assert all(isinstance(one, str) for one in answered.values()), "the other calls work"
        other = cluster.topic_owners().index(2)
        status, refused = await webs[0].ask("GET", f"/v1/topics/{TOPIC}/records?partition={other}")
        assert (status, refused["code"]) == (503, "PeerVersionDiffers"), refused
        assert refused["retriable"] is True
        status, _ = await webs[0].ask("GET", "/v1/searches/none")
        assert status == 404, "a task that only they could have is unknown"

    scenario()


async def test_arguments_of_another_version_are_tried_again_later():
    calls = OwnerCalls(object(), lambda: (), 1)  # type: ignore[arg-type]

    async def operation(asked):
        checked(asked, str)

    calls.offer_of_broker("known", operation)
    for name, asked in (("known", b'["a", 1]'), ("unknown", b"[]")):
        with pytest.raises(PeerVersionDiffers, match="brokers have different versions"):
            await calls.carry_out(name, None, -1, asked)
