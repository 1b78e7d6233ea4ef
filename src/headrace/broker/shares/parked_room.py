"""How many parked keys of all groups a broker keeps in memory, and shares of users.

Invariants: as `kept_state`. How many a group parks on a partition is for the machine to decide
(`coordination/shares/parking`).
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

from headrace.broker.coordinators.kept_state import Kept
from headrace.broker.security.tenant_shares import user_here
from headrace.coordination.shares.share_machine import ShareMachine
from headrace.errors import PolicyViolation

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from headrace.broker.shares.hosted_shares import Hosted

PARKED_MAX: Final = 250_000
"""One takes about 500 bytes; a long key counts for several. A key is parked on each partition of
its topic."""


class _Ids(Collection[str]):
    """The parked keys on a partition; an id begins with the group, and so with its tenant."""

    def __init__(self, hosted: Hosted) -> None:
        machine = hosted.shard.machine
        self._groups = machine.groups if isinstance(machine, ShareMachine) else {}
        self._partition = hosted.data.name

    def of(self, group_id: str, key: bytes) -> str:
        return f"{group_id}\0{self._partition}\0{key.hex()}"

    def __contains__(self, id_: object) -> bool:
        group_id, partition, key = str(id_).rsplit("\0", 2)
        group = self._groups.get(group_id) if partition == self._partition else None
        return group is not None and bytes.fromhex(key) in group.parked

    def __iter__(self) -> Iterator[str]:
        for group_id, group in self._groups.items():
            for key in group.parked:
                yield self.of(group_id, key)

    def __len__(self) -> int:
        return sum(len(group.parked) for group in self._groups.values())


class ParkedRoom:
    """See the module."""

    def __init__(self, hosted: Callable[[], Iterable[Hosted]], now_ns: Callable[[], int]) -> None:
        """`hosted`: the share groups of all partitions of this broker."""
        self._kept = Kept("parked keys", lambda: PARKED_MAX, lambda: map(_Ids, hosted()), now_ns)

    @asynccontextmanager
    async def taken(
        self, hosted: Hosted, group_id: str, keys: Iterable[bytes]
    ) -> AsyncIterator[None]:
        """While keys are being parked: those that are not have room. Raises PolicyViolation."""
        ids, user = _Ids(hosted), user_here()
        new = [one for key in keys if (one := ids.of(group_id, key)) not in ids]
        with ExitStack() as making:
            try:
                for one in new:
                    making.enter_context(self._kept.making(one))
                    if excess := await self._kept.take(one, user):
                        raise PolicyViolation(f"{excess}: release some keys")
                yield
            except BaseException:
                for one in new:
                    self._kept.forget(one)
                raise
