"""`headrace cluster repair`: shows which lost facts it can rebuild, then rebuilds them.

Invariants: asks and prints; `headrace.broker.housekeeping.chain_repair` rebuilds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.cluster_admin import SHOWN_MAX, ask, where
from headrace.cli.failures import FAILED, CommandFailed
from headrace.cli.inert import refuse_inert
from headrace.cli.output import AS_JSON, print_json, say, size_text, tell
from headrace.runtime.log_text import one_line

if TYPE_CHECKING:
    from headrace.administration.cluster_settings import ClusterSettings
    from headrace.broker.housekeeping.chain_repair import Repairs


@click.command()
@click.option("--yes", is_flag=True, help="Make the changes; without it nothing is changed.")
@click.option(
    "--accept-loss",
    is_flag=True,
    help="If ledgers are missing, rebuild the chain from the last gap on.",
)
@AS_JSON
@where
def repair(settings: ClusterSettings, yes: bool, accept_loss: bool, as_json: bool) -> None:
    """Rebuild lost ledger chains and lost topics from the labels of ledgers.

    Shows the changes; --yes makes them. This closes ledgers that are still open. Brokers need not
    be stopped: they serve a partition as soon as its chain is restored.
    """
    if not yes:
        refuse_inert("without --yes", "accept_loss")
    found = ask(settings, lambda admin: admin.repair(is_plan=not yes, accept_loss=accept_loss))
    problems = [
        *(topic.problem for topic in found.topics if topic.problem),
        *(chain.problem for chain in found.chains if chain.problem),
        *(["ledgers ahead"] if found.ids_ahead and not (yes and accept_loss) else []),
    ]
    if as_json:
        print_json(
            {
                "is_done": yes,
                "ledgers_ahead": list(found.ids_ahead.ledgers) if found.ids_ahead else [],
                "last_id_ahead": found.ids_ahead.last if found.ids_ahead else None,
                "topics": [
                    {
                        "name": topic.fact.name,
                        "id": topic.fact.id.hex,
                        "partitions": topic.fact.partition_count,
                        "problem": topic.problem,
                    }
                    for topic in found.topics
                ],
                "chains": [
                    {
                        "partition": chain.name,
                        "ledgers": [link.ledger for link in chain.fact.ledgers],
                        "open_ledgers": chain.open_ledgers,
                        "log_start_offset": chain.fact.log_start_offset,
                        "end_offset": chain.end_offset,
                        "leader_epoch": chain.fact.leader_epoch,
                        "lost_records": chain.lost_records,
                        "lost_ledgers": [link.ledger for link in chain.lost_ledgers],
                        "problem": chain.problem,
                    }
                    for chain in found.chains
                ],
            }
        )
    else:
        _show_repairs(found, is_done=yes)
    if problems:
        raise CommandFailed(f"{len(problems)} cannot be repaired", exit_code=FAILED)


def _show_repairs(found: Repairs, *, is_done: bool) -> None:
    would = "" if is_done else "would be "
    if found.ids_ahead:
        tell(
            f"{found.ids_ahead}: it is older than they are; restore a newer backup, or give them"
            " up with --accept-loss --yes: their ids are skipped then, and what was written to"
            " them is lost"
        )
    for topic in found.topics:
        name = one_line(topic.fact.name) or topic.fact.id.hex
        tell(
            f"topic {name}: {topic.problem}"
            if topic.problem
            else f"topic {name}: {would}restored with {topic.fact.partition_count} partitions and"
            " default settings"
        )
    for chain in found.chains:
        if chain.problem:
            tell(f"{chain.name}: {chain.problem}")
            continue
        for link in chain.lost_ledgers:
            tell(
                f"{chain.name}: ledger {link.ledger} does not exist; {would}given up: offsets"
                f" {link.base_offset} to {(link.end_offset or 0) - 1}"
            )
        if chain.lost_ledgers:
            continue
        more = f", and {len(chain.open_ledgers)} open ones" if chain.open_ledgers else ""
        tell(
            f"{chain.name}: {would}rebuilt of {len(chain.fact.ledgers)} ledgers{more}, offsets"
            f" {chain.fact.log_start_offset} to {chain.end_offset}{' or more' if more else ''}"
        )
        for link in chain.fact.ledgers[:SHOWN_MAX]:
            tell(
                f"  ledger {link.ledger}: epoch {link.leader_epoch}, offsets {link.base_offset} to"
                f" {link.end_offset}, {size_text(link.size_bytes or 0)}"
            )
        for ledger in chain.open_ledgers:
            tell(f"  ledger {ledger}: open; --yes closes it and determines its end")
        if chain.lost_records:
            tell(f"  {chain.lost_records} records between its ledgers are permanently lost")
    for key in found.removed:
        tell(f"{key}: cannot be decoded; {would}deleted, and is written again by a broker")
    if not any((found.topics, found.chains, found.removed, found.ids_ahead)):
        say("nothing to repair")
    elif not is_done:
        say("nothing was changed; repeat with --yes to make the changes")
