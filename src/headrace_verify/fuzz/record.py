"""Records what real clients send, as seeds: `python -m headrace_verify.fuzz.record`.

Invariants: each connection's first bytes as its client sent them, between the client and a broker
of this tree. Passwords in it are of that broker alone. Needs confluent-kafka, kafka-python, grpcio.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from headrace_verify.fuzz.seeds import TRAFFIC
from headrace_verify.real_broker import RealBroker

KEPT_BYTES = 3_000
"""Of one connection."""
USER, PASSWORD = "admin", "pencil"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TIMEOUT_S = 60


class Tap:
    """A port whose connections lead to another, and are recorded."""

    def __init__(self, listener: str) -> None:
        self.listener = listener
        self.to = ("", 0)
        self.connections: list[bytearray] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._server.accept()
            broker = socket.create_connection(self.to)
            kept = bytearray()
            self.connections.append(kept)
            for one, other, to in ((client, broker, kept), (broker, client, None)):
                threading.Thread(target=_carry, args=(one, other, to), daemon=True).start()


def _carry(one: socket.socket, other: socket.socket, kept: bytearray | None) -> None:
    with contextlib.suppress(OSError):  # the other direction has closed both
        while data := one.recv(1 << 16):
            if kept is not None and len(kept) < KEPT_BYTES:
                kept += data[: KEPT_BYTES - len(kept)]
            other.sendall(data)
    other.close()


def _use_kafka(port: int) -> None:
    import kafka
    from confluent_kafka import Consumer, Producer
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    place = f"127.0.0.1:{port}"
    login = {"sasl.username": USER, "sasl.password": PASSWORD, "bootstrap.servers": place}
    login["security.protocol"] = "SASL_PLAINTEXT"
    admin = AdminClient({**login, "sasl.mechanism": "PLAIN"})
    for made in admin.create_topics([NewTopic(one, 1, 1) for one in ("orders", "plain")]).values():
        made.result(TIMEOUT_S)
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        mechanism = MECHANISMS[number % len(MECHANISMS)]
        producer = Producer({**login, "sasl.mechanism": mechanism, "compression.type": codec})
        for key in ("a", None):
            producer.produce("orders", b"value " * 20, key, headers={"h": b"1"})
        assert producer.flush(TIMEOUT_S) == 0
    group = {"group.id": "g", "auto.offset.reset": "earliest", "sasl.mechanism": "SCRAM-SHA-256"}
    for protocol in ("classic", "consumer"):
        consumer = Consumer({**login, **group, "group.id": protocol, "group.protocol": protocol})
        consumer.subscribe(["orders"])
        assert consumer.consume(2, TIMEOUT_S)
        consumer.close()
    ours = {"bootstrap_servers": place, "security_protocol": "SASL_PLAINTEXT"}
    ours |= {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}
    for mechanism in MECHANISMS:
        writer = kafka.KafkaProducer(sasl_mechanism=mechanism, **ours)
        writer.send("plain", b"value", b"key").get(TIMEOUT_S)
        writer.close()
        reader = kafka.KafkaConsumer(
            "plain", group_id="kafka-python", auto_offset_reset="earliest",
            sasl_mechanism=mechanism, **ours,
        )  # fmt: skip
        assert reader.poll(TIMEOUT_S * 1000)
        reader.close()


def _use_http(port: int) -> None:
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    head = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    record = json.dumps({"records": [{"key": "k", "value": "v"}]})
    settled = json.dumps({"ack": ["r"], "nack": [{"receipt": "r", "delay_ms": 5}]})
    for method, path, body in (
        ("GET", "/v1/topics?limit=10", None),
        ("POST", "/v1/topics/orders/records", record),
        ("POST", "/v1/queues/orders/settle", settled),
        ("GET", "/v1/topics/orders/messages?where=value.n%20%3E%201", None),
    ):
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        client.request(method, path, body, head)
        client.getresponse().read()
        client.close()


def _use_grpc(port: int) -> None:
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in ("QueryRoute", "Heartbeat"):
            call = channel.unary_unary(f"/apache.rocketmq.v2.MessagingService/{method}")
            try:
                call(b"\x0a\x08\x12\x06orders", timeout=TIMEOUT_S)
            except grpc.RpcError:
                continue


def main() -> None:
    """Write `traffic.jsonl` anew."""
    taps = [Tap("kafka"), Tap("http"), Tap("rocketmq")]
    with tempfile.TemporaryDirectory() as folder:
        broker = RealBroker(
            Path(folder),
            [
                "--listener-security-protocol-map", "PLAINTEXT:SASL_PLAINTEXT",
                "--sasl-enabled-mechanisms", ",".join(MECHANISMS),
                "--super-users", f"User:{USER};User:ANONYMOUS", "--rocketmq", "127.0.0.1:0",
                "--advertise", f"PLAINTEXT://127.0.0.1:{taps[0].port}",
            ],
        )  # fmt: skip
        adding = ["user", "add", USER, "--password-file", "-", "--data-dir", str(broker.data_dir)]
        subprocess.run(  # noqa: S603 - our own command
            [*broker.command(), *adding], input=f"{PASSWORD}\n", text=True, check=True
        )
        broker.start()
        try:
            addresses = (broker.address, broker.http_address, broker.rocketmq_addresses[0])
            for tap, address in zip(taps, addresses, strict=True):
                tap.to = address
            for use, tap in zip((_use_kafka, _use_http, _use_grpc), taps, strict=True):
                use(tap.port)
        finally:
            broker.kill()
    with TRAFFIC.open("w") as file:
        for tap in taps:
            for data in tap.connections:
                file.write(json.dumps({"listener": tap.listener, "sent": data.hex()}) + "\n")


if __name__ == "__main__":
    main()
