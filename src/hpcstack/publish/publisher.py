"""Publish, promote, roll back, retire, remove, undo: each is prepared whole, judged, and committed
as one change.

What is interrupted before the commit leaves nothing that anybody sees; after it, whoever comes next
finishes it.
"""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack import __version__
from hpcstack.core import descriptors, sharing
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import read_text, without_links, write_tree
from hpcstack.core.lease import hold_lease
from hpcstack.publish.gate import describe_report
from hpcstack.publish.gc import find_users
from hpcstack.publish.load_test import try_loading
from hpcstack.publish.modulefile import (
    Network,
    Release,
    describe_fits,
    modulefile_tcl,
    render_modulefile,
    render_wrappers,
)
from hpcstack.publish.publishable import Published, check_publishable, dates_of
from hpcstack.publish.spider import rebuild_cache
from hpcstack.releases import changes
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.inventory import inventory_files
from hpcstack.releases.journal import name_prepared
from hpcstack.releases.layout import dates_file
from hpcstack.releases.ledger import CHANNELS, Entry, Event, Ledger
from hpcstack.releases.permissions import Permissions
from hpcstack.releases.records import KEPT_FILES, RECORD, RELEASE, release_folder
from hpcstack.releases.seal import (
    SEAL,
    Seal,
    read_seal,
    renew_seal,
    seal_text,
    take_seal,
    why_changed,
)
from hpcstack.releases.tree import Tree, TreeChange
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store.store import MAX_RECORD, Store

if TYPE_CHECKING:
    from hpcstack.core.process import Runner
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

Say = Callable[[str], None]


