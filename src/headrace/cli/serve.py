"""`headrace serve`: runs a broker until it is stopped."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

import click

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.settings.kinds import ROCKETMQ_LISTENER, Listener, Listeners, Switch
from headrace.broker.settings.table import SETTINGS, topic_default_of
from headrace.cli.cluster_options import CLUSTER_NAMES, cluster_settings, tls_of, with_tls
from headrace.cli.config_file import config_option
from headrace.cli.failures import CommandFailed
from headrace.cli.listener_settings import (
    is_argument,
    listener_setting_option,
    worker_environment,
)
from headrace.cli.listener_settings import listener_settings as of_listeners
from headrace.cli.parameters import show_address
from headrace.cli.reload import Reload
from headrace.cli.setting_options import given_settings, setting_options
from headrace.cli.variables import misspelt, name_variables
from headrace.errors import FolderInUse, HeadraceError
from headrace.metadata.endpoints import KAFKA
from headrace.runtime import compiled
from headrace.runtime.clock import SystemClock
from headrace.runtime.log_limit import LogLimit
from headrace.runtime.log_text import JsonLine, OneLine
from headrace.runtime.security_protocols import SASL_SSL, SSL
from headrace.runtime.service_manager import READY, STOPPING, ServiceManager
from headrace.server.settings import (
    Settings,
    check_advertised,
    check_exposure,
    check_listeners,
    is_exposed,
    opened_to_network,
    stored_worker_count,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from headrace.server.lifecycle import Broker

log = logging.getLogger("headrace")

RATE_LIMITED_LOGGERS = (
    "headrace.broker.security.authentication",
    "headrace.grpc.calls",
    "headrace.grpc.protocol",
    "headrace.http.connection",
    "headrace.http.logins",
    "headrace.kafka.connection",
    "headrace.kafka.dispatch",
    "headrace.kafka.handlers.fetch",
    "headrace.log.step_queue",
    "headrace.rocketmq.signed",
    "headrace.runtime.tls",
    "uvicorn.error",
)
"""Loggers that log a line for each misbehaving client, or for each retry in an outage."""
_OWNER_ONLY_UMASK = 0o077
_TEXT = OneLine("%(asctime)s %(levelname)s %(name)s: %(message)s")


def _raise_file_limit() -> None:
    """Ledgers and connections need descriptors: raise the limit to the allowed maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _tune_cycle_collector() -> None:
    """Exempt long-lived objects from the cycle collector, and run it rarely.

    Requests leave no cycles, so reference counting frees them; a collection would only scan all
    topics in the middle of a request.
    """
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def _stop_signals(reload: Callable[[], None]) -> asyncio.Event:
    """Return an event set on SIGINT or SIGTERM; SIGHUP calls `reload`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload)
    return stop


def _at_end_of_input(stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        stop.set()
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())


def _ready_line(
    kafka: Sequence[str],
    http: Sequence[str],
    settings: Settings,
    *,
    admin: Sequence[str] = (),
    rocketmq: Sequence[str] = (),
    listeners: Mapping[str, str] | None = None,
    as_json: bool,
) -> str:
    """`listeners`: of one broker, by their names; `admin`: of listeners for health and metrics."""
    if as_json:
        ready = {
            "ready": True,
            "kafka": ",".join(kafka),
            "http": ",".join(http),
            "data_dir": None if settings.cluster else str(settings.data_dir.absolute()),
        }
        if admin:
            ready["admin"] = ",".join(admin)
        if rocketmq:
            ready["rocketmq"] = ",".join(rocketmq)
        return json.dumps(ready if listeners is None else {**ready, "listeners": listeners})
    scheme = "https" if settings.http_protocol in {SSL, SASL_SSL} else "http"
    of_admin = "https" if settings.admin_protocol in {SSL, SASL_SSL} else "http"
    admins = f" admin {_urls(of_admin, admin)}," if admin else ""
    if rocketmq:
        admins += f" rocketmq {','.join(rocketmq)},"
    more = [f"{name} {address}" for name, address in list((listeners or {}).items())[1:]]
    return (
        f"headrace is ready: kafka {', '.join([','.join(kafka), *more])},"
        f" http {_urls(scheme, http)},{admins}"
        f" data in {'BookKeeper' if settings.cluster else settings.data_dir.absolute()}"
    )


def _urls(scheme: str, addresses: Sequence[str]) -> str:
    return ",".join(f"{scheme}://{one}" for one in ",".join(addresses).split(","))


async def _supervise(
    settings: Settings, options: list[str], reload: Reload, *, as_json: bool
) -> None:
    """Run `worker_count` brokers, at consecutive ports."""
    from headrace.server.supervisor import Addresses, Supervisor

    stop = _stop_signals(reload)
    addresses = [
        Addresses(
            _nth_listeners(settings, number),
            ",".join(
                show_address(_nth(one, number)) for one in (settings.http, *settings.more_http)
            ),
            None if settings.admin is None else show_address(_nth(settings.admin, number)),
            None if settings.rocketmq is None else show_address(_nth(settings.rocketmq, number)),
        )
        for number in range(settings.worker_count)
    ]
    supervisor = Supervisor(addresses, options, worker_environment(settings.given))
    reload.then(supervisor.reload)
    await supervisor.start()
    workers = supervisor.workers
    kafka, http = [worker.kafka for worker in workers], [worker.http for worker in workers]
    admin = [worker.admin for worker in workers if worker.admin is not None]
    rocketmq = [worker.rocketmq for worker in workers if worker.rocketmq is not None]
    line = _ready_line(kafka, http, settings, admin=admin, rocketmq=rocketmq, as_json=as_json)
    click.echo(line)
    sys.stdout.flush()
    await _serve_until(stop)
    log.info("stopping")
    await supervisor.stop()


def _nth(address: tuple[str, int], number: int) -> tuple[str, int]:
    """Listeners at the same address have consecutive ports (0: any)."""
    host, port = address
    return (host, port + number if port else 0)


def _nth_listeners(settings: Settings, number: int) -> str:
    """The listeners of one of several workers, in the option's format."""
    kafka = [one for one in settings.endpoints if one.face == KAFKA]
    return Listeners().format(
        Listener(one.listener, *_nth((one.host, one.port), number)) for one in kafka
    )


