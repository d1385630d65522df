"""The verbs that change what is published: publish, promote, roll back, retire, remove, undo.

Each verb prepares its change completely, checks it, and commits it as one change. A verb that is
interrupted before the commit leaves nothing that a user can see. After the commit has begun, the
next verb finishes it.

Tested in tests/unit/releases/test_changes.py and tests/integration/test_publishing.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcstack import __version__
from hpcstack.core import descriptors
from hpcstack.core.clock import read_clock
from hpcstack.core.errors import HpcstackError, InputError, StoreError
from hpcstack.core.files import read_text, without_links, write_tree
from hpcstack.core.lease import hold_lease
from hpcstack.core.people import name_caller
from hpcstack.publish.audit import describe_vulnerabilities
from hpcstack.publish.gate import KNOWN_VULNERABILITIES, describe_report
from hpcstack.publish.gc import find_users
from hpcstack.publish.load_test import try_loading
from hpcstack.publish.modulefile import (
    Network,
    Release,
    describe_fits,
    render_modulefile,
    render_modulefile_tcl,
    render_wrappers,
)
from hpcstack.publish.publishable import Published, check_publishable, choose_dates
from hpcstack.publish.spider import rebuild_cache
from hpcstack.releases import changes
from hpcstack.releases.inputs import stamp_today
from hpcstack.releases.inventory import render_inventory_files
from hpcstack.releases.journal import name_prepared
from hpcstack.releases.layout import name_dates_file
from hpcstack.releases.ledger import CHANNELS, Entry, Event, Ledger
from hpcstack.releases.permissions import Permissions
from hpcstack.releases.records import KEPT_FILES, RECORD, RELEASE, name_release_folder
from hpcstack.releases.seal import (
    SEAL,
    Seal,
    explain_change,
    read_seal,
    renew_seal,
    seal_text,
    take_seal,
)
from hpcstack.releases.tree import Tree, TreeChange
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.store.store import MAX_RECORD, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hpcstack.core.process import Runner
    from hpcstack.core.progress import Say
    from hpcstack.recipe.model import Stack
    from hpcstack.report import Report
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact


@dataclass(frozen=True)
class Publisher:
    """A site's store and module tree, with what is needed to publish there."""

    site: Site
    store: Store
    runner: Runner
    say: Say
    slurm: bool = True  # before a release is removed, ask Slurm which jobs use it

    @property
    def marks(self) -> Permissions:
        """The modes and the group of whatever is published at this site."""
        own = self.site.modules
        sharing = self.site.sharing
        mode = int(own.mode, 8)
        return Permissions(
            sharing.widen_mode(mode) & 0o664,
            own.group or self.site.group * sharing.has_group,
            opens_folders=sharing.has_group or bool(mode & 0o020),
        )

    @property
    def tree(self) -> Tree:
        return Tree(
            self.site.module_tree,
            self.marks,
            self.site.modules.direct,
            self.store.releases,
            self.site.sharing,
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
        """Publish ARTIFACT as a release of STACK in CHANNEL.

        Where the newest release is this very image, no new one is made. EXTRA holds {file name:
        text} for the release's folder. OVERRIDE is why it is published although the gate is shut.
        PINNED is the version that stays the default. REASON goes into the history, RECIPE_COMMIT
        into the release's record.
        """
        if channel not in CHANNELS:
            raise InputError(f"no channel {channel!r}", f"known: {', '.join(CHANNELS)}")
        if self.store.below:
            raise StoreError(
                f"{self.store.below.top} is not yours to write, and what is published lies there",
                f"your own image needs no module: hpcstack launch {artifact.stack} -- PROGRAM",
                page="group-of-administrators",
            )

        tree = self.tree
        with self._hold_ledger(stack.name) as ledger:
            check_publishable(ledger, stack)
            release, entry = self.prepared(ledger, stack, artifact, channel, report, override)

            known = self.already(ledger, entry)
            if known:
                self.renew_image_seal(stack.name, known, artifact)
                if tree.stale:
                    self._rebuild_cache()
                return self._describe_published(
                    ledger, known, release, "when it was published", new=False
                )

            why = self._explain_missing_nodes(artifact)
            if why:
                self.say(f"NOTE: {why}")
            seal = self._seal_image(artifact)
            attached = {**extra, **_report_files(report), SEAL: seal_text(seal)}
            part, record = self._write_folder(release, artifact, attached, recipe_commit)

            try:
                checked = try_loading(release, self.runner, self.site.modules.check_as)
            except HpcstackError:
                descriptors.remove_tree(part)
                raise
            self.say(f"module {release.name}: {checked}")

            verb = "publish" if channel == "testing" else "promote"
            event = self._make_event(verb, entry.release, override or reason)
            base = ledger if pinned is None else replace(ledger, pinned=pinned)
            after = changes.publish_entry(base, entry, choose_dates(stack), event)
            moves = ((str(part), release.folder, record),)
            tree.commit(TreeChange(after, self.files(release), "publish", moves))

        self._note_unreadable(release)
        self._rebuild_cache()
        return self._describe_published(after, entry, release, checked, new=True)

    def change(
        self,
        name: str,
        verb: str,
        act: Callable[[Ledger, Event], Ledger],
        reason: str = "",
        *,
        force: bool = False,
    ) -> Ledger:
        """Commit what ACT makes of the ledger of NAME, and return the new ledger.

        Nothing is written where ACT refuses, nor where users would lose something in production
        and FORCE does not say that this is meant.
        """
        with self._hold_ledger(name) as ledger:
            after = self.changed(ledger, verb, act, reason, force=force)
            if replace(after, events=ledger.events) == ledger:
                # Nothing changes, so the history gets no event: `undo` would otherwise take back
                # this event instead of the last real change.
                return ledger

            gone = tuple(
                path
                for entry in changes.list_going(ledger, after)
                for path in self._list_modulefiles(name, entry.release)
            )
            returning = self._read_returning_modulefiles(ledger, after)
            self.tree.commit(TreeChange(after, returning, verb, gone=gone))

        self._rebuild_cache()
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
        """Return LEDGER after ACT, checked but not committed."""
        if not ledger.entries:
            raise InputError(f"nothing is published as {ledger.name!r}", "hpcstack status")
        after = act(ledger, self._make_event(verb, "", reason))
        self._check_change(ledger, after, verb, force=force)
        return after

    def _check_change(self, before: Ledger, after: Ledger, verb: str, *, force: bool) -> None:
        """Raise InputError where the change from BEFORE to AFTER must not be made.

        Reasons are: users would get what no second person has approved, where the site wants that;
        they would lose something in production (which FORCE allows); a release that would be loaded
        has no image any more or another one; a release that goes is in use.
        """
        if self.site.modules.approve == "other":
            unapproved = changes.find_unapproved(before, after)
            if unapproved:
                raise InputError(
                    "\n".join(unapproved),
                    "let another publisher promote it: hpcstack promote NAME/VERSION-rN",
                    page="promote-a-release",
                )
        lost = changes.find_harm(before, after, stamp_today())
        if lost and not force:
            raise InputError(
                "\n".join(lost),
                f"if that is meant: hpcstack {verb} as before, with --force --reason WHY",
                page="roll-back",
            )

        to_be_loaded = {entry.release for entry in changes.list_coming(before, after)}
        for version, release in after.aliases.items():
            if before.aliases.get(version) != release:
                to_be_loaded.add(release)
        for release in to_be_loaded:
            self._check_image(after, release)

        going = changes.list_going(before, after)
        if not going:
            return
        users = find_users(self.runner, slurm=self.slurm)
        for entry in going:
            who = changes.used_by(before, entry, users)
            if who:
                more = f" and {len(who) - 5} more" if len(who) > 5 else ""
                raise InputError(
                    f"{before.name}/{entry.release} is in use by {', '.join(who[:5])}{more}",
                    "wait for them, or warn its users: hpcstack retire",
                    page="retire-a-release",
                )

    def _check_image(self, ledger: Ledger, release: str) -> None:
        """Raise InputError where the image of RELEASE is gone, or another than was published."""
        entry = ledger.entry(release)
        artifact = self.store.artifact(entry.key)
        if artifact and artifact.sha256 == entry.sha256:
            return
        what = "is not the one that was published" if artifact else "is gone from the store"
        raise InputError(
            f"{ledger.name}/{release} would be loaded, and its image {what}",
            f"hpcstack build {ledger.name}-{entry.version}, and publish it",
            page="repair-what-is-published",
        )

    def _list_modulefiles(self, name: str, release: str) -> list[str]:
        """Return the paths of a release's modulefiles, relative to the root of the tree."""
        homes = self.tree.homes(name)
        return [
            f"{home.relative_to(self.tree.root)}/{name}/{release}{suffix}"
            for suffix, home in homes.items()
        ]

    def _read_returning_modulefiles(self, before: Ledger, after: Ledger) -> dict[str, str]:
        """Return {path below the root: text} of modulefiles that were removed and come back.

        Each release keeps a copy of its modulefiles in its own folder.
        """
        out = {}
        for entry in changes.list_coming(before, after):
            folder = self.folder(after.name, entry.release)
            paths = self._list_modulefiles(after.name, entry.release)
            for path, kept in zip(paths, KEPT_FILES, strict=True):
                try:
                    out[path] = read_text(folder / kept, MAX_RECORD, publishers=self.store.sharing)
                except OSError as error:
                    raise StoreError(
                        f"{folder / kept} cannot be read: {error.strerror}",
                        f"hpcstack publish {after.name}-{entry.version}",
                        page="repair-what-is-published",
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
        """Return the release that would be published next, and its entry in the ledger."""
        version = stack.release_version
        name = ledger.next(version, self._list_taken(stack.name))
        tested = describe_report(report) if report else ()
        known = describe_vulnerabilities([artifact], self.site)
        tested += tuple((KNOWN_VULNERABILITIES, said) for said in known.values())

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
            unlisted=tuple(artifact.unlisted),
            dates=str(name_dates_file(self.site.module_tree, stack.name, version)),
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
            shown=_digest_of_contents(release),
            tested=dict(tested),
            override=override,
        )
        return release, entry

    def files(self, release: Release) -> dict[str, str]:
        """Return {path below the root: text} of the modulefiles of RELEASE."""
        name = release.stack.name
        homes = self.tree.homes(name)
        texts = {".lua": render_modulefile(release), "": render_modulefile_tcl(release)}
        out = {}
        for suffix, text in texts.items():
            home = homes[suffix].relative_to(self.site.module_tree)
            out[f"{home}/{name}/{release.version}{suffix}"] = text
        return out

    def folder(self, name: str, release: str) -> Path:
        return name_release_folder(self.store, name, release)

    def already(self, ledger: Ledger, entry: Entry) -> Entry | None:
        """Return the release that already is what ENTRY would be; None where there is none.

        That is the newest live release of ENTRY's version and channel, if it has the same contents,
        all its files are there, and the version means it.
        """
        live = [
            one
            for one in ledger.of(entry.version)
            if one.state == "live" and one.channel == entry.channel
        ]
        if not live or live[-1].shown != entry.shown:
            return None

        last = live[-1]
        meant = ledger.aliased(entry.version)
        # Where the version means another release, publishing anew moves the alias to ENTRY, except
        # where ENTRY is for testing and the version means a production release.
        # An older testing release does not count where production has moved on to another image.
        is_newest = meant and (last.number > meant.number or last.sha256 == meant.sha256)
        is_beside = meant and meant.channel == "production" and entry.channel != "production"
        keeps_alias = is_beside and is_newest
        if meant and meant.release != last.release and not keeps_alias:
            return None

        homes = self.tree.homes(ledger.name)
        files = [home / ledger.name / f"{last.release}{suffix}" for suffix, home in homes.items()]
        files += [self.folder(ledger.name, last.release) / name for name in (RECORD, "libexec/run")]
        return last if all(path.exists() for path in files) else None

    def _list_taken(self, name: str) -> list[str]:
        """Return the releases of NAME whose folders lie in the store, of any module tree.

        Several module trees may share one store, so these numbers are not free even where this
        tree's ledger does not know them. A folder that is still being prepared counts, too.
        """
        parent = self.folder(name, "x").parent
        names = [path.name for path in parent.iterdir()] if parent.is_dir() else []
        return [re.sub(r"^\.(.*)\.[0-9a-f]{12}\.part$", r"\1", one) for one in names]

    @contextlib.contextmanager
    def _hold_ledger(self, name: str) -> Iterator[Ledger]:
        """Yield the ledger of NAME, and keep other publishers of NAME out meanwhile.

        What an interrupted publisher has left is finished or swept first.
        """
        tree = self.tree
        releases = self.folder(name, "x").parent
        sharing = self.site.sharing
        if sharing.has_group:
            sharing.make_own_names_folder(self.site.module_tree)
            sharing.open_old(self.site.module_tree)

        with tree.hold(name, self.say):
            ledger = tree.ledger(name, to_change=True)
            with self.store.acting("the release was not written"):
                self.marks.folder(self.store.top, releases)
            # The tree's own lease is not enough: another module tree may use the same store.
            with hold_lease(
                releases / ".lease",
                lambda who: self.say(f"waiting for another publisher of {name}: {who}"),
                sharing=sharing,
            ):
                self._sweep_unfinished(releases)
                yield ledger

    def _sweep_unfinished(self, releases: Path) -> None:
        """Remove folders of releases that this tree began and never committed.

        The caller holds both leases and no journal is left, so nobody needs them any more.
        """
        ending = name_prepared(releases / "x", self.site.module_tree).name[2:]
        for name in descriptors.list_names_in(releases):
            if name.startswith(".") and name.endswith(ending):
                descriptors.remove_tree(releases / name)

    def _write_folder(
        self, release: Release, artifact: Artifact, extra: dict[str, str], recipe_commit: str
    ) -> tuple[Path, str]:
        """Write the release's folder beside its final place. Return its path, and its record.

        The commit moves the folder into place.
        """
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

        modulefiles = (render_modulefile(release), render_modulefile_tcl(release))
        files = {
            **render_wrappers(release),
            **extra,
            **dict(zip(KEPT_FILES, modulefiles, strict=True)),
            RECORD: text,
        }
        # The seal is renewed whenever the image is read again, so the inventory leaves it out.
        lasting = {path: content for path, content in files.items() if path != SEAL}
        files |= render_inventory_files(release.name, lasting)

        with self.store.acting("the release was not written"):
            without_links(self.store.top, final.parent, ours=True)
            # Nobody else may enter the folder before it is whole. It cannot exist yet: leftovers
            # were swept when the lease was taken.
            descriptors.make_new_folder(part)
            with descriptors.pin_path(part) as own:
                write_tree(own, files)
                descriptors.make_folder(own / "bin")
                self.marks.mark_tree(own)
        return part, text

    def _seal_image(self, artifact: Artifact) -> Seal:
        """Read the whole image of ARTIFACT and return its seal.

        StoreError where its bytes are not what was built.
        """
        self.say(f"reading {artifact.image}")
        seal = take_seal(artifact.image)
        if seal.sha256 != artifact.sha256:
            raise StoreError(
                f"{artifact.image} is not what was built: its sha256 differs",
                f"hpcstack build --no-cache {artifact.stack}",
                page="repair-what-is-published",
            )
        return seal

    def renew_image_seal(self, name: str, entry: Entry, artifact: Artifact) -> None:
        """Renew the seal of a release where its image's file is another than the one last read.

        That is so where the image was built again to the same bytes, or came from a backup.
        """
        seal = read_seal(self.store, name, entry.release)
        if explain_change(artifact, seal, self.site.sharing):
            renew_seal(self.store, name, entry.release, self._seal_image(artifact))

    def _explain_missing_nodes(self, artifact: Artifact) -> str:
        """Return why no node of the site can run the image; empty where one can.

        Empty, too, where the site names no node types.
        """
        kinds = {node.architecture for node in self.site.node_types.values()}
        kind = KERNEL_NAMES[artifact.platform]
        if not kinds or kind in kinds:
            return ""
        return f"the image is for {kind}, and the site's nodes are {' and '.join(sorted(kinds))}"

    def _note_unreadable(self, release: Release) -> None:
        """Say which folder keeps others from the image or the wrappers, if `modules.mode` lets
        others read them.
        """
        for path in (Path(release.image), Path(release.folder) / "libexec/run"):
            wall = self.marks.hidden_from(path)
            if wall:
                self.say(
                    f"NOTE: others cannot read {path}: {wall} is closed to them (modes, or "
                    f"`modules.mode`)"
                )

    def _make_event(self, verb: str, release: str, reason: str) -> Event:
        return Event(stamp_now(), name_caller(), verb, release, reason=reason)

    def _rebuild_cache(self) -> None:
        """Rebuild Lmod's spider cache, and say what became of it.

        Where that fails, the cache stays marked stale, and the next verb rebuilds it.
        """
        self.say(rebuild_cache(self.tree, self.runner))

    def _describe_published(
        self, ledger: Ledger, entry: Entry, release: Release, checked: str, *, new: bool
    ) -> Published:
        tree = self.tree
        name = ledger.name
        takes_alias = ledger.aliases.get(entry.version) == entry.release
        loaded_as = entry.version if takes_alias else entry.release
        return Published(
            release=f"{name}/{entry.release}",
            alias=f"{name}/{entry.version}",
            channel=entry.channel,
            takes_alias=takes_alias,
            default=f"{name}/{ledger.default}",
            load=tree.how(name, loaded_as),
            modulepath=str(tree.core),
            modulefile=str(tree.home(name) / name / f"{entry.release}.lua"),
            image=release.image,
            sha256=release.sha256,
            new=new,
            checked=checked,
        )


def stamp_now() -> str:
    """Return the time in UTC as ISO 8601, to the second."""
    return read_clock().isoformat(timespec="seconds")


def _digest_of_contents(release: Release) -> str:
    """Return the sha256 of the modulefiles and wrappers of RELEASE.

    Its number and what tests said are left out: two releases of one image have the same digest.
    """
    plain = replace(release, number=0, folder="", tested=(), override="")
    texts = [render_modulefile(plain), render_modulefile_tcl(plain)]
    texts += [f"{path}\n{text}" for path, text in sorted(render_wrappers(plain).items())]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _report_files(report: Report | None) -> dict[str, str]:
    """Return {file name: text} of REPORT for a release's folder; nothing without a report."""
    if not report:
        return {}
    return {"report.json": json.dumps(report.model_dump(mode="json"), indent=1) + "\n"}
