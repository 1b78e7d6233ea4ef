"""Secrets from the environment, addresses and files: nothing may reveal them afterwards.

Invariants: each secret is a canary, a word that occurs nowhere else. The log level is debug.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from headrace_verify.real_broker import die_with_us
from headrace_verify.security.asking import BROKER, CANARY, settings_of
from headrace_verify.security.web import get

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.wire.abuse import Abuse

CANARIES = tuple(
    (name, f"{CANARY}-{number}")
    for number, name in enumerate(
        (
            "AWS_SECRET_ACCESS_KEY",
            "AWS_SESSION_TOKEN",
            "AZURE_STORAGE_ACCOUNT_KEY",
            "GOOGLE_SERVICE_ACCOUNT_KEY",
            "HEADRACE_PASSWORD",
            "HEADRACE_BOOKIE_CREDENTIAL",
            "HEADRACE_ZOOKEEPER_CREDENTIAL",
        )
    )
)
REFUSED_WITHIN_S = 120


def secrets_of_the_environment_are_shown_to_nobody(abuse: Abuse) -> None:
    # The final checks search the log and the responses; this covers other ways to reveal it.
    for path in ("/metrics", "/healthz", "/readyz", "/nowhere", "/openapi.json", "/debug/vars"):
        answer = get(abuse, path)
        abuse.expect(CANARY.encode() not in answer.head + answer.body, f"{path} tells a secret")
    shown_secrets = [
        one.name for one in settings_of(abuse, "0", BROKER).values() if CANARY in str(one.value)
    ]
    abuse.expect(not shown_secrets, f"settings tell a secret: {shown_secrets}")
    try:
        line = Path(f"/proc/{abuse.broker.pid}/cmdline").read_bytes()
    except OSError:
        abuse.skipped.append("arguments of the process: not available without /proc")
    else:
        abuse.expect(CANARY.encode() not in line, "the list of processes shows a secret")
    text = abuse.broker.log_path.read_text(errors="replace")
    abuse.expect(CANARY not in text, "the log tells a secret")
    abuse.expect(abuse.broker.log_level == "debug", "the log is not at debug")


def _refused(abuse: Abuse, arguments: Sequence[str], environment: dict[str, str]) -> None:
    """Start a broker that must fail to start; its output must not contain the canary."""
    with tempfile.TemporaryDirectory(prefix="headrace-security-") as folder:
        command = [*abuse.broker.command(), "serve", "--log-level", "debug"]
        command += ["--data-dir", f"{folder}/data"]
        command += ["--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments]
        shown = [one.replace(CANARY, "...") for one in arguments] or sorted(environment)
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                command,
                capture_output=True,
                env=os.environ | environment,
                timeout=REFUSED_WITHIN_S,
                check=False,
                stdin=subprocess.DEVNULL,
                preexec_fn=die_with_us(),
            )
        except subprocess.TimeoutExpired as error:
            abuse.expect(False, f"{shown}: it has started")
            output = (error.stdout or b"") + (error.stderr or b"")
        else:
            output = done.stdout + done.stderr
            abuse.expect(done.returncode != 0, f"{shown}: it has started, and exited with code 0")
        abuse.expect(
            CANARY.encode() not in output, f"{shown}: it tells the secret: {output[-300:]!r}"
        )
        abuse.expect(b"Traceback" not in output, f"{shown}: a traceback: {output[-300:]!r}")


def secrets_in_addresses_are_refused_and_not_said_again(abuse: Abuse) -> None:
    every = (
        ["--zookeeper", f"user:{CANARY}@127.0.0.1:1"],
        ["--objects", f"s3://key:{CANARY}@bucket/prefix"],
        ["--objects", f"az://container/prefix?sig={CANARY}"],
        ["--objects", f"https://user:{CANARY}@storage.example/x"],
    )
    for arguments in every if abuse.is_long else every[:2]:
        _refused(abuse, arguments, {})
    _refused(abuse, [], {"HEADRACE_OBJECTS": f"gs://key:{CANARY}@bucket"})
    if abuse.is_long:
        # The server does not exist: the broker gives up after a while, and may print all but the
        # credential.
        for credential in (f"user:{CANARY}", CANARY):
            secret = {"HEADRACE_ZOOKEEPER_CREDENTIAL": credential}
            _refused(abuse, ["--zookeeper", "127.0.0.1:1"], secret)


def secrets_in_a_bad_settings_file_are_not_said_again(abuse: Abuse) -> None:
    texts = (
        f'[serve]\npassword = "{CANARY}"\n',
        f'[serve]\nobjects = "s3://key:{CANARY}@bucket"\n',
        f'[serve]\nkafka = {{ password = "{CANARY}" }}\n',
        f'[serve\npassword = "{CANARY}"\n',
        f"[serve]\nhttp = {CANARY}\n",
    )
    for number, text in enumerate(texts if abuse.is_long else texts[:2]):
        with tempfile.TemporaryDirectory(prefix="headrace-security-") as folder:
            path = Path(folder) / f"settings-{number}.toml"
            path.write_text(text)
            _refused(abuse, ["--config", str(path)], {})