async def _serve(settings: Settings, worker: int | None, reload: Reload, *, as_json: bool) -> None:
    from headrace.server.assemble import start

    gc.collect()
    gc.disable()  # while all topics are loaded: see _tune_cycle_collector
    stop = _stop_signals(reload)
    if worker is not None:
        # The supervisor holds the other end: if it is closed, the worker must exit.
        loop = asyncio.get_running_loop()
        loop.add_reader(sys.stdin.fileno(), _at_end_of_input, stop)
    broker = await _until_started(start(settings), stop)
    if broker is None:
        log.info("stopped before it was ready")
        return
    line = _ready_line(
        [show_address(broker.kafka)],
        list(map(show_address, broker.http)),
        settings,
        admin=[] if broker.admin is None else [show_address(broker.admin)],
        rocketmq=[] if broker.rocketmq is None else [show_address(broker.rocketmq)],
        listeners={
            one.listener: show_address((one.host, one.port))
            for one in broker.bound
            if one.face == KAFKA
        },
        as_json=as_json,
    )
    if broker.certificates is not None:
        reload.then(broker.certificates.reload_soon)
    click.echo(line)
    sys.stdout.flush()
    _tune_cycle_collector()
    for endpoint in broker.bound:
        if is_exposed(settings, endpoint):
            log.warning(
                "%s is reachable from other machines, and clients are not authenticated",
                show_address((endpoint.host, endpoint.port)),
            )
    await _serve_until(stop)
    log.info("stopping")
    await broker.stop()
    # The process ends, and its memory with it: the interpreter would otherwise scan all of it
    # first.
    gc.disable()
    gc.freeze()


async def _serve_until(stop: asyncio.Event) -> None:
    """Wait until the process is to stop; the service manager knows meanwhile that it serves."""
    manager = ServiceManager(os.environ)
    manager.notify(READY)
    feeding = asyncio.ensure_future(manager.feed_watchdog())
    try:
        await stop.wait()
    finally:
        feeding.cancel()
        manager.notify(STOPPING)


