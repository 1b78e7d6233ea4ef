"""The HTTP/2 of the load of RocketMQ's protocol, read by another implementation."""

from __future__ import annotations

import socket
import threading

import h2.config
import h2.connection
import h2.events
import pytest
from h2.settings import SettingCodes

from headrace_bench.processes import SystemFailed
from headrace_bench.rocketmq.connection import Connection, messages_in

METADATA = {"te": "trailers", "x-mq-client-id": "producer"}


def serve(listener, table_bytes, seen):
    """One connection: remembers each call, and answers it with its own message."""
    config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
    protocol = h2.connection.H2Connection(config)
    protocol.local_settings[SettingCodes.HEADER_TABLE_SIZE] = table_bytes
    connection, _ = listener.accept()
    with connection:
        protocol.initiate_connection()
        protocol.update_settings({SettingCodes.HEADER_TABLE_SIZE: table_bytes})
        connection.sendall(protocol.data_to_send())
        headers, bodies = {}, {}
        while data := connection.recv(65_536):
            for event in protocol.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    headers[event.stream_id] = event.headers
                elif isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] = event.data
                elif isinstance(event, h2.events.StreamEnded):
                    stream = event.stream_id
                    seen.append((headers[stream], bodies[stream]))
                    protocol.send_headers(stream, [(":status", "200")])
                    protocol.send_data(stream, bodies[stream])
                    protocol.send_headers(stream, [("grpc-status", "0")], end_stream=True)
            connection.sendall(protocol.data_to_send())


@pytest.fixture(params=[4096, 0], ids=["table", "no table"])
def served(request):
    seen = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener, request.param, seen))
        thread.start()
        connection = Connection(listener.getsockname()[1], METADATA)
        try:
            yield connection, seen
        finally:
            connection.close()
            thread.join(10)


def test_calls_arrive_with_their_metadata_and_answers_come_back(served):
    connection, seen = served
    paths = ["/s/A", "/s/B", "/s/A", "/s/A", "/s/B", "/s/C", "/s/A"]
    answered = {}
    streams = []
    for number, path in enumerate(paths):
        body = b"body %d" % number
        streams.append(connection.call(path, body, {"x-mq-request-id": str(number)}))
        if number != 2:  # two of them at once
            answered |= {one.stream: one.data for one in connection.answers(5)}
    while connection.open_count:
        answered |= {one.stream: one.data for one in connection.answers(5)}
    assert [list(messages_in(answered[one])) for one in streams] == [
        [b"body %d" % number] for number in range(len(paths))
    ]
    for number, (headers, body) in enumerate(seen):
        fields = dict(headers)
        assert fields[":path"] == paths[number]
        assert fields[":method"] == "POST"
        assert fields["x-mq-client-id"] == "producer"
        assert fields["x-mq-request-id"] == str(number)
        assert list(messages_in(body)) == [b"body %d" % number]
    assert len(seen) == len(paths)


def test_a_server_that_closes_the_connection_is_a_failure(served):
    connection, _seen = served
    connection.call("/s/A", b"", {})
    while connection.open_count:
        connection.answers(5)
    connection._socket.shutdown(socket.SHUT_WR)
    with pytest.raises(SystemFailed, match="closed"):
        connection.answers(5)
