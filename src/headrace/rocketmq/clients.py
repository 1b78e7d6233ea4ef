"""The clients that are connected: their settings, what they hold, and transactions that hang.

Invariants: bounded by clients and by what each holds. A client lives as long as it is heard of
(heartbeats come every 10 s); when it has gone, nothing is renewed for it, so that what it held is
delivered again. Which client is asked about a transaction is of no consequence: any producer of the
topic may answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.security.tenant_shares import SharedPlaces
from headrace.broker.services.queue_receipts import ReceiptSettlements
from headrace.broker.services.timer_receipts import HalfReceipt
from headrace.broker.topics.topic_config import MIXED
from headrace.coordination.shares.commands import RENEW
from headrace.errors import HeadraceError, Rejected, Retriable
from headrace.records.codec import Record
from headrace.rocketmq import wire
from headrace.rocketmq.caller import may
from headrace.rocketmq.codes import TOO_MANY_REQUESTS, Refused
from headrace.rocketmq.handles import Transaction, member_id
from headrace.rocketmq.names import resource_of
from headrace.rocketmq.shown_messages import message
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.services import Services
    from headrace.broker.timers.half_messages import HalfShown
    from headrace.grpc.service import Call
    from headrace.rocketmq.caller import Caller
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

CLIENTS_MAX: Final = 10_000
"""Of all users; one leaves room for others (`tenant_shares`)."""
CONNECTION_CLIENTS_MAX: Final = 100
"""Client ids of one connection: official clients have one each, so that one peer cannot use up all
of them."""
IDLE_S: Final = 120.0
"""A client that was not heard of for so long has gone, as in RocketMQ."""
POLL_MS_DEFAULT: Final = 20_000
LOCK_MS: Final = 60_000
"""Of messages that are renewed for a push consumer: its process may have died."""
RENEW_S: Final = 20.0
RENEWALS_AT_ONCE: Final = 32
"""Clients; the others wait, so that one whose brokers do not answer holds up few."""
HELD_MAX: Final = 20_000
"""Messages of one client that are renewed; push consumers hold 1,024 by default."""
HELD_S_MAX: Final = 3 * 3600.0
"""For how long one message is renewed, as in RocketMQ."""
PUBLISHED_MAX: Final = 1_000
"""Topics of one producer."""
HALF_TYPES: Final = frozenset({"transaction", MIXED})
"""Message types of topics that have half messages."""
CHECKS_AT_ONCE: Final = 32
CHECK_WAIT_S: Final = 30.0
RETRY_S: Final = 1.0

Held = tuple[str, str, float]
"""(topic, group, until when it is renewed) of a receipt."""


class TooManyClients(Retriable):
    """There is no place for another client."""


class Client:
    """One client, as it last described itself."""

    __slots__ = (
        "give_back",
        "held",
        "id",
        "is_lite",
        "is_renewed",
        "key",
        "lite",
        "poll_ms",
        "published",
        "renewing",
        "seen_s",
        "session",
        "stay",
        "telemetry",
    )

    def __init__(self, client_id: str, session: ClientSession, now_s: float) -> None:
        self.id = client_id
        self.session = session
        """The connection by which it was heard of first."""
        self.seen_s = now_s
        self.give_back: Callable[[], None]
        """Ends what it takes of the places for clients."""
        self.telemetry: Call | None = None
        """Where commands are sent."""
        self.published: dict[str, Any] = {}
        """The topics it may be asked about, with the Resource by which it names each."""
        self.held: dict[str, Held] = {}
        """By receipt: what is renewed for it."""
        self.renewing: Collection[str] = ()
        """Receipts that are renewed at the moment."""
        self.is_lite = False
        """Whether it says that it consumes lite topics."""
        self.poll_ms = POLL_MS_DEFAULT
        """How long a receive waits that does not say how long: Go's simple consumer says it in its
        settings alone."""
        self.key = ("", client_id)
        """Its principal and id."""
        self.lite: dict[tuple[str, str], frozenset[str]] = {}
        """By topic and group: the lite topics that it subscribes to."""
        self.stay = ""
        """Names its stay at this broker, once it has subscribed to lite topics."""
        self.is_renewed = asyncio.Event()
        """Set when those are."""


class Clients:
    """See the module."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self._services = services
        self._tasks = tasks
        self._places = SharedPlaces("clients of RocketMQ", CLIENTS_MAX, TooManyClients)
        self._known: dict[tuple[str, str], Client] = {}
        """By principal and client id, so that nobody ends the clients of another one."""
        self._of_sessions: Counter[ClientSession] = Counter()
        self._checking: dict[str, asyncio.Task[None]] = {}
        self._turn = 0
        self._on_left: list[Callable[[Client], None]] = []

    def __iter__(self) -> Iterator[Client]:
        """All clients."""
        return iter(list(self._known.values()))

    def on_left(self, notify: Callable[[Client], None]) -> None:
        """Notify of each client that ends."""
        self._on_left.append(notify)

    def start(self) -> None:
        """Renew, and forget clients, until the tasks are closed."""
        self._tasks.spawn(self._keep(), "rocketmq clients")

    # --- clients that come and go ------------------------------------------------------------

    def seen(self, caller: Caller) -> Client:
        """The client of a call. Raises Refused if there are too many."""
        now_s = asyncio.get_running_loop().time()
        client = self._known.get(caller.key)
        if client is None:
            if self._of_sessions[caller.session] >= CONNECTION_CLIENTS_MAX:
                raise Refused(
                    TOO_MANY_REQUESTS,
                    f"{CONNECTION_CLIENTS_MAX} clients use this connection: use another one",
                )
            client = Client(caller.client_id, caller.session, now_s)
            try:
                client.give_back = self._places.take(caller.holder)
            except TooManyClients as error:
                raise Refused(TOO_MANY_REQUESTS, str(error)) from error
            client.key = caller.key
            self._known[caller.key] = client
            self._of_sessions[caller.session] += 1
        client.seen_s = now_s
        return client

    def leave(self, key: tuple[str, str]) -> None:
        """The client ends."""
        client = self._known.pop(key, None)
        if client is None:
            return
        self._of_sessions[client.session] -= 1
        if not self._of_sessions[client.session]:
            del self._of_sessions[client.session]
        client.give_back()
        client.held.clear()
        for notify in self._on_left:
            notify(client)
        if client.telemetry is not None:
            client.telemetry.finish()

    def opened(self, client: Client, call: Call) -> None:
        """The client's commands go to this stream from now on."""
        client.telemetry = call

    def closed(self, client: Client, call: Call) -> None:
        """This stream has ended."""
        if client.telemetry is call:
            client.telemetry = None

    def publishes(self, caller: Caller, client: Client, published: Iterable[Any]) -> None:
        """The client is a producer of these topics, and can be asked about its transactions."""
        named: dict[str, Any] = {}
        for resource in islice(published, PUBLISHED_MAX):
            try:
                name = caller.topic_name(resource)
            except HeadraceError:
                continue
            topics = self._services.topics
            topic = topics.find(name)
            # A name alone must not cost anything.
            has_halves = topic is not None and topics.message_type(topic) in HALF_TYPES
            if has_halves and caller.may(Operation.WRITE, ResourceType.TOPIC, name):
                named[name] = resource_of(resource)
        client.published = named
        for name in named:
            if name not in self._checking:
                checking = self._check(name)
                self._checking[name] = self._tasks.start(checking, f"check-backs of {name}")

    # --- what push consumers hold ------------------------------------------------------------

    def hold(self, client: Client, topic: str, group_id: str, receipts: Iterable[str]) -> None:
        """Renew these messages until they are settled, or the client has gone."""
        until_s = asyncio.get_running_loop().time() + HELD_S_MAX
        for receipt in receipts:
            if len(client.held) < HELD_MAX:
                client.held[receipt] = topic, group_id, until_s

    @staticmethod
    def release(client: Client, receipts: Iterable[str]) -> None:
        """These messages are not renewed any more."""
        for receipt in receipts:
            client.held.pop(receipt, None)

    async def drop(self, key: tuple[str, str], receipts: Sequence[str]) -> None:
        """These messages are not renewed any more, nor while this returns: a renewal that arrives
        after a change of their invisible durations would undo it."""
        while not self.drop_at_once(key, receipts):
            await self._known[key].is_renewed.wait()

    def drop_at_once(self, key: tuple[str, str], receipts: Sequence[str]) -> bool:
        """The same, except that one of them may be renewed just now: returns whether none is."""
        client = self._known.get(key)
        if client is None:
            return True
        self.release(client, receipts)
        return not any(receipt in client.renewing for receipt in receipts)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(RENEW_S)
            now_s = loop.time()
            for key, client in list(self._known.items()):
                is_valid = self._services.authentication.is_valid(client.session)
                if now_s - client.seen_s > IDLE_S or not is_valid:
                    client.lite.clear()  # it may be at another broker now: the owners will know
                    self.leave(key)
            holding = iter([client for client in self._known.values() if client.held])
            renewals = [self._renew_next(holding, now_s) for _ in range(RENEWALS_AT_ONCE)]
            await gather_charged(renewals)

    async def _renew_next(self, clients: Iterator[Client], now_s: float) -> None:
        for client in clients:
            try:
                await self._renew(client, now_s)
            except Exception:
                log.exception("internal error: messages of %s are not renewed", client.id[:100])

    async def _renew(self, client: Client, now_s: float) -> None:
        parts: dict[tuple[str, str], list[str]] = {}
        for receipt, (name, group_id, until_s) in list(client.held.items()):
            if now_s >= until_s:
                del client.held[receipt]
            else:
                parts.setdefault((name, group_id), []).append(receipt)
        for (name, group_id), receipts in parts.items():
            asked = ReceiptSettlements()
            for receipt in receipts:
                if receipt in client.held:  # still
                    asked.add(receipt, RENEW, LOCK_MS)
            asked.finish()
            client.renewing = frozenset(asked.receipts)
            client.is_renewed.clear()
            try:
                topic = self._services.topics.readable.get(name)
                queues = self._services.queues
                errors = await queues.settle(topic, group_id, asked, member_id)
            except HeadraceError as error:
                log.info("messages of %s cannot be renewed: %s", client.id[:100], error)
                continue
            finally:
                client.renewing = ()
                client.is_renewed.set()
            for receipt, refusal in zip(asked.receipts, errors, strict=True):
                if isinstance(refusal, Rejected):
                    client.held.pop(receipt, None)

    # --- check-backs -------------------------------------------------------------------------

    async def _check(self, name: str) -> None:
        """Ask the topic's producers about half messages as long as there are any producers."""
        try:
            while await self._wait_ready(name):
                try:
                    found, _failed = await self._services.timers.poll_checks(
                        name, CHECKS_AT_ONCE, CHECK_WAIT_S
                    )
                    # Not thrown away if the producers have lost their streams meanwhile.
                    await self._wait_ready(name)
                    for one in found:
                        # Of another protocol, a producer group may be the name of any topic.
                        if one.topic == name:
                            self._ask(name, one)
                except HeadraceError as error:
                    log.info("check-backs of %s: %s", name, error)
                    await asyncio.sleep(RETRY_S)
        finally:
            del self._checking[name]

    def _ready(self, name: str) -> list[Client]:
        """The topic's producers that can be asked now."""
        return [
            client
            for client in self._known.values()
            if client.telemetry is not None
            and name in client.published
            and self._may_still_send(client, name)
        ]

    def _may_still_send(self, client: Client, name: str) -> bool:
        """Whether a producer may see the topic's half messages: what it could when it came may
        have been withdrawn."""
        services, session = self._services, client.session
        return services.authentication.is_valid(session) and may(
            services, session, Operation.WRITE, ResourceType.TOPIC, name
        )

    async def _wait_ready(self, name: str) -> bool:
        """Wait until a producer of the topic can be asked; False: the topic has none."""
        while any(name in client.published for client in self._known.values()):
            if self._ready(name):
                return True
            await asyncio.sleep(RETRY_S)
        return False

    def _ask(self, name: str, shown: HalfShown) -> None:
        """Ask one producer; if there is none now, the next check-back asks again."""
        ready = self._ready(name)
        topic = self._services.topics.find(shown.topic)
        if not ready or topic is None:
            return
        self._turn += 1
        client = ready[self._turn % len(ready)]
        command = wire.TelemetryCommand()
        asked = command.recover_orphaned_transaction_command
        receipt = HalfReceipt(shown.partition, shown.half.number)
        asked.transaction_id = Transaction(receipt, topic.id).text
        record = Record(0, shown.half.timestamp_ms, *shown.body)
        named = client.published[name].SerializeToString()
        asked.message.MergeFromString(message(record, named, topic.id, shown.partition))
        asked.message.system_properties.message_type = wire.TRANSACTION
        assert client.telemetry is not None
        client.telemetry.send(command.SerializeToString())
