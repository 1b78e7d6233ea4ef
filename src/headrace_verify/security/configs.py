"""Dangerous configuration: classes, files, addresses, extreme limits, unbounded lists.

Invariants: as in `names`.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headrace.records.codec import Record, encode_batch
from headrace_verify.security.asking import (
    ALTER_CONFIGS,
    BROKER,
    CANARY,
    INCREMENTAL_ALTER_CONFIGS,
    TOPIC,
    alter,
    ask,
    create,
    produce,
    read,
    settings_of,
)

if TYPE_CHECKING:
    from headrace_verify.wire.abuse import Abuse

SUBJECT = "configured"
_STAY = {
    "listeners",
    "advertised.listeners",
    "headrace.insecure",
    "ssl.client.auth",
    "listener.security.protocol.map",
    "headrace.http.security.protocol",
    "log.dirs",
    "node.id",
}
"""Broker settings that decide who can connect, with which rights, and which files it writes."""
APPEND, SUBTRACT = 2, 3
ENTRIES = 10_000
_NAMES_THAT_ACT = (
    "interceptor.classes",
    "metric.reporters",
    "sasl.jaas.config",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.keystore.location",
    "ssl.engine.factory.class",
    "remote.log.storage.manager.class.path",
    "log.dirs",
    "data.dir",
    "objects",
    "rocketmqHome",
    "config.providers",
    "__class__",
    "",
)
_NO_NUMBERS = (
    "1_000", " 5", "5 ", "0x10", "1e3", "\uff11\uff12", "\u0665", "1.0", "nan", "--1", "",
    "9" * 5000, "true", "null", "\x00",
)  # fmt: skip


def _values_that_act(port: int) -> tuple[str, ...]:
    return (
        f"http://127.0.0.1:{port}/token",
        "file:///etc/passwd",
        "com.sun.security.auth.module.JndiLoginModule required;",
        "${env:AWS_SECRET_ACCESS_KEY}",
        "${file:/etc/passwd:root}",
        "os.system",
        "../../etc",
        "$(touch headrace-escaped)",
    )


def settings_load_nothing_and_connect_nowhere(abuse: Abuse) -> None:
    create(abuse, SUBJECT)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        values = _values_that_act(listener.getsockname()[1])
        before = {name: one.value for name, one in settings_of(abuse, SUBJECT).items()}
        for value in values:
            for name in (*_NAMES_THAT_ACT, *sorted(before)):
                code = alter(abuse, name, value, SUBJECT)
                abuse.expect(code not in {0, None}, f"{name}={value!r}: code {code}")
        for name in _NAMES_THAT_ACT:
            code = create(abuse, "never", {name: values[0]})
            abuse.expect(code not in {0, None}, f"a topic with {name}: code {code}")
        after = {name: one.value for name, one in settings_of(abuse, SUBJECT).items()}
        abuse.expect(bool(before) and after == before, "a rejected setting has changed something")
        listener.settimeout(0.3)
        try:
            listener.accept()[0].close()
            abuse.expect(False, "the broker has connected to an address in a setting")
        except TimeoutError:
            abuse.checked += 1


def a_brokers_identity_and_exposure_cannot_be_changed_by_clients(abuse: Abuse) -> None:
    shown = settings_of(abuse, "0", BROKER)
    abuse.expect(bool(shown), "a broker's settings are not returned")
    fixed = [name for name, one in shown.items() if one.read_only]
    abuse.expect(len(fixed) > len(_STAY) and set(fixed) >= _STAY, f"only {fixed} cannot be changed")
    for name in (*_NAMES_THAT_ACT, *sorted(fixed)):
        for resource in ("0", "", "1"):
            code = alter(abuse, name, "1", resource, BROKER)
            abuse.expect(code not in {0, None}, f"{name} of broker {resource!r}: code {code}")
    for name in sorted(
        name for name in shown if name not in fixed and _is_whole(shown[name].value)
    ):
        for text in (*_NO_NUMBERS, "-9", "x" * 30_000):
            code = alter(abuse, name, text, "0", BROKER)
            abuse.expect(code not in {0, None}, f"{name}={text[:20]!r}: code {code}")
    for kind in (-128, 0, 1, 3, 8, 16, 32, 127):
        code = alter(abuse, "segment.ms", "1", SUBJECT, kind)
        abuse.expect(code not in {0, None}, f"resource type {kind}: code {code}")
    revealed = [one.name for one in shown.values() if CANARY in str(one.value)]
    abuse.expect(not revealed, f"settings tell a secret: {revealed}")
    paths = [
        one.name
        for one in shown.values()
        if str(one.value).startswith(("/", "file:")) and one.name != "headrace.zookeeper.root"
    ]
    abuse.expect(not paths, f"settings tell a path of the machine: {paths}")
    again = {name: one.value for name, one in settings_of(abuse, "0", BROKER).items()}
    same = again == {name: one.value for name, one in shown.items()}
    abuse.expect(same, "a broker's settings have changed")


def numbers_at_their_ends_are_refused_or_obeyed(abuse: Abuse) -> None:
    create(abuse, SUBJECT)
    numbers = [one.name for one in settings_of(abuse, SUBJECT).values() if _is_whole(one.value)]
    abuse.expect(len(numbers) > 10, f"the only numbers among the settings are {numbers}")
    ends = [0, 1, -1, -2, -3, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**30]
    for name in numbers:
        for end in ends:
            code = alter(abuse, name, str(end), SUBJECT)
            abuse.expect(code is not None, f"{name}={end} gets no response")
            if code == 0:
                written = produce(abuse, SUBJECT, encode_batch([Record(0, 1, None, b"x")]))
                abuse.expect(written is not None, f"with {name}={end} a write gets no response")
                found = read(abuse, SUBJECT)
                abuse.expect(found is not None, f"with {name}={end} a fetch gets no response")
        for text in _NO_NUMBERS:
            code = alter(abuse, name, text, SUBJECT)
            abuse.expect(code not in {0, None}, f"{name}={text[:20]!r}: code {code}")
        abuse.expect(alter(abuse, name, None, SUBJECT, operation=1) == 0, f"{name} stays as it is")


def _is_whole(text: str | None) -> bool:
    return text is not None and text.removeprefix("-").isdigit()


def lists_and_requests_without_end_are_bounded(abuse: Abuse) -> None:
    create(abuse, SUBJECT)
    for number in range(30):
        words = ",".join(["compact", "delete"] * (1 << min(number, 11)))
        alter(abuse, "cleanup.policy", words, SUBJECT, operation=APPEND if number % 2 else 0)
        alter(abuse, "cleanup.policy", "," * 1000, SUBJECT, operation=APPEND)
    kept = settings_of(abuse, SUBJECT).get("cleanup.policy")
    size = len(kept.value) if kept is not None and kept.value else 0
    abuse.expect(0 < size < 100, f"a list of settings has grown to {size} characters")
    huge = "x" * 30_000
    for name, value in ((huge, "1"), ("retention.ms", huge), (huge, huge)):
        code = alter(abuse, name, value, SUBJECT)
        abuse.expect(code not in {0, None}, f"{len(name)}, {len(value)} characters: code {code}")
    one = {"config_operation": 0, "value": "1"}
    many = [{"name": f"n{number}"} | one for number in range(ENTRIES)]
    resource = {"resource_type": TOPIC, "resource_name": SUBJECT, "configs": many}
    answer = ask(abuse, INCREMENTAL_ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
    is_refused = answer is not None and int(answer.responses[0].error_code) != 0
    abuse.expect(is_refused, f"{ENTRIES} unknown settings are accepted")
    same = [{"name": "retention.ms", "value": str(number)} for number in range(ENTRIES)]
    resource = {"resource_type": TOPIC, "resource_name": SUBJECT, "configs": same}
    answer = ask(abuse, ALTER_CONFIGS, 0, resources=[resource], validate_only=False)
    abuse.expect(answer is not None, "one setting many times gets no response")
    alter(abuse, "cleanup.policy", None, SUBJECT, operation=1)
    alter(abuse, "retention.ms", None, SUBJECT, operation=1)
    code = alter(abuse, "segment.ms", "1", SUBJECT, operation=SUBTRACT)
    abuse.expect(code not in {0, None}, f"a number is accepted as a list: code {code}")
