"""`hpcstack publish`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, json_option, say, stack_argument


@click.command("publish")
@stack_argument
@click.option("--channel", default="testing", show_default=True, help="Where users see it.")
@json_option
@click.pass_obj
def command(session: Session, name: str, channel: str, as_json: bool) -> None:
    """Make a built image a release with a module, checked by a real load and unload."""
    from dataclasses import asdict

    from hpcstack.launch import image_of
    from hpcstack.publish import publish

    recipe = session.recipe(name)
    artifact = image_of(recipe.stack.full_name, session.store)
    done = publish(recipe.stack, artifact, session.site, session.store, session.runner, say, channel)
    tree = session.site.module_root / channel

    def text() -> str:
        lines = [f"{done.release} {'published' if done.new else 'is published already'} in {channel}: {done.checked}"]
        lines += [f"  {done.modulefile}", "", f"  module use {tree}", f"  module load {done.alias}"]
        return "\n".join(lines)

    answer(asdict(done), as_json, text)
