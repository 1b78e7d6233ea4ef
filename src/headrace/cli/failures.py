"""The failures of commands, as messages and exit codes.

Invariants: an error names cause, effect and next step, and never shows a traceback. The exit codes
are documented in `headrace --help`: do not change, scripts rely on them.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, NamedTuple

import click

from headrace.records.tenant_names import with_written_keys

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.cli.client import KafkaError

OK = 0
FAILED = 1
USAGE = 2
NOT_FOUND = 3
UNREACHABLE = 4
CONFLICT = 5
UNKNOWN = 6
INTERRUPTED = 130
ALIKE = 0.75
"""How similar a name must be to be suggested: `order` finds `orders`."""

EXIT_CODES = """\b
Exit codes:
  0    success
  1    failure (the message gives the cause and the next step)
  2    usage error: an unknown option or an invalid value
  3    not found: no such topic, partition or group
  4    the broker is unreachable or did not respond in time
  5    conflict: already exists, or the group is active
  6    inconclusive: a check could not run or had nothing to check
  130  interrupted by Ctrl-C"""


class CommandFailed(click.ClickException):
    """A failed command: `message` for people, `exit_code` for scripts."""

    def __init__(self, message: str, next_step: str = "", exit_code: int = FAILED) -> None:
        super().__init__(with_written_keys(message))
        self.next_step = with_written_keys(next_step)
        self.exit_code = exit_code  # type: ignore[misc]  # click: a class variable by default
        self.is_refusal = False
        """Whether it is certain that nothing was changed."""
        self.lacks_right = False
        """Whether an access control list can allow what the broker refused."""


_REFUSALS = frozenset(
    {
        *("CLUSTER_AUTHORIZATION_FAILED", "POLICY_VIOLATION", "RESOURCE_NOT_FOUND"),
        *("UNACCEPTABLE_CREDENTIAL", "UNSUPPORTED_SASL_MECHANISM", "_AUTHENTICATION"),
    }
)
"""Errors of requests that brokers check before they do anything."""
_QUOTED = re.compile(r"'[^']*'")


class _Meaning(NamedTuple):
    exit_code: int
    cause: str
    next_step: str


CHECK_LOGIN = (
    "Check user, password and mechanism: of the context, or of -X sasl.username, sasl.password and"
    " sasl.mechanism"
)
CHECK_CERTIFICATE = (
    "Name the CA that the broker's certificate is from, with --ca of `headrace context add` or -X"
    " ssl.ca.location=FILE, and an address that the certificate is for"
)
START_A_BROKER = (
    "Start a broker with `headrace serve`, or specify another address with --bootstrap HOST:PORT"
    " (or HEADRACE_BOOTSTRAP)"
)
# By KafkaError.name(): the errors that a user of this command line can encounter.
_MEANINGS = {
    "_AUTHENTICATION": _Meaning(FAILED, "the login was refused", CHECK_LOGIN),
    "UNKNOWN_TOPIC_OR_PART": _Meaning(
        NOT_FOUND, "no such topic or partition", "See what there is: headrace topic list"
    ),
    "_UNKNOWN_TOPIC": _Meaning(
        NOT_FOUND, "no such topic", "See what there is: headrace topic list"
    ),
    "_UNKNOWN_PARTITION": _Meaning(
        NOT_FOUND, "no such partition", "See what there is: headrace topic describe TOPIC"
    ),
    "GROUP_ID_NOT_FOUND": _Meaning(
        NOT_FOUND, "no such group", "See what there is: headrace group list"
    ),
    "TOPIC_ALREADY_EXISTS": _Meaning(
        CONFLICT, "the topic already exists", "To ignore this, use --if-not-exists"
    ),
    "NON_EMPTY_GROUP": _Meaning(
        CONFLICT, "the group still has members", "Stop its consumers, then try again"
    ),
    "UNKNOWN_MEMBER_ID": _Meaning(
        CONFLICT, "the group still has members", "Stop its consumers, then try again"
    ),
    "_TIMED_OUT": _Meaning(
        UNREACHABLE, "the broker did not answer in time", "Try again, or with a longer --timeout"
    ),
    "_TIMED_OUT_QUEUE": _Meaning(
        UNREACHABLE, "the broker did not answer in time", "Try again, or with a longer --timeout"
    ),
    "_MSG_TIMED_OUT": _Meaning(
        UNREACHABLE,
        "the broker did not accept the record in time",
        "Try again with a longer --timeout; see the broker's log for the cause",
    ),
    "_TRANSPORT": _Meaning(
        UNREACHABLE,
        "the connection to the broker was lost",
        "Check that the broker is still running, and that the address is that of a Kafka listener"
        " which needs no TLS: if it does, use a context (headrace context add --ca ...)",
    ),
    "_ALL_BROKERS_DOWN": _Meaning(
        UNREACHABLE, "no broker can be reached", "Is `headrace serve` still running?"
    ),
    "_RESOLVE": _Meaning(
        UNREACHABLE, "the broker's host name cannot be resolved", "Check --bootstrap HOST:PORT"
    ),
    "MSG_SIZE_TOO_LARGE": _Meaning(
        FAILED,
        "the record is larger than the topic allows",
        "Raise the limit: headrace topic alter TOPIC --set max.message.bytes=BYTES",
    ),
    "POLICY_VIOLATION": _Meaning(
        FAILED,
        "the broker refused the request: the topic is internal, the tenant has what it may have, or"
        " the broker's disk is full",
        "Check /readyz on the broker's HTTP port; an operator sees a tenant's limits by headrace"
        " tenant describe",
    ),
    "KAFKA_STORAGE_ERROR": _Meaning(
        FAILED,
        "the broker cannot read these records: they are damaged, or in object storage that it was"
        " started without",
        "See the broker's log, and /readyz on its HTTP port; tiered data needs --objects",
    ),
    "INVALID_RECORD": _Meaning(
        FAILED,
        "the topic does not accept such records",
        "A topic with cleanup.policy=compact accepts only records with a key:"
        " use --key or --key-separator. Queue attributes (headrace-... headers) require"
        " headrace.message.attributes=read, or ignore to store them without effect. See its"
        " settings: headrace topic describe TOPIC",
    ),
    "INVALID_REPLICATION_FACTOR": _Meaning(
        FAILED,
        "more replicas requested than brokers exist",
        "Omit --replication-factor, or list the brokers: headrace info",
    ),
    "INVALID_PARTITIONS": _Meaning(
        FAILED,
        "invalid partition count",
        "Partitions can be added but not removed; see headrace topic describe TOPIC",
    ),
    "UNACCEPTABLE_CREDENTIAL": _Meaning(
        FAILED,
        "the broker refused the user's name, its password's hash, or one user more",
        "A name has 1 to 100 bytes, all printable, with its tenant; it does not begin with"
        " headrace-helper: and, in a tenant, has no « or ». Remove users that nobody needs",
    ),
    "INVALID_CONFIG": _Meaning(
        FAILED, "the broker refused the setting", "Check its name and value"
    ),
    **{
        f"{kind}_AUTHORIZATION_FAILED": _Meaning(
            FAILED,
            f"the user has no right to this {noun}",
            "An administrator finds what was denied to whom in the broker's log, and can allow it"
            " with headrace acl add",
        )
        for kind, noun in (
            ("TOPIC", "topic"),
            ("GROUP", "group"),
            ("CLUSTER", "operation on the cluster"),
            ("TRANSACTIONAL_ID", "transactional id"),
        )
    },
    "TOPIC_EXCEPTION": _Meaning(
        USAGE, "invalid topic name", "Use at most 249 letters, digits, '.', '_' and '-'"
    ),
}


def from_kafka(error: KafkaError, doing: str) -> CommandFailed:
    """Convert a client error that occurred while `doing` something into a message and exit code."""
    failed = _failed(error, doing)
    failed.is_refusal = error.name() in _REFUSALS
    failed.lacks_right = error.name().endswith("_AUTHORIZATION_FAILED")
    return failed


def _failed(error: KafkaError, doing: str) -> CommandFailed:
    meaning = _MEANINGS.get(error.name())
    said = error.str()
    said = said if said.endswith("..") else said.removesuffix(".")  # ".." is a name
    if meaning is None:
        is_local = error.name().startswith("_")
        step = "Check the command and -X" if is_local else "See the broker's log"
        return CommandFailed(f"{doing}: {said} ({error.name()})", step)
    detail = "" if _is_redundant(said, meaning.cause) else f" ({said})"
    return CommandFailed(f"{doing}: {meaning.cause}{detail}", meaning.next_step, meaning.exit_code)


def _is_redundant(said: str, cause: str) -> bool:
    """Whether the client's text adds nothing: its own name of the code, or the cause once more."""
    words = set(_QUOTED.sub("", said).split())
    return said.startswith(("Broker: ", "Local: ")) or words <= set(cause.split())


def no_topic(name: str, known: Iterable[str] = ()) -> CommandFailed:
    """The error for a topic that does not exist; `known` are those that do."""
    return CommandFailed(
        f"no topic {name!r} on this broker{_alike(name, known)}",
        f"List topics with headrace topic list, or create it: headrace topic create {name}",
        NOT_FOUND,
    )


def no_group(name: str, known: Iterable[str] = ()) -> CommandFailed:
    """The error for a group that does not exist; `known` are those that do."""
    return CommandFailed(
        f"no group {name!r} on this broker{_alike(name, known)}",
        "See what there is: headrace group list",
        NOT_FOUND,
    )


def _alike(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), 1, ALIKE)
    return f"; did you mean {near[0]!r}?" if near else ""
