"""`hpcstack completion`."""

from __future__ import annotations

import click

from hpcstack.cli.session import echo


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    To use it in this shell: eval "$(hpcstack completion bash)".
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind
    root = ctx.find_root().command
    echo(kind(root, {}, "hpcstack", "_HPCSTACK_COMPLETE").source())
