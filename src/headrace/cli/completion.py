"""`headrace completion`: the shell's completion script, and completion of topic and group names.

Invariants: completion must never print, fail or hang: on any problem, it returns an empty list.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, get_completion_class

from headrace.cli.connection import bootstrap_of
from headrace.cli.session import DEFAULT_BOOTSTRAP, CliSession
from headrace.records.tenant_names import written_topic

TIMEOUT_S = 1.0  # a longer completion feels like a hang


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of your SHELL.

    \b
    Examples:
      headrace completion bash > ~/.local/share/bash-completion/completions/headrace
      headrace completion zsh > "${fpath[1]}/_headrace"
      headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    found = get_completion_class(shell)
    assert found is not None
    root = ctx.find_root().command
    script = found(root, {}, "headrace", "_HEADRACE_COMPLETE")
    click.echo(script.source_template % script.source_vars())


def _bootstrap(ctx: click.Context) -> str:
    return bootstrap_of(ctx) or os.environ.get("HEADRACE_BOOTSTRAP", DEFAULT_BOOTSTRAP)


def session_of(ctx: click.Context) -> CliSession:
    """A session for completion, with the options parsed so far."""
    return CliSession(_bootstrap(ctx), TIMEOUT_S, given_http=os.environ.get("HEADRACE_HTTP"))


def complete_topics(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """The broker's topics that start with the typed text, as operators write them."""
    from headrace.cli.failures import CommandFailed

    try:
        names = session_of(ctx).cluster_metadata().topics
    except CommandFailed:
        return []
    texts = sorted(map(written_topic, names))
    return [CompletionItem(text) for text in texts if text.startswith(incomplete)]


def complete_groups(
    ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The broker's groups that start with the typed text."""
    from headrace.cli.failures import CommandFailed
    from headrace.cli.group_listing import list_groups

    try:
        names = [one.group for one in list_groups(session_of(ctx))]
    except CommandFailed:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
