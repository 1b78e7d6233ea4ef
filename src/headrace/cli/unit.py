"""`headrace unit`: a systemd unit for one broker.

Invariants: prints, and changes nothing. The program is that of the environment in which the command
runs. The unit is the file beside this module, with the paths in it.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

import click

from headrace.cli.failures import USAGE, CommandFailed
from headrace.cli.output import say

HIDDEN = ("/home", "/root", "/run/user")
"""What `ProtectHome` hides from the service."""


@click.command()
@click.option("--config", type=click.Path(path_type=Path), default="/etc/headrace/headrace.toml",
              show_default=True, help="The broker's configuration.")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path), default="/var/lib/headrace",
              show_default=True, help="Where the broker keeps its data.")  # fmt: skip
@click.option("--user", default="headrace", show_default=True, help="Who runs the broker.")
def unit(config: Path, data_dir: Path, user: str) -> None:
    """Print a systemd unit for one broker with local files.

    \b
    Example:
      headrace unit > /etc/systemd/system/headrace.service
      systemctl enable --now headrace

    The user must be able to read the configuration and own the data directory. The unit has a
    watchdog, restarts the broker without a limit, and lets it write to its data directory alone.
    For brokers of a cluster, see docs/CLUSTER.md.
    """
    paths = {"PROGRAM": Path(sys.prefix) / "bin" / "headrace", "CONFIG": config, "DATA": data_dir}
    paths = {name: path.absolute() for name, path in paths.items()}
    click.echo(unit_text(paths, user), nl=False)
    for path in paths.values():
        if any(path.is_relative_to(one) for one in HIDDEN):
            say(f"the unit hides {path} from the broker: move it, or remove ProtectHome")


def unit_text(paths: dict[str, Path], user: str) -> str:
    """The unit. Raises CommandFailed if a value cannot stand in it."""
    text = (files(__package__) / "headrace.service").read_text()
    for name, value in {**paths, "USER": user}.items():
        if not str(value).isprintable() or any(one in str(value) for one in " %$\"'\\"):
            raise CommandFailed(
                f"{str(value)!r} has a character with a meaning of its own in units",
                "Choose another path or user, without spaces, quotes, % and $",
                USAGE,
            )
        text = text.replace(f"@{name}@", str(value))
    return text
