"""What lite consumers subscribe to: SyncLiteSubscription, and the command that ends a subscription.

Invariants: a client names its lite topics one by one and repeats all of them every 30 s; this
broker remembers them only to count them, and to end them with the client. A lite consumer has a
group of its own kind, on topics of type LITE.
"""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.tenant_shares import (
    NO_HOLDER,
    PLACES_PARTS,
    Held,
    TenantShares,
)
from headrace.broker.topics.topic_config import LITE
from headrace.coordination.shares.lite_commands import ACTIONS, ADD, LEAVE, REMOVE, SET
from headrace.errors import HeadraceError, QuotaExceeded
from headrace.rocketmq import codes, wire
from headrace.rocketmq.codes import Refused
from headrace.rocketmq.names import lite_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.security.tenant_shares import Holder
    from headrace.broker.services.lite_subscriptions import Displaced
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.rocketmq.caller import Caller
    from headrace.rocketmq.clients import Client, Clients
    from headrace.rocketmq.groups import RocketGroups
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

SUBSCRIPTIONS_MAX: Final = 2_000
"""Of one client, as in RocketMQ."""
ALL_SUBSCRIPTIONS_MAX: Final = 500_000
"""Of a broker's clients, some 330 bytes each at the owner of the partition and where it is
remembered for the next one; RocketMQ has 100,000. A user leaves room for others
(`tenant_shares`)."""
NONE: Final = frozenset[str]()
LAST: Final = 0
"""OffsetOption's policy: where the group was."""


def lite_client(key: tuple[str, str]) -> str:
    """The name by which owners know a client: of one principal, no other one's."""
    return "rocketmq:" + sha256("\n".join(key).encode()).hexdigest()[:32]


