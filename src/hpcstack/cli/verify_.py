"""`hpcstack verify`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, image_named, json_option, show_progress


@click.command("verify")
@click.argument("images", metavar="[IMAGE...]", nargs=-1)
@click.option(
    "--all",
    "how",
    flag_value="all",
    help="Read the image of every release: is it what was published?",
)
@click.option(
    "--rate",
    default=0,
    type=click.IntRange(min=0),
    metavar="MB/S",
    help="With --all: read no faster.",
)
@click.option(
    "--most",
    default=0,
    type=click.IntRange(min=0),
    metavar="N",
    help="With --all: so many images, those that were read longest ago.",
)
@click.option("--parity", "how", flag_value="parity", help="Two images: are they the same stack?")
@click.option(
    "--reproducible",
    "how",
    flag_value="reproducible",
    help="A stack: do two builds give the same bytes?",
)
@click.option("--signature", "how", flag_value="signature", help="Is the image's signature good?")
@click.option("--engine", default="", help="With --reproducible: the engine that builds.")
@click.option(
    "--key",
    default="",
    metavar="FILE",
    help="With --signature: the public key; the site's by default.",
)
@click.option(
    "--stack",
    default="",
    metavar="STACK",
    help="With --signature of a file: the stack that it must be.",
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
    as_json: bool,
) -> None:
    """Check that images are what was stored, are alike, build reproducibly, or are signed.

    IMAGE is a file, a stack, STACK@ENGINE or the beginning of a key.
    """
    from hpcstack.core.errors import InputError

    if engine:
        from hpcstack.build.engines import check_name

        check_name(engine)
    if (rate or most) and how != "all":
        raise InputError(
            "--rate and --most go with --all", "hpcstack verify --all --rate 200 --most 5"
        )
    if how == "all":
        _published(session, images, rate, most, as_json)
        return
    if how != "reproducible":
        images = tuple(image_named(session, one) for one in images)
    wanted = 2 if how == "parity" else 1
    if len(images) != wanted:
        hint = "hpcstack verify --parity IMAGE IMAGE" if wanted == 2 else "hpcstack verify IMAGE"
        raise InputError(f"name {wanted} image{'s' * (wanted - 1)}, not {len(images)}", hint)
    if how == "parity":
        _parity(session, images[0], images[1], as_json)
    elif how == "reproducible":
        _reproducible(session, images[0], engine, as_json)
    elif how == "signature":
        _signature(session, images[0], key, stack, as_json)
    else:
        _stored(session, images[0], as_json)


def _parity(session: Session, one: str, other: str, as_json: bool) -> None:
    from hpcstack.build import verify
    from hpcstack.core.errors import AnswerIsNo

    with show_progress("comparing") as progress:
        progress(f"reading {one} and {other}")
        verdict = verify.compare_images(one, other, session.store, session.runner)

    def text() -> str:
        lines = [f"compared {count} {what}" for what, count in verdict.compared.items()]
        lines += ["left out:"] + [f"  {what}: {why}" for what, why in verdict.left_out.items()]
        return "\n".join(
            [
                *lines,
                *(f"DIFFERS {line}" for line in verdict.differ),
                "" if verdict.differ else "the same",
            ]
        )

    document = {
        "same": not verdict.differ,
        "compared": verdict.compared,
        "left_out": verdict.left_out,
        "differ": verdict.differ,
    }
    answer(document, as_json, text)
    if verdict.differ:
        raise AnswerIsNo(f"{one} and {other} differ in {len(verdict.differ)} place(s)")


def _reproducible(session: Session, name: str, engine: str, as_json: bool) -> None:
    from hpcstack.build import verify
    from hpcstack.build.request import request_build
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.resolve import make_lock

    recipe, site = session.recipe(name), session.site
    with show_progress(f"building {name} twice") as progress:
        bench = session.workbench(progress)
        lock = make_lock.lock_to_build(recipe, bench)
        request = request_build(recipe, lock, site, session.runner, "", engine)
        differ = verify.check_reproducible(request, bench)
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


def _signature(session: Session, name: str, key: str, stack: str, as_json: bool) -> None:
    from hpcstack.build.verify import check_signature
    from hpcstack.core.errors import AnswerIsNo

    image, good, said = check_signature(
        name, key, stack, session.site, session.store, session.runner
    )
    answer({"image": str(image), "good": good, "said": said}, as_json, lambda: f"{image}: {said}")
    if not good:
        raise AnswerIsNo(f"{image}: {said}")


def _published(
    session: Session, images: tuple[str, ...], rate: int, most: int, as_json: bool
) -> None:
    from hpcstack.cli.reading import read_released_images
    from hpcstack.core.errors import AnswerIsNo, InputError, format_count

    if images:
        raise InputError("--all names no image", "hpcstack verify --all, or hpcstack verify IMAGE")
    found = read_released_images(session, rate, most)

    def text() -> str:
        lines = [
            f"{one.release}: {one.wrong or 'as it was published'}"
            + ("" if one.wrong or one.renewed else " (its seal is its publisher's to renew)")
            for one in found
        ]
        return "\n".join(lines or ["nothing is published"])

    answer([vars(one) for one in found], as_json, text)
    if wrong := [one for one in found if one.wrong]:
        first = wrong[0]
        raise AnswerIsNo(
            (
                f"{format_count(len(wrong), 'release')} not as published: {first.release}: "
                f"{first.wrong}"
            ),
            f"hpcstack remove {first.release}, and build and publish it again",
        )


def _stored(session: Session, name: str, as_json: bool) -> None:
    from hpcstack.build.verify import check_stored

    found = check_stored(name, session.store)
    document = {
        "image": str(found.image),
        "stack": found.stack,
        "sha256": found.sha256,
        "good": True,
    }
    answer(document, as_json, lambda: f"{found.image}: as it was stored, sha256 {found.sha256}")
