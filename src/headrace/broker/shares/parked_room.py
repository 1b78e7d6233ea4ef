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
    """The parked keys of a group on a partition; the ids begin with the group's tenant."""

    def __init__(self, hosted: Hosted, group_id: str, keys: Collection[bytes]) -> None:
        self._prefix = f"{group_id}\0{hosted.data.name}\0"
        self._keys = keys

    def of(self, key: bytes) -> str:
        return self._prefix + key.hex()

    def __contains__(self, id_: object) -> bool:
        prefix, _, key = str(id_).rpartition("\0")
        return prefix == self._prefix[:-1] and bytes.fromhex(key) in self._keys

    def __iter__(self) -> Iterator[str]:
        return map(self.of, self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class ParkedRoom:
    """See the module."""

    def __init__(self, hosted: Callable[[], Iterable[Hosted]], now_ns: Callable[[], int]) -> None:
        """`hosted`: the share groups of all partitions of this broker."""
        self._hosted = hosted
        self._kept = Kept("parked keys", lambda: PARKED_MAX, self._all, now_ns)

    def _all(self) -> Iterator[_Ids]:
        for hosted in self._hosted():
            machine = hosted.shard.machine
            if isinstance(machine, ShareMachine):
                for group_id, group in list(machine.groups.items()):
                    yield _Ids(hosted, group_id, group.parked.keys())

    @asynccontextmanager
    async def taken(
        self, hosted: Hosted, group_id: str, keys: Iterable[bytes]
    ) -> AsyncIterator[None]:
        """While keys are being parked: those that are not have room. Raises PolicyViolation."""
        machine = hosted.shard.machine
        group = machine.groups.get(group_id) if isinstance(machine, ShareMachine) else None
        ids = _Ids(hosted, group_id, () if group is None else group.parked.keys())
        new, user = [one for one in map(ids.of, keys) if one not in ids], user_here()
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
