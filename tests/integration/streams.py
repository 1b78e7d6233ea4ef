"""A member of a streams group by hand, with the topology of an application that counts."""

from __future__ import annotations

from tests.integration.raw import Raw, error_codes

HEARTBEAT = 88
PARTITIONS = 4


def counting(topic: str, application: str, factor: int = 0) -> dict:
    """A topology that counts by a new key: a repartition topic and a changelog topic."""
    compact = ({"key": "cleanup.policy", "value": "compact"},)
    short = ({"key": "retention.ms", "value": "60000"},)
    repartition = {"name": f"{application}-repartition", "partitions": 0}
    changelog = {"name": f"{application}-changelog", "partitions": 0}
    return {
        "epoch": 0,
        "subtopologies": [
            {
                "subtopology_id": "0",
                "source_topics": (topic,),
                "repartition_sink_topics": (repartition["name"],),
            },
            {
                "subtopology_id": "1",
                "state_changelog_topics": [
                    changelog | {"replication_factor": factor, "topic_configs": compact}
                ],
                "repartition_source_topics": [
                    repartition | {"replication_factor": factor, "topic_configs": short}
                ],
            },
        ],
    }


class Thread:
    """One member, by hand."""

    def __init__(self, address, group: str, topology: dict, name: str = "m") -> None:
        self.address, self.group, self.topology, self.name = address, group, topology, name
        self.epoch = 0
        self.tasks: set[tuple[str, int]] = set()
        self.statuses: dict[int, str] = {}

    def beat(self, **changes: object):
        """Send a heartbeat that reports all tasks; take over the answer."""
        values: dict[str, object] = {
            "group_id": self.group,
            "member_id": self.name,
            "member_epoch": self.epoch,
            "endpoint_information_epoch": -1,
            "active_tasks": [
                {"subtopology_id": one, "partitions": (number,)} for one, number in self.tasks
            ],
            "standby_tasks": (),
            "warmup_tasks": (),
        }
        if self.epoch == 0:
            values |= {
                "rebalance_timeout": 30_000,
                "topology": self.topology,
                "process_id": f"process of {self.name}",
            }
        with Raw(self.address) as raw:
            answer = raw.call(HEARTBEAT, 0, **(values | changes))
        if answer.error_code == 0:
            self.epoch = answer.member_epoch
            self.statuses = {int(one.status_code): one.status_detail for one in answer.status}
            if answer.active_tasks is not None:
                self.tasks = {
                    (t.subtopology_id, n) for t in answer.active_tasks for n in t.partitions
                }
        return answer

    def has_all(self) -> bool:
        """Send a heartbeat; whether this member has every task of `counting` now."""
        assert error_codes(self.beat()) == [0]
        return self.tasks == {(one, n) for one in "01" for n in range(PARTITIONS)}
