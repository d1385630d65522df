"""`hpcstack cache`: one import of any image for the whole cluster."""

from __future__ import annotations

import time
from pathlib import Path

import click

from hpcstack.cli.session import (
    Session,
    answer,
    echo,
    format_table,
    json_option,
    say,
    show_progress,
)


@click.group("cache")
def command() -> None:
    """The image cache, which all nodes and users share: each image is imported once (image_cache in
    site.yaml).
    """


@command.command("get")
@click.argument("image", metavar="IMAGE")
@json_option
@click.pass_obj
def get(session: Session, image: str, as_json: bool) -> None:
    """Print the path of IMAGE in the cache; it is imported first where it is not there.

    Your own login must be able to read it. Exit code 8: this image, or this node, has no share in
    the cache.
    """
    from hpcstack.imagecache.ask import ask_service

    with show_progress(f"asking for {image}", "") as progress:
        given = ask_service(image, session.site, progress)
    answer(given, as_json, lambda: given["path"])


@command.command("answer", hidden=True)
@click.argument("image", metavar="IMAGE")
@click.pass_obj
def answer_(session: Session, image: str) -> None:
    """For IMAGE, answer a registry's challenge, {challenge, host, image, repository} on standard
    input, with the user's login: the importer asks for it (launchers/on-node/ask.py).
    """
    import sys

    from hpcstack.imagecache.ask import answer_line
    from hpcstack.imagecache.messages import MAX_LINE

    echo(answer_line(sys.stdin.buffer.readline(MAX_LINE), image, session.site))


@command.command("serve")
@click.option(
    "--socket", default="", metavar="PATH", help="Listen there instead of where site.yaml says."
)
@click.option(
    "--metrics",
    default="",
    metavar="FILE",
    help="Counters for Prometheus' textfile collector (*.prom).",
)
@click.pass_obj
def serve(session: Session, socket: str, metrics: str) -> None:
    """Run the service of this node, as the account that the cache belongs to. Each request is a
    line on stderr.
    """
    import signal

    from hpcstack.imagecache import serve as service
    from hpcstack.imagecache.counters import Counters
    from hpcstack.imagecache.layout import open_cache

    site, cache, runner = session.site, open_cache(session.site), session.runner
    cache.prepare()
    path = Path(socket or site.image_cache.socket)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with service.listen_on(path) as listening:
        say(f"serving {cache.top} on {path}")
        service.serve_socket(
            listening,
            lambda line, user: service.answer_request(line, user, cache, site, runner, say),
            Counters(Path(metrics) if metrics else None),
        )


@command.command("list")
@json_option
@click.pass_obj
def list_(session: Session, as_json: bool) -> None:
    """What is in the cache, and when it was last used. Its account sees it, and root."""
    from hpcstack.imagecache.layout import open_cache

    found = sorted(open_cache(session.site).entries().items(), key=lambda item: -item[1][1])
    document = [
        {
            "key": key,
            "image": one.image,
            "platform": one.platform,
            "bytes": one.size,
            "public": one.public,
            "used": used,
        }
        for key, (one, used) in found
    ]

    def text() -> str:
        rows = [
            (
                one.name,
                one.platform,
                f"{one.size / 1e6:.0f} MB",
                "all" if one.public else "who may pull it",
                _ago(used),
            )
            for _, (one, used) in found
        ]
        return format_table(rows, ("IMAGE", "PLATFORM", "SIZE", "FOR", "USED"))

    answer(document, as_json, text)


@command.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@json_option
@click.pass_obj
def gc(session: Session, dry_run: bool, as_json: bool) -> None:
    """Remove what the site does not keep (image_cache.keep_days, max_gb). The service does so
    before each import.
    """
    from hpcstack.imagecache.collect import choose_expired, collect_cache
    from hpcstack.imagecache.layout import open_cache

    cache, settings = open_cache(session.site), session.site.image_cache
    cache.prepare()
    bounds = (settings.keep_days, settings.max_gb * 1e9)
    going = (
        choose_expired(cache.entries(), time.time(), *bounds)
        if dry_run
        else collect_cache(cache, *bounds)
    )
    document = [
        {"key": one.key, "image": one.entry.image, "bytes": one.entry.size, "why": one.why}
        for one in going
    ]
    size = sum(one.entry.size for one in going)

    def text() -> str:
        rows = [(one.entry.name, f"{one.entry.size / 1e6:.0f} MB", one.why) for one in going]
        told = f"{'would go' if dry_run else 'removed'}: {len(going)}, {size / 1e9:.2f} GB\n"
        return (format_table(rows, ("IMAGE", "SIZE", "WHY")) if rows else "") + told

    answer(document, as_json, text)


def _ago(used: float) -> str:
    hours = max(time.time() - used, 0) / 3600
    return f"{hours:.0f} h ago" if hours < 48 else f"{hours / 24:.0f} days ago"