async def _until_started(start: Coroutine[Any, Any, Broker], stop: asyncio.Event) -> Broker | None:
    """Return the broker; None if it was stopped first. Raises what `start` raises.

    A start may take long: it waits for the session of a previous run to end, or reads a large log.
    """
    starting, stopping = asyncio.ensure_future(start), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait({starting})
        if starting.cancelled() or starting.exception() is not None:
            return None
        return starting.result()
    finally:
        stopping.cancel()


def _worker_count(data_dir: Path, asked: int | None) -> int:
    """The number of brokers to run. Raises CommandFailed if it would leave partitions unserved."""
    stored = stored_worker_count(data_dir)
    if asked is not None and asked < stored:
        raise CommandFailed(
            f"{data_dir} contains partitions of {stored} workers, and {asked} would leave some"
            " of them"
            f" unserved: start it with --workers {stored} or more"
        )
    return asked or stored


def _prepare(log_level: str, log_format: str) -> None:
    """Prepare the process. Raises CommandFailed."""
    if sys.flags.optimize:
        raise CommandFailed(
            "python -O disables the checks of invariants: start headrace without it"
        )
    # SQLite and object storage in a folder create files, too: only their owner may read records.
    os.umask(_OWNER_ONLY_UMASK)
    logging.basicConfig(level=log_level.upper(), stream=sys.stderr)
    limit = LogLimit(RATE_LIMITED_LOGGERS, SystemClock())
    for handler in logging.getLogger().handlers:
        handler.addFilter(limit)
        handler.setFormatter(JsonLine() if log_format == "json" else _TEXT)
    # We log its start and stop ourselves.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    _raise_file_limit()
    try:
        log.info("running as %s", compiled.use())
    except compiled.CoreUnusableError as error:
        raise CommandFailed(
            f"{compiled.SWITCH} requires the compiled core, which cannot be used: {error}"
        ) from error


_OF_ONE_WORKER = {
    "advertised.listeners",
    "headrace.admin.address",
    "headrace.http",
    "headrace.log.level",
    "headrace.rocketmq",
    "headrace.workers",
    "listeners",
    "log.dirs",
    "node.id",
}
"""Settings of which each worker has its own, or that are always passed on."""


def _worker_options(settings: Settings, log_level: str) -> list[str]:
    """The options of `headrace serve` for a worker of these settings."""
    options = ["--data-dir", str(settings.data_dir), "--workers", str(settings.worker_count)]
    options += ["--log-level", log_level]
    for name, text in settings.given.items():
        if name in _OF_ONE_WORKER or not is_argument(name):
            continue
        setting = SETTINGS[name]
        if not isinstance(setting.kind, Switch):
            options += [f"--{setting.option}", text]
        elif text == "true":
            options.append(f"--{setting.option}")
        elif setting.negative is not None:
            options.append(f"--{setting.negative}")
    return options


def _run(
    settings: Settings,
    worker: int | None,
    log_level: str,
    reload: Reload,
    *,
    as_json: bool,
) -> None:
    """Run according to the settings until stopped. Raises CommandFailed."""
    import uvloop

    try:
        check_listeners(settings)
        check_exposure(settings)
        check_advertised(settings)
        if settings.worker_count > 1 and worker is None:
            options = _worker_options(settings, log_level)
            uvloop.run(_supervise(settings, options, reload, as_json=as_json))
        else:
            uvloop.run(_serve(settings, worker, reload, as_json=as_json))
    except FolderInUse as error:
        raise CommandFailed(str(error)) from error
    except HeadraceError as error:
        raise CommandFailed(f"the broker cannot start: {error}") from error
    except OSError as error:
        raise CommandFailed(
            f"the broker cannot start: {error}. Is another broker running? Use other ports"
            " with --kafka and --http (port 0 takes a free one), or another --data-dir"
        ) from error


