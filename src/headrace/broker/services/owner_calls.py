"""Operations that any broker accepts and another one carries out: the owner of a partition, or each
broker for what it hosts.

Invariants: knows no protocol; what an operation does is registered by the service that offers it.
What it is asked and what it returns are JSON values, bytes, tuples, lists, records and errors. Here
it is called as it is; for another broker it is encoded, and checked where it arrives. Every
operation is idempotent, or safe to lose: a call is repeated while owners change.
"""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any, Final

from headrace import errors
from headrace.errors import (
    BrokerUnreachable,
    HeadraceError,
    PeerVersionDiffers,
    RequestInvalid,
)
from headrace.records.codec import Record
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from types import UnionType

    from headrace.broker.services.queue_owners import QueueOwners
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.facts import BrokerFact

    OfPartition = Callable[[Topic, int, Any], Awaitable[Any]]
    OfBroker = Callable[[Any], Awaitable[Any]]

_BYTES: Final = "b64"
_RECORD: Final = "record"
_ERROR: Final = "error"
"""The only key of an object that stands for such a value."""
_OF_0_2: Final = ": all brokers need one version"
"""How errors of version 0.2 end that say so. Do not change: on the wire."""


class OwnerCalls:
    """See the module."""

    def __init__(
        self, owners: QueueOwners, brokers: Callable[[], Sequence[BrokerFact]], broker_id: int
    ) -> None:
        self._owners = owners
        self._brokers = brokers
        self.broker_id = broker_id
        self._of_partition: dict[str, OfPartition] = {}
        self._of_broker: dict[str, OfBroker] = {}

    def offer(self, name: str, operation: OfPartition) -> None:
        """Offer an operation on one partition: `operation(topic, number, asked)`."""
        self._of_partition[name] = operation

    def offer_of_broker(self, name: str, operation: OfBroker) -> None:
        """Offer an operation on what each broker hosts: `operation(asked)`."""
        self._of_broker[name] = operation

    # --- asking ------------------------------------------------------------------------------

    async def ask_partitions(
        self,
        name: str,
        topic: Topic,
        asked: Any,
        numbers: Sequence[int] | None = None,
        time_s: float = 0,
    ) -> dict[int, Any]:
        """The result of each partition's owner, or its HeadraceError. `numbers` None: all.

        `time_s`: how long the operation may take of its own accord.
        """
        operation, body = self._of_partition[name], encoded(asked)
        answers = await self._owners.ask_all(
            topic,
            lambda number: operation(topic, number, asked),
            lambda peers, broker, part: peers.ask(broker, name, topic.id, part, body, time_s),
            numbers,
        )
        return {
            number: _decoded_or_error(answer) if isinstance(answer, bytes) else _translated(answer)
            for number, answer in answers.items()
        }

    async def ask_partition(
        self, name: str, topic: Topic, number: int, asked: Any, time_s: float = 0
    ) -> Any:
        """The result of one partition's owner. Raises HeadraceError, also TopicUnknown."""
        topic.check_partition(number)
        answer = (await self.ask_partitions(name, topic, asked, [number], time_s))[number]
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def ask_broker(self, name: str, broker_id: int, asked: Any, time_s: float = 0) -> Any:
        """The result of one broker. Raises HeadraceError."""
        if broker_id == self.broker_id:
            return await self._of_broker[name](asked)
        answer = await self._owners.call(
            broker_id,
            lambda peers, broker: peers.ask(broker, name, None, (), encoded(asked), time_s),
        )
        missing = BrokerUnreachable(f"broker {broker_id} omitted its result")
        return decoded(answer.get(-1, missing))

    async def ask_brokers(
        self,
        name: str,
        asked: Any,
        time_s: float = 0,
        limit_s: float | None = None,
        of: Sequence[int] | None = None,
    ) -> dict[int, Any]:
        """The result of each live broker, or its HeadraceError. `limit_s`: for how long it is
        awaited, if not as long as calls are in general. `of`: these brokers, not all."""
        brokers = [broker.id for broker in self._brokers()] if of is None else of
        return await self._ask_each(brokers, name, asked, time_s, limit_s)

    async def ask_next(self, name: str, asked: Any, limit_s: float) -> dict[int, Any]:
        """The same, of the live broker after this one, if there is another one."""
        others = sorted(broker.id for broker in self._brokers() if broker.id != self.broker_id)
        after = [one for one in others if one > self.broker_id]
        return await self._ask_each((after or others)[:1], name, asked, 0, limit_s)

    async def ask_others(self, name: str, asked: Any, time_s: float = 0) -> dict[int, Any]:
        """The same, of all live brokers but this one."""
        others = [broker.id for broker in self._brokers() if broker.id != self.broker_id]
        return await self._ask_each(others, name, asked, time_s)

    async def _ask_each(
        self,
        brokers: Sequence[int],
        name: str,
        asked: Any,
        time_s: float,
        limit_s: float | None = None,
    ) -> dict[int, Any]:
        found: dict[int, Any] = {}

        async def ask(broker_id: int) -> None:
            try:
                async with asyncio.timeout(limit_s):
                    found[broker_id] = await self.ask_broker(name, broker_id, asked, time_s)
            except TimeoutError:
                text = f"broker {broker_id} has not answered within {limit_s} s: try again"
                found[broker_id] = BrokerUnreachable(text)
            except HeadraceError as error:
                found[broker_id] = error

        await gather_charged(map(ask, brokers))
        return dict(sorted(found.items()))

    # --- being asked by another broker -------------------------------------------------------

    async def carry_out(self, name: str, topic: Topic | None, number: int, body: bytes) -> bytes:
        """The encoded result of an operation on a partition of this broker, or on what it hosts
        (`topic` None). Raises PeerVersionDiffers, RequestInvalid, and what the operation
        raises."""
        asked = decoded(body)
        if topic is None:
            of_broker = self._of_broker.get(name)
            if of_broker is not None:
                return encoded(await of_broker(asked))
        else:
            operation = self._of_partition.get(name)
            if operation is not None:
                return encoded(await operation(topic, number, asked))
        raise _differs(f"there is no operation {name[:50]!r}")


