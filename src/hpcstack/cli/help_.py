"""`hpcstack help`."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from hpcstack.cli.session import answer, json_option

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Topic:
    """One how-to page: its name as it is typed, its title, where it lies."""

    name: str
    title: str
    path: Path

    def read(self) -> str:
        """Return the page's Markdown."""
        return self.path.read_text(encoding="utf-8")


@click.command("help")
@click.argument("words", metavar="[TOPIC|VERB]", nargs=-1)
@json_option
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], as_json: bool) -> None:
    """Print a how-to page, or list them.

    TOPIC is a page's name, or words to look for in the pages. VERB prints that verb's own help.
    """
    if not words:
        topics = list_topics()
        rows = [{"topic": topic.name, "title": topic.title} for topic in topics]
        answer(rows, as_json, lambda: format_topics(topics))
        return

    verb = _find_verb(ctx, words[0]) if len(words) == 1 else None
    if verb is not None:
        with click.Context(verb, parent=ctx.parent, info_name=words[0]) as of_verb:
            text = verb.get_help(of_verb)
        answer({"verb": words[0], "help": text}, as_json, lambda: text)
        return

    topic = find_topic(words)
    text = topic.read()
    document = {"topic": topic.name, "title": topic.title, "page": text}
    answer(document, as_json, lambda: render_page(text))


def list_topics() -> list[Topic]:
    """Return every how-to page, in the order of their names."""
    from hpcstack.core.data import find_howto_folder

    topics = []
    for path in sorted(find_howto_folder().glob("*.md")):
        if path.stem == "index":
            continue
        first_line = path.read_text(encoding="utf-8").partition("\n")[0]
        topics.append(Topic(path.stem, first_line.removeprefix("# "), path))
    return topics


def find_topic(words: tuple[str, ...]) -> Topic:
    """Return the page that WORDS name: by its name, by a part of it, or by what it says.

    InputError where several pages, or none, are meant.
    """
    from hpcstack.core.errors import InputError, did_you_mean

    topics = list_topics()
    wanted = "-".join(words).lower()
    by_name = [topic for topic in topics if topic.name == wanted]
    by_part = [topic for topic in topics if _has_all(topic.name, words)]
    by_title = [topic for topic in topics if _has_all(topic.title, words)]
    for found in (by_name, by_part, by_title):
        if len(found) == 1:
            return found[0]

    saying = [topic for topic in topics if _has_all(topic.read(), words)]
    if len(saying) == 1:
        return saying[0]
    asked = " ".join(words)
    candidates = by_part or by_title or saying
    if not candidates:
        near = did_you_mean(wanted, [topic.name for topic in topics])
        raise InputError(f"no how-to page says {asked!r}{near}", "hpcstack help lists them all")
    lines = [f"  hpcstack help {topic.name}: {topic.title}" for topic in candidates]
    raise InputError(
        "\n".join([f"{len(candidates)} how-to pages say {asked!r}:", *lines]), "name one of them"
    )


def render_page(page: str) -> str:
    """Return PAGE for a terminal where stdout is one, else the Markdown as it is."""
    if not sys.stdout.isatty():
        return page.rstrip("\n")

    from rich.console import Console
    from rich.markdown import Markdown

    console = Console(width=min(100, Console().width))
    with console.capture() as drawn:
        console.print(Markdown(page, hyperlinks=False))
    return drawn.get().rstrip("\n")


def format_topics(topics: list[Topic]) -> str:
    """Return a table of TOPICS: what is typed, and what it is about."""
    width = max(len(topic.name) for topic in topics)
    return "\n".join(f"{topic.name:<{width}}  {topic.title}" for topic in topics)


def _has_all(text: str, words: tuple[str, ...]) -> bool:
    """Whether TEXT has all WORDS, or words that begin with them: `oom` is not in `room`."""
    folded = text.lower()
    return all(re.search(rf"(?<!\w){re.escape(word.lower())}", folded) for word in words)


def _find_verb(ctx: click.Context, name: str) -> click.Command | None:
    """Return the verb NAME; None where there is no such verb."""
    group = ctx.find_root().command
    assert isinstance(group, click.Group)
    return group.get_command(ctx, name)
