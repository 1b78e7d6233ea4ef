"""Settings of brokers over HTTP: those of one, and those that are set for all.

Invariants: parses and encodes; the rules are in `broker/services/settings_of_brokers`. Values are
not repeated: what may be shown of them, `GET` shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.services.broker_settings import BROKER_ID_MAX
from headrace.http.operations import DRY_RUN, Call, Json, Operation, integer, text
from headrace.http.topics import change_of, config_changes

if TYPE_CHECKING:
    from headrace.broker.services.services import Services
    from headrace.http.schemas import Schema

_BROKER: Final[dict[str, Schema]] = {"broker": integer(0, BROKER_ID_MAX)}
_CHANGE: Final = change_of(text(300, 1, description="As `GET` names it, or of one listener."))


class BrokerConfigOperations:
    """The operations on settings of brokers."""

    def __init__(self, services: Services) -> None:
        self._settings = services.settings_of_brokers
        all_brokers, one = "/v1/cluster/config", "/v1/brokers/{broker}/config"
        self.operations = [
            Operation("GET", all_brokers, "getClusterConfig",
                      "Get the settings that can be set for all brokers.", self._get_all),
            Operation("PATCH", all_brokers, "changeClusterConfig",
                      "Set and reset settings of all brokers that have no value of their own, in"
                      " one change.",
                      self._change, {"dry_run": DRY_RUN}, _CHANGE),
            Operation("GET", one, "getBrokerConfig",
                      "Get all settings of a live broker, with where their values come from.",
                      self._get, _BROKER),
            Operation("PATCH", one, "changeBrokerConfig",
                      "Set and reset settings of one broker, in one change.",
                      self._change, {**_BROKER, "dry_run": DRY_RUN}, _CHANGE),
        ]  # fmt: skip

    async def _get_all(self, _call: Call) -> Json:
        return {"broker": None, "settings": self._settings.of_cluster()}

    async def _get(self, call: Call) -> Json:
        broker: int = call.path["broker"]
        return {"broker": broker, "settings": await self._settings.of_broker(broker)}

    async def _change(self, call: Call) -> Json:
        broker: int | None = call.path.get("broker")
        changes = config_changes(call.body)
        if broker is not None:
            call.path["broker"] = f"broker {broker}"  # for the audit log
        await self._settings.change(broker, changes, is_dry_run=call.is_dry_run)
        changed = sorted(one.name for one in changes)
        return {"broker": broker, "changed": changed, "dry_run": call.is_dry_run}
