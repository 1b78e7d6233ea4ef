"""The rights that a job needs, asked for before its first record: an error names all that are
missing at once, and a job of several targets does not write to one and fail at another.

Invariants: nothing is changed. Brokers that do not say what a client may do are believed; there the
read or write itself meets the missing right, and names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.pipeline.errors import RightsMissing
from headrace.pipeline.refusals import prefix_of_jobs
from headrace.pipeline.written import GROUP_PREFIX
from headrace.runtime.access import OF_TENANTS, acl_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.pipeline.jobs.windows import Connection

READS: Final = ("read",)
WRITES: Final = ("read", "write", "describe_configs")
"""READ, because progress is kept as offsets of the topic."""
RESULTS: Final = ("write",)


def missing_rights(
    connection: Connection,
    reads: Iterable[str] = (),
    writes: Iterable[str] = (),
    groups: Iterable[str] = (),
    results: Iterable[str] = (),
) -> list[str]:
    """The commands that give what this client lacks, to read and write these topics, to keep
    progress in these groups, and to send to these topics what a job found. Topics that do not exist
    are left out.

    Raises BrokerUnavailable.
    """
    needed: dict[str, dict[str, None]] = {}
    for topics, operations in ((reads, READS), (writes, WRITES), (results, RESULTS)):
        for topic in topics:
            needed.setdefault(topic, {}).update(dict.fromkeys(operations))
    allowed = connection.cluster.authorized(sorted(needed))
    lacking: dict[tuple[str, ...], list[str]] = {}
    for topic, wanted in needed.items():
        if topic in allowed and (rest := tuple(o for o in wanted if o not in allowed[topic])):
            lacking.setdefault(rest, []).append(topic)
    found = [
        acl_command(connection.client, operations, "topic", names)
        for operations, names in lacking.items()
    ]
    kinds = [prefix_of_jobs(one) for one in groups if connection.cluster.is_group_hidden(one)]
    if kinds:
        found.append(acl_command(connection.client, READS, "group", kinds, is_prefix=True))
    return found


def of_writes(group: str) -> str:
    """A group as of the writes of a job, where these go to; the job's is where it reads."""
    return f"{GROUP_PREFIX}.{group}.0"


def check_job(
    connection: Connection,
    group: str,
    reads: Iterable[str],
    writes: Iterable[str],
    results: Iterable[str] = (),
) -> None:
    """Raise RightsMissing unless a job may read and write these topics of one cluster, send its
    result to others, and keep its progress in the group, if it has one. Raises BrokerUnavailable.
    """
    groups = (group, of_writes(group)) if group else ()
    check_rights(missing_rights(connection, reads, writes, groups, results))


def check_rights(commands: list[str]) -> None:
    """Raise RightsMissing if there are commands to run."""
    if commands:
        raise RightsMissing(
            "This client lacks rights that the job needs. Nothing was written. An administrator can"
            f" allow it ({OF_TENANTS}); the same command continues then:"
            + "".join(f"\n  {one}" for one in commands)
        )
