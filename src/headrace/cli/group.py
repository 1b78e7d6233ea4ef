"""`headrace group`: list, describe, set, reset, delete.

Invariants: a group with running consumers is never changed, because its next commit would undo the
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.config_requests import GROUP, Resource
from headrace.cli.config_requests import describe as describe_settings
from headrace.cli.failures import CONFLICT, NOT_FOUND, CommandFailed
from headrace.cli.group_copy import export, import_
from headrace.cli.group_diagnosis import diagnose, history
from headrace.cli.group_listing import SHARE, STREAMS, list_groups
from headrace.cli.group_past import past
from headrace.cli.group_reset import reset
from headrace.cli.group_settings import DEAD_LETTER_TOPIC, DELIVERY_LIMIT
from headrace.cli.group_settings import set_ as set_settings
from headrace.cli.lag import (
    PartitionLag,
    describe_groups,
    group_lag,
    lag_of,
    members_by_partition,
    share_group_lag,
    state_of,
)
from headrace.cli.names import GROUP_NAME, written_name
from headrace.cli.output import AS_JSON, Cell, counted, print_json, print_table, say, tell
from headrace.cli.parameters import CommandGroup
from headrace.cli.share_offsets import share_group, without_dead_letters
from headrace.cli.streams_groups import read_by, streams_group
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.session import CliSession


@click.group(cls=CommandGroup)
def group() -> None:
    """List, describe, set, diagnose, reset, export, import, delete groups of every type.

    \b
    Examples:
      headrace group list
      headrace group describe billing --json
      headrace group set billing --ordered --attempts 5 --retry-after 1s,10s,1m
      headrace group reset billing --topic orders --to earliest --dry-run
      headrace group reset billing --topic orders --to 2013-01-31T12:00
      headrace group export billing > billing.json
      headrace group diagnose billing
      headrace group history billing
      headrace group past orders --at 15m
      headrace group delete billing
    """


group.add_command(reset)
group.add_command(diagnose)
group.add_command(history)
group.add_command(past)
group.add_command(export)
group.add_command(import_)
group.add_command(set_settings)


@group.command("list")
@click.option("--lag", is_flag=True, help="Show the lag of each group (one request per group).")
@AS_JSON
@click.pass_obj
def list_(session: CliSession, /, lag: bool, as_json: bool) -> None:
    """List the groups of the cluster."""
    rows: list[dict[str, Any]] = [one._asdict() for one in list_groups(session)]
    columns = ["group", "state", "type"]
    if lag:
        columns += ["lag", "lag_s"]
        for row in rows:
            row.update(_total(lag_of(session, row["group"], row["type"])))
    if as_json:
        print_json(rows)
        return
    print_table(
        [_heading(c) for c in columns],
        [[row[c] for c in columns] for row in rows],
        empty="no groups: consumers make them, such as headrace consume TOPIC --group NAME",
    )


def _heading(column: str) -> str:
    return {"lag": "lag (messages)", "lag_s": "lag (seconds)"}.get(column, column)


@group.command()
@click.argument("names", nargs=-1, required=True, type=GROUP_NAME)
@AS_JSON
@click.pass_obj
def describe(session: CliSession, /, names: tuple[str, ...], as_json: bool) -> None:
    """Show offsets, lag and members of groups.

    Lag is shown in messages and in seconds. The latter is the age of the first unread record, or 0
    if the group has read everything.
    """
    types = {one.group: one.type for one in list_groups(session)}
    documents = []
    for name in names:
        if types.get(name) == SHARE:
            document, lags = _describe_share_group(session, name)
        elif types.get(name) == STREAMS:
            document, lags = _describe_streams_group(session, name)
        else:
            document, lags = _describe_consumer_group(session, name)
        documents.append(document | _total(lags) | {"partitions": [p.document() for p in lags]})
        if not as_json:
            _show(documents[-1], lags)
    if as_json:
        print_json(documents)


def _describe_consumer_group(
    session: CliSession, name: str
) -> tuple[dict[str, Any], list[PartitionLag]]:
    """Also for a group of unknown type, such as one of a deleted topic."""
    described = describe_groups(session, [name])[name]
    lags = group_lag(session, name, members_by_partition(described))
    state = state_of(described)
    if state == "Dead" and not lags:
        raise session.no_group(name, [one.group for one in list_groups(session)])
    return {
        "group": name,
        "state": state,
        "protocol": described.partition_assignor or None,
        "coordinator": described.coordinator.id if described.coordinator else None,
        "members": _members(described),
    }, lags


def _describe_share_group(
    session: CliSession, name: str
) -> tuple[dict[str, Any], list[PartitionLag]]:
    described = share_group(session, name)
    members = [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "instance_id": None,
            "partitions": [
                {"topic": topic.topic_name, "partition": number}
                for topic in member.assignment.topic_partitions
                for number in topic.partitions
            ],
        }
        for member in described.members
    ]
    settings = {one.name: one.value for one in describe_settings(session, Resource(GROUP, name))}
    return {
        "group": name,
        "state": described.group_state,
        "protocol": described.assignor_name or None,
        "coordinator": None,
        "members": members,
        "dead_letter_topic": settings.get(DEAD_LETTER_TOPIC) or None,
        "delivery_count_limit": int(settings.get(DELIVERY_LIMIT) or -1),
    }, share_group_lag(session, name)


def _describe_streams_group(
    session: CliSession, name: str
) -> tuple[dict[str, Any], list[PartitionLag]]:
    described = streams_group(session, name)
    held = read_by(session, described)
    owners = {p: one.client_id for one in described.members for p in held[one.member_id]}
    members = [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.client_host,
            "instance_id": member.instance_id,
            "partitions": [
                {"topic": p.topic, "partition": p.number} for p in held[member.member_id]
            ],
        }
        for member in described.members
    ]
    return {
        "group": name,
        "state": described.group_state,
        "protocol": None,
        "coordinator": None,
        "members": members,
    }, group_lag(session, name, owners)


def _total(lags: list[PartitionLag]) -> dict[str, Any]:
    return {
        "lag": sum(one.lag or 0 for one in lags),
        "lag_s": max((one.lag_s for one in lags if one.lag_s is not None), default=0.0),
    }


def _members(description: Any) -> list[dict[str, Any]]:
    return [
        {
            "member_id": member.member_id,
            "client_id": member.client_id,
            "host": member.host,
            "instance_id": member.group_instance_id,
            "partitions": [
                {"topic": p.topic, "partition": p.partition}
                for p in (member.assignment.topic_partitions if member.assignment else [])
            ],
        }
        for member in description.members
    ]


def _show(document: dict[str, Any], lags: list[PartitionLag]) -> None:
    members = counted(len(document["members"]), "member")
    tell(
        f"{written_name(document['group'])}: {document['state']}, {members}, "
        f"{counted(document['lag'], 'message')} behind ({document['lag_s']:,.1f} s)"
    )
    rows: list[list[Cell]] = [
        [p.topic, p.partition, p.committed, p.latest, p.lag, p.lag_s, p.member] for p in lags
    ]
    columns = ["topic", "partition", "committed", "latest", "lag", "lag_s", "member"]
    print_table([_heading(column) for column in columns], rows)
    if document.get("dead_letter_topic", "") is None:
        say(without_dead_letters(document["delivery_count_limit"]))


@group.command()
@click.argument("names", nargs=-1, required=True, type=GROUP_NAME)
@AS_JSON
@click.pass_obj
def delete(session: CliSession, /, names: tuple[str, ...], as_json: bool) -> None:
    """Delete groups with their offsets; refused while consumers are running."""
    futures = session.admin().delete_consumer_groups(list(names), request_timeout=session.timeout_s)
    for name in names:
        try:
            session.answer(futures[name], f"delete group {name!r}", Right("delete", "group", name))
        except CommandFailed as failure:
            if failure.exit_code == NOT_FOUND:
                raise session.no_group(name) from None
            if failure.exit_code == CONFLICT:
                raise CommandFailed(
                    f"group {name!r} still has members; it was not deleted",
                    failure.next_step,
                    CONFLICT,
                ) from None
            raise
    if as_json:
        print_json([{"group": name, "deleted": True} for name in names])
        return
    for name in names:
        tell(f"deleted {written_name(name)}")
