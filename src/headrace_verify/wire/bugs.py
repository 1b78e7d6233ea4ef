"""Self-test: limits removed from a real broker, each of which the abuse must reveal.

Invariants: as in `blackbox.bugs`: `spoiled.py` patches the process before it starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.broker.services import appends, connection_memory
from headrace.kafka import request_turns
from headrace.kafka.request_frames import RequestFrames
from headrace.kafka.wire import codecs
from headrace.records import codec, compression, validation
from headrace.runtime import loop_turns
from headrace_verify.self_proof import Bug

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.self_proof import Patch
    from headrace_verify.wire.run import Plan

BELIEVED_MAX = 80 << 20
"""For an array: 640 MiB, so that the machine stays usable."""

LARGEST_BYTES = 4 << 20
"""Of a gRPC message, by default."""


@dataclass(frozen=True)
class Hole(Bug):
    """Found by a case whose name contains the words."""

    says: str = ""
    """Words that the finding must contain."""


def take_frames_of_any_length(patch: Patch) -> None:
    def size(_self: Any, data: bytes | bytearray) -> int:
        return max(8, int.from_bytes(data, "big", signed=True))

    patch(RequestFrames, "_checked_size", size)


def unfold_whatever_a_batch_claims(patch: Patch) -> None:
    patch(codec, "decompress", lambda kind, data, _max: decompress(kind, data, 2 << 30))


def store_records_unseen(patch: Patch) -> None:
    facts = validation.RecordFacts(-1, -1, 0, 0, False)
    patch(appends, "validate_small", lambda _batch, header: facts._replace(newest_ms=header[8]))


def believe_what_an_array_claims(patch: Patch) -> None:
    def allocate(_field: str, count: int) -> None:
        [None] * min(count, BELIEVED_MAX)

    patch(codecs, "READER_NAMES", {**codecs.READER_NAMES, "does_not_fit": allocate})


decompress = compression.decompress


def grant_every_response_what_it_asks_for(patch: Patch) -> None:
    patch(connection_memory.ResponseMemory, "grant", lambda _self, wanted: wanted)


def receive_every_request_at_once(patch: Patch) -> None:
    patch(connection_memory.RequestMemory, "_has_room", lambda _self, _size: True)


def begin_whatever_was_asked_for(patch: Patch) -> None:
    patch(request_turns.RequestTurns, "_may_begin", lambda *_: True)
    patch(loop_turns, "BEGUN_MAX", 1 << 30)
    patch(loop_turns.LoopTurns, "spent", lambda *_: None)


def let_a_client_open_any_number_of_streams(patch: Patch) -> None:
    from headrace.grpc.limits import Limits
    from headrace.rocketmq import face

    any_number = 1 << 30
    unbounded = Limits(streams_max=any_number, resets_burst=any_number)
    patch(face, "Limits", unbounded._replace)


def take_http2_frames_of_any_length(patch: Patch) -> None:
    from headrace.grpc import frame_reader

    patch(frame_reader, "PAYLOAD_BYTES_MAX", 1 << 24)


def let_a_client_flood_its_connection(patch: Patch) -> None:
    from headrace.grpc.limits import Limits
    from headrace.rocketmq import face

    any_number = 1 << 30
    patch(face, "Limits", Limits(resets_burst=any_number, idle_frames_burst=any_number)._replace)


def set_memory_aside_for_the_largest_message(patch: Patch) -> None:
    from headrace.grpc.server import GrpcServer

    hold, aside = GrpcServer.hold, dict[Any, bytes]()

    def generous(self: Any, connection: Any, size: int) -> bool:
        if size > 0 and connection not in aside:
            aside[connection] = b"?" * LARGEST_BYTES
        return hold(self, connection, size)

    patch(GrpcServer, "hold", generous)


def keep_whatever_grpc_clients_have_not_read(patch: Patch) -> None:
    from headrace.grpc.limits import Limits
    from headrace.rocketmq import face

    any_size = 1 << 40
    unbounded = Limits(unsent_bytes_max=any_size, listener_unsent_bytes_max=any_size)
    patch(face, "Limits", unbounded._replace)


BUGS = (
    Hole(take_frames_of_any_length, ("a frame of an impossible length",), says="stays open"),
    Hole(unfold_whatever_a_batch_claims, ("bombs are refused before",), says="MiB"),
    Hole(grant_every_response_what_it_asks_for, ("consumers that read nothing",), says="MiB more"),
    Hole(begin_whatever_was_asked_for, ("ask for much and read",), says="no response"),
    Hole(receive_every_request_at_once, ("producers that stop within large",), says="MiB more"),
    Hole(store_records_unseen, ("records that nobody can decode",), says="code 0"),
    Hole(believe_what_an_array_claims, ("every field of every request",), says="MiB more"),
    Hole(let_a_client_open_any_number_of_streams, ("ten thousand streams",), says="stays open"),
    Hole(take_http2_frames_of_any_length, ("http2 frames that lie",), says="stays open"),
    Hole(let_a_client_flood_its_connection, ("http2 floods",), says="stays open"),
    Hole(set_memory_aside_for_the_largest_message, ("streams that stop within",), says="MiB more"),
    Hole(
        keep_whatever_grpc_clients_have_not_read,
        ("grpc clients that read nothing",),
        says="MiB more",
    ),
)


def find(
    bug: Hole, seed: int, on_progress: Callable[[float, str], None], seconds: float = 5
) -> list[str]:
    """What its case has found; empty if not the bug."""
    from headrace_verify.wire.run import Plan

    return found_by(bug, Plan(seconds, seed, bug.found_by, bug.name), on_progress)


def found_by(bug: Hole, plan: Plan, on_progress: Callable[[float, str], None]) -> list[str]:
    """The findings of a run that reveal the bug."""
    from headrace_verify.wire.run import run_wire

    wrong = [one for result in run_wire(plan, on_progress).results for one in result.wrong]
    return [one for one in wrong if bug.says in one]