@dataclass(frozen=True)
class Publisher:
    """Who publishes where: a site's store and module tree."""

    site: Site
    store: Store
    runner: Runner
    say: Say
    slurm: bool = True  # ask Slurm whose jobs use what is removed

    @property
    def marks(self) -> Permissions:
        own = self.site.modules
        return Permissions(
            sharing.shared_mode(int(own.mode, 8)) & 0o664,
            own.group or self.site.group * sharing.is_shared(),
        )

    @property
    def tree(self) -> Tree:
        return Tree(
            self.site.module_tree, self.marks, self.site.modules.direct, self.store.releases
        )

    # -- the verbs
    def publish(
        self,
        stack: Stack,
        artifact: Artifact,
        channel: str,
        report: Report | None,
        extra: dict[str, str],
        override: str = "",
        pinned: str | None = None,
        reason: str = "",
        recipe_commit: str = "",
    ) -> Published:
        """ARTIFACT as a release of STACK in CHANNEL. A release that already is this image is not
        made again.

        EXTRA are {file name: text} for the release's folder; OVERRIDE is why it is published though
        the gate is shut; PINNED the version that stays the default; REASON stands in the history,
        RECIPE_COMMIT in the release's record.
        """
        if channel not in CHANNELS:
            raise InputError(f"no channel {channel!r}", f"known: {', '.join(CHANNELS)}")
        if self.store.below:
            raise StoreError(
                f"{self.store.below.top} is not yours to write, and what is published lies there",
                f"your own image needs no module: hpcstack launch {artifact.stack} -- PROGRAM",
            )
        tree = self.tree
        with self._held(stack.name) as ledger:
            check_publishable(ledger, stack)
            release, entry = self.prepared(ledger, stack, artifact, channel, report, override)
            if known := self.already(ledger, entry):
                self.renew_image_seal(stack.name, known, artifact)
                if tree.stale:
                    self._cached()
                return self._answer(ledger, known, release, "when it was published", new=False)
            if why := self._without_nodes(artifact):
                self.say(f"NOTE: {why}")
            seal = self._sealed(artifact)
            attached = {**extra, **_reported(report), SEAL: seal_text(seal)}
            part, record = self._write(release, artifact, attached, recipe_commit)
            try:
                checked = try_loading(release, self.runner, self.site.modules.check_as)
            except HpcstackError:
                descriptors.remove_tree(part)
                raise
            self.say(f"module {release.name}: {checked}")
            event = self._event(
                "publish" if channel == "testing" else "promote", entry.release, override or reason
            )
            base = ledger if pinned is None else replace(ledger, pinned=pinned)
            after = changes.publish_entry(base, entry, dates_of(stack), event)
            tree.commit(
                TreeChange(
                    after, self.files(release), "publish", ((str(part), release.folder, record),)
                )
            )
        self._readable(release)
        self._cached()
        return self._answer(after, entry, release, checked, new=True)

    def change(
        self,
        name: str,
        verb: str,
        act: Callable[[Ledger, Event], Ledger],
        reason: str = "",
        *,
        force: bool = False,
    ) -> Ledger:
        """The ledger of NAME after ACT, which is committed; nothing is written where ACT refuses,
        or users would lose what is in production and FORCE does not say that it is meant.
        """
        with self._held(name) as ledger:
            after = self.changed(ledger, verb, act, reason, force=force)
            if replace(after, events=ledger.events) == ledger:
                # nothing changes: no row in the history, and `undo` takes back what was before
                return ledger
            gone = tuple(
                file
                for one in changes.list_going(ledger, after)
                for file in self._modulefiles(name, one.release)
            )
            self.tree.commit(TreeChange(after, self._back(ledger, after), verb, gone=gone))
        self._cached()
        return after

    def changed(
        self,
        ledger: Ledger,
        verb: str,
        act: Callable[[Ledger, Event], Ledger],
        reason: str,
        *,
        force: bool,
    ) -> Ledger:
        """LEDGER after ACT, judged, and not committed."""
        if not ledger.entries:
            raise InputError(f"nothing is published as {ledger.name!r}", "hpcstack status")
        after = act(ledger, self._event(verb, "", reason))
        self._judge(ledger, after, verb, force=force)
        return after

    def _judge(self, before: Ledger, after: Ledger, verb: str, *, force: bool) -> None:
        """InputError where AFTER takes from users what is in production, in use, or names an image
        that is gone.
        """
        if (lost := changes.find_harm(before, after, stamp_today())) and not force:
            raise InputError(
                "\n".join(lost),
                f"if that is meant: hpcstack {verb} as before, with --force --reason WHY",
            )
        changed = [
            release
            for version, release in after.aliases.items()
            if before.aliases.get(version) != release
        ]
        for release in {*changed, *(one.release for one in changes.list_coming(before, after))}:
            entry, artifact = after.entry(release), self.store.artifact(after.entry(release).key)
            if not artifact or artifact.sha256 != entry.sha256:
                what = "is gone from the store" if not artifact else "is another than was published"
                raise InputError(
                    f"{after.name}/{release} would be loaded, and its image {what}",
                    f"hpcstack build {after.name}-{entry.version}, and publish it",
                )
        taken = changes.list_going(before, after)
        users = find_users(self.runner, slurm=self.slurm) if taken else []
        for one in taken:
            if who := changes.used_by(before, one, users):
                more = f" and {len(who) - 5} more" if len(who) > 5 else ""
                raise InputError(
                    f"{before.name}/{one.release} is in use by {', '.join(who[:5])}{more}",
                    "wait for them, or warn its users: hpcstack retire",
                )

    def _modulefiles(self, name: str, release: str) -> list[str]:
        """The paths below the root of a release's modulefiles."""
        homes = self.tree.homes(name)
        return [
            f"{home.relative_to(self.tree.root)}/{name}/{release}{suffix}"
            for suffix, home in homes.items()
        ]

    def _back(self, before: Ledger, after: Ledger) -> dict[str, str]:
        """{path below the root: text} of the modulefiles of what was removed and comes back: its
        folder has them.
        """
        out = {}
        for one in changes.list_coming(before, after):
            folder = self.folder(after.name, one.release)
            for path, kept in zip(
                self._modulefiles(after.name, one.release), KEPT_FILES, strict=True
            ):
                try:
                    out[path] = read_text(folder / kept, MAX_RECORD)
                except OSError as error:
                    raise StoreError(
                        f"{folder / kept} cannot be read: {error.strerror}",
                        f"hpcstack publish {after.name}-{one.version}",
                    ) from None
        return out

    # -- the parts

    def prepared(
        self,
        ledger: Ledger,
        stack: Stack,
        artifact: Artifact,
        channel: str,
        report: Report | None,
        override: str = "",
    ) -> tuple[Release, Entry]:
        """The release that would be next, and its entry."""
        version = stack.release_version
        name = ledger.next(version, self._taken(stack.name))
        tested = describe_report(report) if report else ()
        release = Release(
            stack=stack,
            number=int(name.rpartition("-r")[2]),
            image=str(artifact.image),
            sha256=artifact.sha256,
            folder=str(self.folder(stack.name, name)),
            base=artifact.base,
            stand_in=artifact.stand_in,
            channel=channel,
            adopted=artifact.adopted,
            dates=str(dates_file(self.site.module_tree, stack.name, version)),
            holds=tuple(artifact.facts.items()),
            pip=tuple(artifact.pip.items()),
            fits=describe_fits(self.site, artifact.platform, artifact.environment),
            tested=tested,
            override=override,
            environment=artifact.environment,
            mounts=(*self.site.mounts, *artifact.mounts),
            network=Network.of(self.site, artifact.environment),
            runtime=self.site.runtime,
            without_gpus=self.site.without_gpus,
            platform=artifact.platform,
        )
        entry = Entry(
            release=name,
            version=version,
            channel=channel,
            key=artifact.key,
            sha256=artifact.sha256,
            made=stamp_now(),
            by=name_caller(),
            shown=_shown(release),
            tested=dict(tested),
            override=override,
        )
        return release, entry

    def files(self, release: Release) -> dict[str, str]:
        """{path below the root: text} of the modulefiles."""
        name, texts = (
            release.stack.name,
            {".lua": render_modulefile(release), "": modulefile_tcl(release)},
        )
        homes = self.tree.homes(name)
        return {
            f"{homes[suffix].relative_to(self.site.module_tree)}/{name}/{release.version}{suffix}": text
            for suffix, text in texts.items()
        }

    def folder(self, name: str, release: str) -> Path:
        return release_folder(self.store, name, release)

    def already(self, ledger: Ledger, entry: Entry) -> Entry | None:
        """The newest release of ENTRY's version and channel, if it is what ENTRY is, whole, and
        meant by the alias.
        """
        live = [
            one
            for one in ledger.of(entry.version)
            if one.state == "live" and one.channel == entry.channel
        ]
        if not live or live[-1].shown != entry.shown:
            return None
        last, meant = live[-1], ledger.aliased(entry.version)
        if meant and meant.release != last.release and meant.channel != "production":
            return None
        if meant and meant.release != last.release and entry.channel == "production":
            return None
        homes = self.tree.homes(ledger.name)
        files = [home / ledger.name / f"{last.release}{suffix}" for suffix, home in homes.items()]
        files += [self.folder(ledger.name, last.release) / name for name in (RECORD, "libexec/run")]
        return last if all(path.exists() for path in files) else None

    def _taken(self, name: str) -> list[str]:
        """Releases that lie in the store already, of whatever module tree."""
        parent = self.folder(name, "x").parent
        names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        return [re.sub(r"^\.(.*)\.[0-9a-f]{12}\.part$", r"\1", one) for one in names]

    @contextlib.contextmanager
    def _held(self, name: str) -> Iterator[Ledger]:
        """NAME's ledger, for this process alone.

        What any interrupted publisher left is finished.
        """
        tree = self.tree
        releases = self.folder(name, "x").parent
        if sharing.is_shared():
            sharing.make_shared_folder(self.site.module_tree)
            sharing.open_old(self.site.module_tree)
        with tree.hold(name, self.say):
            ledger = tree.ledger(name, to_change=True)
            with self.store.acting("the release was not written"):
                self.marks.folder(self.store.top, releases)
            with hold_lease(
                releases / ".lease",
                lambda who: self.say(f"waiting for another publisher of {name}: {who}"),
            ):
                self._sweep(releases)
                yield ledger

    def _sweep(self, releases: Path) -> None:
        """Releases of this tree that were begun and never committed: the leases are held, and no
        journal is left.
        """
        ending = name_prepared(releases / "x", self.site.module_tree).name[2:]
        for name in descriptors.names_in(releases):
            if name.startswith(".") and name.endswith(ending):
                descriptors.remove_tree(releases / name)

    def _write(
        self, release: Release, artifact: Artifact, extra: dict[str, str], recipe_commit: str
    ) -> tuple[Path, str]:
        """The release's folder beside its place, which the commit renames, and its record."""
        final = Path(release.folder)
        part = name_prepared(final, self.site.module_tree)
        record = {
            "format": RELEASE.name,
            "release": release.name,
            "channel": release.channel,
            "key": artifact.key,
            "sha256": artifact.sha256,
            "lock_sha256": artifact.lock_sha256,
            "made": stamp_now(),
            "by": name_caller(),
            "fits": release.fits,
            "tested": release.tested,
            "override": release.override,
            "hpcstack": __version__,
            "recipe_commit": recipe_commit,
            "stack": release.stack.model_dump(mode="json", by_alias=True),
        }
        text = json.dumps(record, indent=1) + "\n"
        modulefiles = (render_modulefile(release), modulefile_tcl(release))
        files = {
            **render_wrappers(release),
            **extra,
            **dict(zip(KEPT_FILES, modulefiles, strict=True)),
            RECORD: text,
        }
        files |= inventory_files(
            release.name, {path: one for path, one in files.items() if path != SEAL}
        )
        with self.store.acting("the release was not written"):
            without_links(self.store.top, final.parent, ours=True)
            descriptors.make_new_folder(
                part
            )  # ours alone until it is whole: what was left there is swept
            with descriptors.pin_path(part) as own:
                write_tree(own, files)
                descriptors.make_folder(own / "bin")
                self.marks.mark_tree(own)
        return part, text

    def _sealed(self, artifact: Artifact) -> Seal:
        """The seal of ARTIFACT's image, all of which is read.

        StoreError where its bytes are not what was built.
        """
        self.say(f"reading {artifact.image}")
        seal = take_seal(artifact.image)
        if seal.sha256 != artifact.sha256:
            raise StoreError(
                f"{artifact.image} is not what was built: its sha256 differs",
                f"hpcstack build --no-cache {artifact.stack}",
            )
        return seal

    def renew_image_seal(self, name: str, entry: Entry, artifact: Artifact) -> None:
        """The seal of a release whose image was built again, to the same bytes, or came back from a
        backup.
        """
        if why_changed(artifact, read_seal(self.store, name, entry.release)):
            renew_seal(self.store, name, entry.release, self._sealed(artifact))

    def _without_nodes(self, artifact: Artifact) -> str:
        """What to say of an image that no node of the site can run; empty where one can, or the
        site names none.
        """
        kinds = {node.architecture for node in self.site.node_types.values()}
        kind = KERNEL_NAMES[artifact.platform]
        if not kinds or kind in kinds:
            return ""
        return f"the image is for {kind}, and the site's nodes are {' and '.join(sorted(kinds))}"

    def _readable(self, release: Release) -> None:
        """Others reach the image and the wrappers, where the site's mode says that they do."""
        for path in (Path(release.image), Path(release.folder) / "libexec/run"):
            if wall := self.marks.hidden_from(path):
                self.say(
                    f"NOTE: others cannot read {path}: {wall} is closed to them (modes, or "
                    f"`modules.mode`)"
                )

    def _event(self, verb: str, release: str, reason: str) -> Event:
        return Event(stamp_now(), name_caller(), verb, release, reason=reason)

    def _cached(self) -> None:
        """The spider cache as the tree is now; a cache that cannot be made is told, and made by the
        next verb.
        """
        self.say(rebuild_cache(self.tree, self.runner))

    def _answer(
        self, ledger: Ledger, entry: Entry, release: Release, checked: str, *, new: bool
    ) -> Published:
        tree, name = self.tree, ledger.name
        takes = ledger.aliases.get(entry.version) == entry.release
        alias = f"{name}/{entry.version}"
        return Published(
            f"{name}/{entry.release}",
            alias,
            entry.channel,
            takes,
            f"{name}/{ledger.default}",
            tree.how(name, entry.version if takes else entry.release),
            str(tree.core),
            str(tree.home(name) / name / f"{entry.release}.lua"),
            release.image,
            release.sha256,
            new,
            checked,
        )


def stamp_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def name_caller() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.geteuid())


def _shown(release: Release) -> str:
    """A digest of what a release is, but for its number and what was measured since."""
    plain = replace(release, number=0, folder="", tested=(), override="")
    texts = [
        render_modulefile(plain),
        modulefile_tcl(plain),
        *(f"{path}\n{text}" for path, text in sorted(render_wrappers(plain).items())),
    ]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _reported(report: Report | None) -> dict[str, str]:
    return (
        {"report.json": json.dumps(report.model_dump(mode="json"), indent=1) + "\n"}
        if report
        else {}
    )
