"""`headrace group`: list, describe, reset, delete.

Invariants: a group whose consumers run is never changed under them: its next commit would
undo the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from headrace.cli.completion import complete_groups
from headrace.cli.failures import CONFLICT, NOT_FOUND, CommandFailed, no_group
from headrace.cli.group_reset import reset
from headrace.cli.lag import (
    PartitionLag,
    describe_groups,
    group_lag,
    members_by_partition,
    state_of,
)
from headrace.cli.output import Cell, print_json, print_table

if TYPE_CHECKING:
    from headrace.cli.session import Session

AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups.

    \b
    Examples:
      headrace group list
      headrace group describe billing --json
      headrace group reset billing --topic orders --to earliest --dry-run
      headrace group reset billing --topic orders --to 2013-01-31T12:00
      headrace group delete billing
    """


group.add_command(reset)


def _listing(session: Session) -> list[dict[str, Any]]:
    future = session.admin().list_consumer_groups(request_timeout=session.timeout_s)
    answer = session.answer(future, "list groups")
    return [
        {
            "group": found.group_id,
            "state": "".join(w.capitalize() for w in found.state.name.lower().split("_")),
            "type": found.type.name.lower() if found.type else None,
        }
        for found in sorted(answer.valid, key=lambda found: found.group_id)
    ]


@group.command("list")
@click.option("--lag", is_flag=True, help="Also how far each is behind (asks for each).")
@AS_JSON
@click.pass_obj
def list_(session: Session, /, lag: bool, as_json: bool) -> None:
    """List the groups of the cluster."""
    rows = _listing(session)
    columns = ["group", "state", "type"]
    if lag:
        columns += ["lag", "lag_s"]
        for row in rows:
            lags = group_lag(session, row["group"], {})
            row["lag"] = sum(p.lag for p in lags)
            row["lag_s"] = max((p.lag_s for p in lags if p.lag_s is not None), default=0.0)
    if as_json:
        print_json(rows)
        return
    print_table([_heading(c) for c in columns], [[row[c] for c in columns] for row in rows])


def _heading(column: str) -> str:
    return {"lag": "lag (messages)", "lag_s": "lag (seconds)"}.get(column, column)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@AS_JSON
@click.pass_obj
def describe(session: Session, /, names: tuple[str, ...], as_json: bool) -> None:
    """Show progress, lag and members of groups.

    Lag is counted in messages, and in seconds: the age of the first unread record, 0 when the
    group has read everything.
    """
    described = describe_groups(session, names)
    documents = []
    for name in names:
        description = described[name]
        lags = group_lag(session, name, members_by_partition(description))
        state = state_of(description)
        if state == "Dead" and not lags:
            raise no_group(name)
        documents.append(
            {
                "group": name,
                "state": state,
                "protocol": description.partition_assignor or None,
                "coordinator": description.coordinator.id if description.coordinator else None,
                "lag": sum(p.lag for p in lags),
                "lag_s": max((p.lag_s for p in lags if p.lag_s is not None), default=0.0),
                "members": _members(description),
                "partitions": [p.document() for p in lags],
            }
        )
        if not as_json:
            _show(documents[-1], lags)
    if as_json:
        print_json(documents)


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
    click.echo(
        f"{document['group']}: {document['state']}, {len(document['members'])} members, "
        f"{document['lag']:,} messages behind ({document['lag_s']:,.1f} s)"
    )
    rows: list[list[Cell]] = [
        [p.topic, p.partition, p.committed, p.latest, p.lag, p.lag_s, p.member] for p in lags
    ]
    columns = ["topic", "partition", "committed", "latest", "lag", "lag_s", "member"]
    print_table([_heading(column) for column in columns], rows)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@AS_JSON
@click.pass_obj
def delete(session: Session, /, names: tuple[str, ...], as_json: bool) -> None:
    """Delete groups with their progress; refused while consumers run."""
    futures = session.admin().delete_consumer_groups(list(names), request_timeout=session.timeout_s)
    for name in names:
        try:
            session.answer(futures[name], f"delete group {name!r}")
        except CommandFailed as failure:
            if failure.exit_code == NOT_FOUND:
                raise no_group(name) from None
            if failure.exit_code == CONFLICT:
                raise CommandFailed(
                    f"group {name!r} still has members, so it was not deleted",
                    failure.next_step,
                    CONFLICT,
                ) from None
            raise
    if as_json:
        print_json([{"group": name, "deleted": True} for name in names])
        return
    for name in names:
        click.echo(f"deleted {name}")
