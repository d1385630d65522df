"""`hpcstack cache`: one import of each image for the whole cluster.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_image_cache.py.
"""

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
    """Share one import of each image among nodes and users (cache get, serve, ...).

    The cache is described by image_cache in site.yaml, and in docs/how-to/set-up-the-image-cache.md.
    """


@command.command("get")
@click.argument("image", metavar="IMAGE")
@json_option
@click.pass_obj
def get(session: Session, image: str, as_json: bool) -> None:
    """Print the path of IMAGE in the cache.

    An image that is not there yet is imported first. You need to be able to pull it with your own
    login. Exit code 8: the cache does not serve this image, or this node.
    """
    from hpcstack.imagecache.ask import ask_service

    with show_progress(f"asking for {image}", "") as progress:
        given = ask_service(image, session.site, progress)
    answer(given, as_json, lambda: given["path"])


@command.command("answer", hidden=True)
@click.argument("image", metavar="IMAGE")
@click.pass_obj
def answer_(session: Session, image: str) -> None:
    """Answer a registry's challenge for IMAGE with the user's login.

    The challenge, {challenge, host, image, repository}, comes as a line on standard input. Pyxis's
    importer calls this verb on the node (launchers/on-node/ask.py).
    """
    import sys

    from hpcstack.imagecache.ask import answer_line
    from hpcstack.imagecache.messages import MAX_LINE

    echo(answer_line(sys.stdin.buffer.readline(MAX_LINE), image, session.site))


@command.command("serve")
@click.option(
    "--socket",
    default="",
    metavar="PATH",
    show_default="image_cache.socket of site.yaml",
    help="Listen on this socket.",
)
@click.option(
    "--metrics",
    default="",
    metavar="FILE",
    help="Write counters for Prometheus' textfile collector to this file (*.prom).",
)
@click.pass_obj
def serve(session: Session, socket: str, metrics: str) -> None:
    """Run this node's service, as the account that owns the cache.

    Each request is logged as a line on stderr.
    """
    import signal

    from hpcstack.imagecache import serve as service
    from hpcstack.imagecache.collect import sweep_unswept
    from hpcstack.imagecache.counters import Counters
    from hpcstack.imagecache.layout import open_cache

    site = session.site
    runner = session.runner
    cache = open_cache(site)
    cache.prepare()

    path = Path(socket or site.image_cache.socket)
    # `session.runner` turns TERM into an interrupt, for verbs that undo what they began. The
    # service simply ends.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with service.listen_on(path) as listening:
        say(f"serving {cache.top} on {path}")
        service.serve_socket(
            listening,
            lambda line, user: service.answer_request(line, user, cache, site, runner, say),
            Counters(Path(metrics) if metrics else None),
            lambda: sweep_unswept(cache),
        )


@command.command("list")
@json_option
@click.pass_obj
def list_(session: Session, as_json: bool) -> None:
    """List the images in the cache, and when each was last used.

    Only the account that owns the cache, and root, can see it.
    """
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
                _format_age(used),
            )
            for _, (one, used) in found
        ]
        return format_table(rows, ("IMAGE", "PLATFORM", "SIZE", "FOR", "USED"))

    answer(document, as_json, text)


@command.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
@click.pass_obj
def gc(session: Session, dry_run: bool, as_json: bool) -> None:
    """Remove images that are too old or too many for the site.

    The limits are image_cache.keep_days and image_cache.max_gb in site.yaml. The service also
    removes images before each import.
    """
    from hpcstack.core.errors import format_count
    from hpcstack.imagecache.collect import choose_expired, collect_cache
    from hpcstack.imagecache.layout import open_cache

    cache = open_cache(session.site)
    cache.prepare()

    settings = session.site.image_cache
    limits = (settings.keep_days, settings.max_gb * 1e9)  # days, bytes
    if dry_run:
        going = choose_expired(cache.entries(), time.time(), *limits)
        done = "would remove"
    else:
        going = collect_cache(cache, *limits)
        done = "removed"

    document = [
        {"key": one.key, "image": one.entry.image, "bytes": one.entry.size, "why": one.why}
        for one in going
    ]
    size = sum(one.entry.size for one in going)

    def text() -> str:
        rows = [(one.entry.name, f"{one.entry.size / 1e6:.0f} MB", one.why) for one in going]
        last = f"{done} {format_count(len(going), 'image')}, {size / 1e9:.2f} GB\n"
        if not rows:
            return last
        return format_table(rows, ("IMAGE", "SIZE", "WHY")) + last

    answer(document, as_json, text)


def _format_age(used: float) -> str:
    """Return how long ago USED (seconds since the epoch) was."""
    hours = max(time.time() - used, 0) / 3600
    if hours < 48:
        return f"{hours:.0f} h ago"
    return f"{hours / 24:.0f} days ago"
