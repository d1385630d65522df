"""`hpcstack verify`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_engines.py.
"""

from __future__ import annotations

from typing import Any

import click

from hpcstack.cli.session import (
    Session,
    answer,
    is_pattern,
    json_option,
    show_progress,
)
from hpcstack.cli.several import answer_each, can_be_loaded, choose_published_versions
from hpcstack.cli.trusting import check_pushed


@click.command("verify")
@click.argument("images", metavar="[IMAGE...]", nargs=-1)
@click.option(
    "--all",
    "how",
    flag_value="all",
    help="Read the image of every release, and check that it is what was published.",
)
@click.option(
    "--rate",
    default=0,
    type=click.IntRange(min=0),
    metavar="MB/S",
    show_default="no limit",
    help="Read no faster than this (--all).",
)
@click.option(
    "--most",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    show_default="all of them",
    help="Read only N images, those that were read longest ago (--all).",
)
@click.option(
    "--parity", "how", flag_value="parity", help="Check that two images are the same stack."
)
@click.option(
    "--reproducible",
    "how",
    flag_value="reproducible",
    help="Build a stack twice, and check that both images have the same bytes.",
)
@click.option(
    "--signature", "how", flag_value="signature", help="Check that the image's signature is good."
)
@click.option(
    "--from",
    "how",
    flag_value="from",
    help="Check an image in a registry, REGISTRY/NAME:TAG, by what `push` attached to it.",
)
@click.option(
    "--engine",
    default="",
    metavar="ENGINE",
    show_default="the site's",
    help="Build with this engine (--reproducible).",
)
@click.option(
    "--key",
    default="",
    metavar="FILE",
    show_default="the site's keys",
    help="Trust this public key (--signature, --from).",
)
@click.option(
    "--stack",
    default="",
    metavar="STACK",
    help="Require that it is signed as this stack (--signature of a file, --from).",
)
@click.option("--unsigned", is_flag=True, help="Check it although nobody vouches for it (--from).")
@click.option(
    "--platform",
    default="",
    metavar="PLATFORM",
    show_default="this machine's",
    help="Check the image for linux/amd64 or linux/arm64 (--from).",
)
@json_option
@click.pass_obj
def command(
    session: Session,
    images: tuple[str, ...],
    how: str,
    rate: int,
    most: int,
    engine: str,
    key: str,
    stack: str,
    unsigned: bool,
    platform: str,
    as_json: bool,
) -> None:
    """Check that images are intact, equivalent, reproducible or signed.

    Without an option, an image is compared with what was stored. IMAGE is a file, a stack,
    STACK@ENGINE, the beginning of a key, or a pattern such as 'pytorch/26.*': the image of each
    version that is published and matches it.
    """
    from hpcstack.core.errors import InputError

    if engine:
        from hpcstack.build.engines import check_name

        check_name(engine)
    if (rate or most) and how != "all":
        raise InputError(
            "--rate and --most go with --all",
            "hpcstack verify --all --rate 200 --most 5",
            page="repair-what-is-published",
        )
    if how == "all":
        _check_published(session, images, rate, most, as_json)
        return

    if how == "parity":
        if len(images) != 2:
            hint = "hpcstack verify --parity IMAGE IMAGE"
            raise InputError(f"name 2 images, not {len(images)}", hint, page="choose-an-engine")
        _check_parity(session, *images, as_json)
        return
    if how == "from":
        if len(images) != 1:
            hint = "hpcstack verify --from REGISTRY/NAME:TAG"
            raise InputError(f"name 1 image, not {len(images)}", hint, page="push-an-image")
        check_pushed(
            session,
            images[0],
            key,
            stack,
            unsigned=unsigned,
            platform=platform,
            as_json=as_json,
        )
        return
    if how == "reproducible":
        if len(images) != 1:
            hint = "hpcstack verify --reproducible STACK"
            raise InputError(f"name 1 stack, not {len(images)}", hint, page="choose-an-engine")
        _check_reproducible(session, images[0], engine, as_json)
        return

    _check_images(session, images, key, stack, signature=how == "signature", as_json=as_json)


def _check_parity(session: Session, one: str, other: str, as_json: bool) -> None:
    """Compare two images. Raise AnswerIsNo if they differ."""
    from hpcstack.build import verify
    from hpcstack.core.errors import AnswerIsNo

    with show_progress("comparing") as progress:
        # Both are found before one is read, so that a wrong name is reported at once.
        first, second = (session.find_image_file(name).path for name in (one, other))
        progress(f"reading {one} and {other}")
        verdict = verify.compare_images(first, second, session.runner)

    def text() -> str:
        lines = [f"compared {count} {what}" for what, count in verdict.compared.items()]
        lines.append("left out:")
        lines += [f"  {what}: {why}" for what, why in verdict.left_out.items()]
        lines += [f"DIFFERS {line}" for line in verdict.differ]
        lines.append("" if verdict.differ else "the same")
        return "\n".join(lines)

    document = {
        "same": not verdict.differ,
        "compared": verdict.compared,
        "left_out": verdict.left_out,
        "differ": verdict.differ,
    }
    answer(document, as_json, text)
    if verdict.differ:
        raise AnswerIsNo(f"{one} and {other} differ in {len(verdict.differ)} place(s)")


