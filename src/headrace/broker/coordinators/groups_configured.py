"""The settings of groups as they are stored, in memory: what faces read and change.

Invariants: the metadata store holds the truth, one fact for each group that has overrides; a
change is a compare-and-set. Other brokers' changes arrive through a Follower.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.coordinators.group_config import check_group_config, share_config
from headrace.errors import GroupIdInvalid, MetadataUnavailable, VersionConflict
from headrace.metadata.facts import GroupFact, group_key, group_of_key
from headrace.metadata.store import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.coordination.shares.config import ShareConfig
    from headrace.metadata.store import Entry, MetadataStore

GROUP_ID_LENGTH_MAX = 255
"""Characters of a group that has settings: its id is part of a key."""
NO_OVERRIDES: Mapping[str, str] = {}


class ConfiguredGroups:
    """All groups that have settings of their own."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self._overrides: dict[str, Mapping[str, str]] = {}
        self._versions: dict[str, int] = {}
        self._configs: dict[str, ShareConfig] = {}
        self._default = share_config({})
        self._changing = asyncio.Lock()

    def apply(self, key: str, entry: Entry | None) -> None:
        """Take over what is stored under a group's key."""
        group_id = group_of_key(key)
        self._configs.pop(group_id, None)
        if entry is None:
            self._overrides.pop(group_id, None)
            self._versions.pop(group_id, None)
        else:
            self._overrides[group_id] = GroupFact.decode(entry.value).configs
            self._versions[group_id] = entry.version

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """What was set for the group."""
        return self._overrides.get(group_id, NO_OVERRIDES)

    def share_config(self, group_id: str) -> ShareConfig:
        """The group's settings, as its share partitions take them."""
        overrides = self._overrides.get(group_id)
        if overrides is None:
            return self._default
        config = self._configs.get(group_id)
        if config is None:
            config = self._configs[group_id] = share_config(overrides)
        return config

    async def change(
        self,
        group_id: str,
        change: Callable[[Mapping[str, str]], Mapping[str, str]],
        *,
        is_validated_only: bool = False,
    ) -> None:
        """Let `change` make the overrides. Raises ConfigInvalid, GroupIdInvalid,
        MetadataUnavailable."""
        if not 0 < len(group_id) <= GROUP_ID_LENGTH_MAX:
            raise GroupIdInvalid(
                f"a group with settings needs an id of 1 to {GROUP_ID_LENGTH_MAX} characters"
            )
        async with self._changing:
            configs = dict(change(self.overrides(group_id)))
            for name, value in configs.items():
                check_group_config(name, value)
            if is_validated_only:
                return
            key = group_key(group_id)
            version = self._versions.get(group_id, ABSENT)
            try:
                version = await self._metadata.put(key, GroupFact(configs).encode(), version)
            except VersionConflict as error:
                self.apply(key, await self._metadata.get(key))
                raise MetadataUnavailable(
                    f"the settings of group {group_id!r} were changed meanwhile: try again"
                ) from error
            self._overrides[group_id] = configs
            self._versions[group_id] = version
            self._configs.pop(group_id, None)