def _differs(what: str) -> PeerVersionDiffers:
    return PeerVersionDiffers(
        f"{what}: brokers have different versions; nothing was done there: try again when all of"
        " them are upgraded"
    )


def _translated(found: Any) -> Any:
    """The same; for a refusal by a broker of version 0.2, to which another version is a wrong
    request, one that says so."""
    if isinstance(found, RequestInvalid) and str(found).endswith(_OF_0_2):
        return _differs(str(found).removesuffix(_OF_0_2))
    return found


def encoded(value: Any) -> bytes:
    """A value for another broker."""
    return json.dumps(value, separators=(",", ":"), default=_as_text).encode()


def _as_text(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes | bytearray | memoryview):
        return {_BYTES: base64.b64encode(value).decode()}
    if isinstance(value, Record):
        one = value
        return {_RECORD: [one.offset, one.timestamp_ms, one.key, one.value, one.headers]}
    if isinstance(value, HeadraceError):
        return {_ERROR: [type(value).__name__, str(value)]}
    raise TypeError(f"{type(value).__name__} cannot be sent to another broker")


def decoded(data: bytes | HeadraceError) -> Any:
    """What `encoded` was given, with lists for tuples. Raises RequestInvalid, and an error that is
    given instead."""
    if isinstance(data, HeadraceError):
        raise _translated(data)
    try:
        return json.loads(data, object_hook=_from_text)
    except (ValueError, RecursionError, TypeError) as error:
        raise RequestInvalid("a broker's request or response is malformed") from error


def _decoded_or_error(data: bytes) -> Any:
    """A malformed answer costs the partitions of other owners nothing."""
    try:
        return decoded(data)
    except RequestInvalid as error:
        return error


def _from_text(found: dict[str, Any]) -> Any:
    if len(found) != 1:
        return found
    ((kind, value),) = found.items()
    if kind == _BYTES:
        return base64.b64decode(value)
    if kind == _RECORD:
        offset, timestamp_ms, key, content, headers = value
        return Record(offset, timestamp_ms, key, content, [(one, other) for one, other in headers])
    if kind == _ERROR:
        name, message = value
        return error_named(name)(message)
    return found


def error_named(name: str) -> type[HeadraceError]:
    """The class of another broker's error; unknown ones are retriable."""
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, HeadraceError):
        return kind
    return errors.Retriable


def checked(values: Any, *kinds: type | UnionType) -> Any:
    """The values, if they are of these types. Raises PeerVersionDiffers."""
    if (
        not isinstance(values, list | tuple)
        or len(values) != len(kinds)
        or not all(map(isinstance, values, kinds))
    ):
        raise _differs("a broker's request is malformed")
    return values


def split(
    answers: Mapping[int, Any],
) -> tuple[dict[int, Any], dict[int, HeadraceError]]:
    """(results, errors) of what was asked of partitions or brokers."""
    found = {n: one for n, one in answers.items() if not isinstance(one, HeadraceError)}
    failed = {n: one for n, one in answers.items() if isinstance(one, HeadraceError)}
    return found, failed