def _check_reproducible(session: Session, name: str, engine: str, as_json: bool) -> None:
    """Build NAME twice. Raise AnswerIsNo if the images have different bytes."""
    from hpcstack.build import verify
    from hpcstack.build.options import BuildOptions
    from hpcstack.build.request import request_build
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.resolve import make_lock

    recipe = session.recipe(name)
    with show_progress(f"building {name} twice") as progress:
        bench = session.workbench(progress)
        lock = make_lock.lock_to_build(recipe, bench)
        request = request_build(
            recipe, lock, session.site, session.runner, BuildOptions(engine=engine)
        )
        differ = verify.check_reproducible(request, bench)  # None: the same bytes

    document = {
        "stack": name,
        "engine": request.engine.name,
        "same_bytes": differ is None,
        "differ": differ or [],
    }
    answer(document, as_json, lambda: "the same bytes" if differ is None else "\n".join(differ))
    if differ is not None:
        raise AnswerIsNo(
            f"two builds of {name} with {request.engine.name} differ in {len(differ)} places"
        )


def _check_signature(session: Session, name: str, key: str, stack: str, as_json: bool) -> None:
    """Check an image's signature. Raise AnswerIsNo if it is not good."""
    from hpcstack.build.verify import check_signature
    from hpcstack.core.errors import AnswerIsNo

    image = session.find_image_file(name)
    good, said = check_signature(image, key, stack, session.site, session.store, session.runner)
    document = {"image": str(image.path), "good": good, "said": said}
    answer(document, as_json, lambda: f"{image.path}: {said}")
    if not good:
        raise AnswerIsNo(f"{image.path}: {said}", page="sign-images")


def _check_images(
    session: Session,
    images: tuple[str, ...],
    key: str,
    stack: str,
    *,
    signature: bool,
    as_json: bool,
) -> None:
    """Check that images are as they were stored, or with SIGNATURE that theirs are good."""
    from hpcstack.core.errors import InputError

    if not images:
        raise InputError("name an image", "hpcstack verify IMAGE, or hpcstack verify --all")
    chosen = choose_published_versions(session, images, can_be_loaded, "can be loaded")
    if signature and (len(chosen) > 1 or any(map(is_pattern, images))):
        if stack:
            raise InputError("--stack goes with one image", "hpcstack verify --signature IMAGE")
        _check_each_signature(session, chosen, key, as_json)
    elif signature:
        _check_signature(session, chosen[0], key, stack, as_json)
    elif len(chosen) > 1 or any(map(is_pattern, images)):
        _check_each_stored(session, chosen, as_json)
    else:
        _check_stored(session, chosen[0], as_json)


def _check_each_signature(session: Session, names: list[str], key: str, as_json: bool) -> None:
    """Check the signature of one image after another."""
    from hpcstack.build.verify import check_signature
    from hpcstack.core.errors import AnswerIsNo

    def check(name: str) -> dict[str, Any]:
        image = session.find_image_file(name)
        good, said = check_signature(image, key, "", session.site, session.store, session.runner)
        if not good:
            raise AnswerIsNo(said, page="sign-images")
        return {"said": said, "image": str(image.path), "good": good}

    answer_each("version", names, check, as_json=as_json)


def _check_each_stored(session: Session, names: list[str], as_json: bool) -> None:
    """Compare one image after another with what was stored."""
    from hpcstack.build.verify import check_stored

    def check(name: str) -> dict[str, Any]:
        found = session.find_image(name)
        check_stored(found, session.store)
        said = f"as it was stored, sha256 {found.sha256}"
        return {"said": said, "image": str(found.image), "sha256": found.sha256, "good": True}

    answer_each("version", names, check, as_json=as_json)


def _check_published(
    session: Session, images: tuple[str, ...], rate: int, most: int, as_json: bool
) -> None:
    """Read the images of all releases. Raise AnswerIsNo if one is not what was published."""
    from hpcstack.cli.reading import read_released_images
    from hpcstack.core.errors import AnswerIsNo, InputError, format_count

    if images:
        raise InputError("--all takes no image", "hpcstack verify --all, or hpcstack verify IMAGE")

    found = read_released_images(session, rate, most)

    def text() -> str:
        lines = []
        for one in found:
            line = f"{one.release}: {one.wrong or 'as it was published'}"
            if not one.wrong and not one.renewed:
                line += " (only its publisher can renew its seal)"
            lines.append(line)
        return "\n".join(lines or ["nothing is published"])

    answer([vars(one) for one in found], as_json, text)
    if wrong := [one for one in found if one.wrong]:
        first = wrong[0]
        count = format_count(len(wrong), "release")
        raise AnswerIsNo(
            f"{count} not as published: {first.release}: {first.wrong}",
            f"hpcstack remove {first.release}, and build and publish it again",
            page="repair-what-is-published",
        )


def _check_stored(session: Session, name: str, as_json: bool) -> None:
    """Compare an image with what was stored; `check_stored` raises if they differ."""
    from hpcstack.build.verify import check_stored

    found = session.find_image(name)
    check_stored(found, session.store)
    document = {
        "image": str(found.image),
        "stack": found.stack,
        "sha256": found.sha256,
        "good": True,
    }
    answer(document, as_json, lambda: f"{found.image}: as it was stored, sha256 {found.sha256}")
