"""A broker that stops while ZooKeeper is away ends soon, without errors, and loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("google.protobuf", reason="a cluster needs headrace[cluster]")

from headrace_verify.simulation import cluster as cluster_module
from headrace_verify.simulation.run import draw_scenario, simulate
from headrace_verify.simulation.schedule import Fault

CUT_AT_S, CUT_S = 8.0, 28.0
GONE_WITHIN_S = 8.0
"""A session lasts 6 s; a broker that hears nothing serves nothing a little earlier."""


@pytest.mark.parametrize("after_s", [0.0, 3.0, 8.0])
def test_a_broker_that_is_stopped_while_zookeeper_is_away_is_gone_soon(after_s, monkeypatch):
    """It waited for ZooKeeper to take its partitions, its key and all of its keys: 35 s."""
    stops: list[float] = []
    left: list[str] = []
    stop = cluster_module.SimulatedBroker.stop

    def stop_timed(broker: Any) -> None:
        begun_s, life = broker._cluster.loop.now_s, broker._broker
        close = life.stop

        async def close_timed() -> None:
            await close()
            stops.append(broker._cluster.loop.now_s - begun_s)
            mine = asyncio.current_task()
            left.extend(
                task.get_name()
                for task in broker.host.tasks
                if task is not mine and not task.done()
            )

        life.stop = close_timed
        stop(broker)

    monkeypatch.setattr(cluster_module.SimulatedBroker, "stop", stop_timed)
    for seed in (1, 7):
        scenario = draw_scenario(seed, 40.0, is_lone=False)
        faults = (
            Fault(CUT_AT_S, "cut-session", CUT_S, 0, 0, 0.5),
            Fault(CUT_AT_S + after_s, "stop", CUT_S - after_s, 0, 0, 0.5),
        )
        result = simulate(scenario._replace(schedule=faults, points=(), is_broken_for_good=False))
        assert (result.problems, result.verdict.anomalies) == ([], [])
    assert len(stops) == 2
    assert max(stops) < GONE_WITHIN_S
    assert left == []