class LiteConsumers:
    """See the module."""

    def __init__(
        self, services: Services, groups: RocketGroups, clients: Clients, tasks: Tasks
    ) -> None:
        self._services = services
        self._groups = groups
        self._clients = clients
        self._tasks = tasks
        self._by_name: dict[str, Client] = {}
        """The clients that have subscribed, by their names for owners."""
        self._held = Held()
        self._of_clients: dict[Client, tuple[Holder, int]] = {}
        """For whom each client's subscriptions count, and how many."""
        clients.on_left(self._left)
        services.lite_subscriptions.on_displaced(self._displaced)

    async def sync(self, caller: Caller, request: Any, response: Any) -> None:
        """Change what a client subscribes to."""
        topic = await caller.topic(request.topic)
        self.check_topic(topic)
        action = request.action
        if action not in ACTIONS:
            raise Refused(codes.BAD_REQUEST, f"there is no action {action}")
        names = list(dict.fromkeys(request.lite_topic_set))
        for name in names[: SUBSCRIPTIONS_MAX + 1]:
            lite_name(name)
        option = request.offset_option
        which = option.WhichOneof("offset_type")
        if which is not None and (which != "policy" or option.policy != LAST):
            raise Refused(
                codes.UNSUPPORTED,
                "a group goes on where it was in a lite topic, and begins with its first message:"
                " another offset cannot be chosen here",
            )
        group_id = caller.group_id(request.group)
        await self._groups.ensure(group_id, is_lite=True)
        client = self._clients.seen(caller)
        client.is_lite = True  # its settings may not have come yet
        self.check_group(client, group_id)
        where, named, name = (topic.name, group_id), frozenset(names), lite_client(caller.key)
        new = self._add(client, where, action, named, caller.holder)
        self._by_name[name] = client
        client.stay = client.stay or self._services.queues.new_member()
        # What the client itself ends is ended, whichever broker it subscribed at.
        stay = "" if action == LEAVE else client.stay
        try:
            await self._services.lite_subscriptions.sync(topic, group_id, name, action, names, stay)
        except QuotaExceeded as error:
            # Owners undo it, too.
            self._store(client, where, client.lite.get(where, NONE) - new)
            raise Refused(codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, str(error)) from error
        self._remove(client, where, action, named)

    def check_topic(self, topic: Topic) -> None:
        """Raises Refused unless the topic is one of lite topics."""
        if topic.home is not topic or self._services.topics.message_type(topic) != LITE:
            raise Refused(
                codes.ILLEGAL_TOPIC,
                f"{topic.name} has no lite topics: use a topic with headrace.message.type=lite",
            )

    def check_group(self, client: Client, group_id: str) -> None:
        """Raises Refused if the client and its group are not of the same kind."""
        is_lite = self._groups.config(group_id).is_lite
        if is_lite != client.is_lite:
            kind = "lite topics, with lite consumers" if is_lite else "whole topics"
            raise Refused(
                codes.ILLEGAL_CONSUMER_GROUP,
                f"this group consumes {kind}: use another group for this consumer",
            )

    # --- subscriptions that end --------------------------------------------------------------

    def _left(self, client: Client) -> None:
        self._by_name.pop(lite_client(client.key), None)
        holder, count = self._of_clients.pop(client, (NO_HOLDER, 0))
        self._held.add(holder, -count)
        for name, group_id in client.lite:
            self._tasks.spawn(self._leave(client, name, group_id), "lite consumer left")

    async def _leave(self, client: Client, name: str, group_id: str) -> None:
        """The client may return before this is done: what it then subscribes to remains."""
        topic = self._services.topics.find(name)
        if topic is None:
            return
        try:
            await self._services.lite_subscriptions.sync(
                topic, group_id, lite_client(client.key), LEAVE, (), client.stay
            )
        except HeadraceError as error:  # they end by themselves, as they are not repeated
            log.info("subscriptions of a client to lite topics of %s remain: %s", name, error)

    def _displaced(self, displaced: Sequence[Displaced]) -> None:
        lost: dict[tuple[str, str, str], list[str]] = {}
        for topic, group_id, name, lite_topic in displaced:
            if name in self._by_name:
                lost.setdefault((topic, group_id, name), []).append(lite_topic)
        for (topic, group_id, name), lite_topics in lost.items():
            client, where = self._by_name[name], (topic, group_id)
            before = client.lite.get(where, NONE)
            self._store(client, where, before.difference(lite_topics))
            if client.telemetry is None:
                continue
            for lite_topic in before.intersection(lite_topics):
                command = wire.TelemetryCommand()
                command.notify_unsubscribe_lite_command.lite_topic = lite_topic
                client.telemetry.send(command.SerializeToString())

    # --- what counts --------------------------------------------------------------------------

    def _add(
        self,
        client: Client,
        where: tuple[str, str],
        action: int,
        names: frozenset[str],
        holder: Holder,
    ) -> frozenset[str]:
        """Count what a request adds, before the owners do it, as others of the client may come
        meanwhile; returns it. Where it fails they may have done a part of it: that counts until the
        client repeats its lite topics. Raises Refused."""
        if action not in {ADD, SET}:
            return NONE
        before = client.lite.get(where, NONE)
        after = before | names if action == ADD else names
        count = sum(map(len, client.lite.values())) - len(before) + len(after)
        # A client may replace all that it has. What owners did not confirm counts only here, so
        # that one whose requests fail gets back to its limit, and does not grow beyond twice that.
        held = count - len(after) + len(before | names)
        if count > SUBSCRIPTIONS_MAX or held > 2 * SUBSCRIPTIONS_MAX:
            raise _too_many(max(count, held))
        new = names - before
        most = TenantShares("subscriptions", ALL_SUBSCRIPTIONS_MAX, "this broker", PLACES_PARTS)
        if new and (excess := most.excess_of(holder, self._held, len(new))):
            raise Refused(
                codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"{excess}: nothing was changed; try again when clients have unsubscribed",
            )
        self._of_clients.setdefault(client, (holder, 0))
        self._store(client, where, before | names)
        return new

    def _remove(
        self, client: Client, where: tuple[str, str], action: int, names: frozenset[str]
    ) -> None:
        """No longer count what the owners have removed."""
        now = client.lite.get(where, NONE)
        left = {ADD: now, REMOVE: now - names, SET: now & names, LEAVE: NONE}[action]
        self._store(client, where, left)

    def _store(self, client: Client, where: tuple[str, str], names: frozenset[str]) -> None:
        if client in self._of_clients:  # otherwise it has left
            holder, count = self._of_clients[client]
            more = len(names) - len(client.lite.get(where, NONE))
            self._of_clients[client] = holder, count + more
            self._held.add(holder, more)
        if names:
            client.lite[where] = names
        else:
            client.lite.pop(where, None)


def _too_many(count: int) -> Refused:
    return Refused(
        codes.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
        f"the client would subscribe to {count} lite topics: it can have {SUBSCRIPTIONS_MAX}; use"
        " another client for the others",
    )