@click.command(
    epilog="Examples:\n\n  headrace serve\n\n  headrace serve --data-dir /var/lib/headrace"
    " --kafka 127.0.0.1:19092\n\n  headrace serve --kafka 127.0.0.1:0 --json   # a free port"
)
@setting_options()
@listener_setting_option
@config_option("serve", CLUSTER_NAMES)
@click.option("--worker", type=click.IntRange(0, 63), default=None, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print the ready line as JSON.")
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    worker: int | None,
    as_json: bool,
    listener_settings: dict[str, str],
    **values: Any,
) -> None:
    """Run a broker.

    The broker serves Kafka and HTTP clients until SIGINT or SIGTERM. Acknowledged records are on
    disk, so it can be killed at any time. Each option can also be set by an environment variable or
    in a file (--config), which SIGHUP reloads. docs/reference/settings.md lists all settings and
    those that can be changed at run time (headrace config).
    """
    _prepare(values["log_level"], values["log_format"])
    for name, near in misspelt(ctx.command, os.environ).items():
        log.warning("%s is set, but there is no such setting: did you mean %s?", name, near)
    given = given_settings(ctx) | of_listeners(ctx, listener_settings)
    settings = _settings(values, given, worker)
    _run(settings, worker, values["log_level"], Reload(ctx), as_json=as_json)


def _settings(values: dict[str, Any], given: dict[str, str], worker: int | None) -> Settings:
    """Convert the options to the server's parameters. Raises CommandFailed."""
    workers = values["workers"]
    cluster = cluster_settings(
        values["zookeeper"],
        values["zookeeper_root"],
        values["session_timeout_ms"],
        values["quorum"],
        values["zookeeper_credential_file"],
    )
    cluster = with_tls(cluster, tls_of(values))
    _check_tables(values)
    if cluster is not None and workers is not None and workers > 1:
        raise CommandFailed(
            "--workers shares a data directory and cannot be combined with --zookeeper: start"
            " several brokers, each with"
            " its own --broker-id and ports"
        )
    worker_count = 1 if cluster else _worker_count(values["data_dir"], workers)
    if worker_count > 1 and worker is None and values["advertise"] is not None:
        raise CommandFailed("--advertise requires --workers 1")
    first, *others = values["kafka"]
    http, *more_http = values["http"]
    advertised = {one.name: (one.host, one.port) for one in values["advertise"] or ()}
    names = {one.name for one in values["kafka"]}
    if values["rocketmq"] is not None:
        names.add(ROCKETMQ_LISTENER)
    unknown = sorted(advertised.keys() - names)
    if unknown:
        option = "--rocketmq" if unknown[0] == ROCKETMQ_LISTENER else "--kafka"
        raise CommandFailed(
            f"--advertise names the listener {unknown[0]}, which {option} does not have; nothing"
            " was started"
        )
    settings = Settings(
        values["data_dir"],
        (first.host, first.port),
        http,
        advertised,
        values["objects"],
        values["tables"],
        values["tables_catalog"] or "",
        (values["offload_mib_per_s"] << 20) or None,
        _broker_config(values, worker),
        worker_count,
        cluster,
        given,
        others,
        first.name,
        values["listener_security_protocol_map"] or {},
        values["http_security_protocol"],
        values["inter_broker_listener_name"],
        values["insecure"],
        admin=values["admin_address"],
        admin_protocol=values["admin_security_protocol"],
        rocketmq=values["rocketmq"],
        rocketmq_protocol=values["rocketmq_security_protocol"],
        more_http=more_http,
    )
    return opened_to_network(settings) if values["open_to_network"] else settings


def _check_tables(values: dict[str, Any]) -> None:
    if values["tables"] is not None and values["objects"] is None:
        raise CommandFailed(
            "--tables without --objects has no effect: tables replace objects; give both, or none"
        )
    if values["tables_catalog"] is not None and values["tables"] is None:
        raise CommandFailed(
            "--tables-catalog without --tables has no effect: it says where the catalog of --tables"
            " is; give both, or none"
        )


def _broker_config(values: dict[str, Any], worker: int | None) -> BrokerConfig:
    config = BrokerConfig()
    for setting in SETTINGS.values():
        value = values.get(setting.option.replace("-", "_"))
        if setting.field is not None:
            setattr(config, setting.field, value)
        elif (topic_setting := topic_default_of(setting)) and value not in {None, setting.default}:
            config.topic_defaults[topic_setting] = str(value)
    if worker is not None:
        config.broker_id = worker
    return config


name_variables(serve)
