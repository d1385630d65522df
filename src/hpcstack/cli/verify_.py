"""`hpcstack verify`."""

from __future__ import annotations

import click

from hpcstack.cli.session import Session, answer, image_named, json_option, show_progress


@click.command("verify")
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@click.option("--parity", "how", flag_value="parity", help="Two images: are they the same stack?")
@click.option("--reproducible", "how", flag_value="reproducible", help="A stack: do two builds give the same bytes?")
@click.option("--signature", "how", flag_value="signature", help="Is the image's signature good?")
@click.option("--engine", default="", help="With --reproducible: the engine that builds.")
@click.option("--key", default="", metavar="FILE", help="With --signature: the public key; the site's by default.")
@click.option("--stack", default="", metavar="STACK", help="With --signature of a file: the stack that it must be.")
@json_option
@click.pass_obj
def command(
    session: Session, images: tuple[str, ...], how: str, engine: str, key: str, stack: str, as_json: bool
) -> None:
    """Check that images are what was stored, are alike, build reproducibly, or are signed.

    IMAGE is a file, a stack, STACK@ENGINE or the beginning of a key.
    """
    from hpcstack.core.errors import InputError

    if engine:
        from hpcstack.build.engines import check_name

        check_name(engine)
    if how != "reproducible":
        images = tuple(image_named(session, one) for one in images)
    wanted = 2 if how == "parity" else 1
    if len(images) != wanted:
        raise InputError(f"name {wanted} image{'s' * (wanted - 1)}, not {len(images)}")
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
    from hpcstack.oci.compare import LEFT_OUT
    from hpcstack.store.find import find_file

    with show_progress("comparing") as progress:
        progress(f"reading {one} and {other}")
        paths = [find_file(text, session.store) for text in (one, other)]
        verdict = verify.parity(paths[0], paths[1], session.runner)

    def text() -> str:
        lines = [f"compared {count} {what}" for what, count in verdict.compared.items()]
        lines += ["left out:"] + [f"  {what}: {why}" for what, why in LEFT_OUT.items()]
        return "\n".join(
            [*lines, *(f"DIFFERS {line}" for line in verdict.differ), "" if verdict.differ else "the same"]
        )

    document = {
        "same": not verdict.differ, "compared": verdict.compared, "left_out": LEFT_OUT, "differ": verdict.differ,
    }  # fmt: skip
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
        differ = verify.reproducible(request, bench)
    document = {"stack": name, "engine": request.engine.name, "same_bytes": differ is None, "differ": differ or []}
    answer(document, as_json, lambda: "the same bytes" if differ is None else "\n".join(differ))
    if differ is not None:
        raise AnswerIsNo(f"two builds of {name} with {request.engine.name} differ in {len(differ)} places")


def _signature(session: Session, name: str, key: str, stack: str, as_json: bool) -> None:
    from hpcstack.build import verify
    from hpcstack.core.errors import AnswerIsNo
    from hpcstack.store import signing
    from hpcstack.store.find import find_file

    image, keys = find_file(name, session.store), session.site.signatures.keys
    what = verify.statement(name, session.store, session.runner, stack)
    if keys and not key and image.suffix != ".sif":
        good, said = signing.verify_by(image, keys, session.runner, what)
    else:
        good, said = signing.verify(image, key, session.runner, what)
    answer({"image": str(image), "good": good, "said": said}, as_json, lambda: f"{image}: {said}")
    if not good:
        raise AnswerIsNo(f"{image}: {said}")


def _stored(session: Session, name: str, as_json: bool) -> None:
    from hpcstack.build import verify
    from hpcstack.core.errors import StoreError
    from hpcstack.core.files import digest_of
    from hpcstack.releases.records import releases
    from hpcstack.store.find import find_stored

    found = find_stored(name, session.store)
    digest = digest_of(found.image)
    if digest != found.sha256:
        raise StoreError(f"{found.image} has other bytes than were stored", f"hpcstack build --no-cache {found.stack}")
    if (own := verify.own_name(found.image, session.runner)) != found.stack:
        raise StoreError(f"{found.image} is stored as {found.stack} and says it is {own or 'no stack'}", "build again")
    for release, record in releases(session.store):
        if record["key"] == found.key and record.get("sha256", digest) != digest:
            raise StoreError(f"{found.image} is whole, but {release} was published with {record['sha256'][:12]}",
                             f"bring the old one back from a backup, or hpcstack remove {release}")  # fmt: skip
    document = {"image": str(found.image), "stack": own, "sha256": digest, "good": True}
    answer(document, as_json, lambda: f"{found.image}: as it was stored, sha256 {digest}")
