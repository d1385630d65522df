"""`hpcstack report`.

Tested in tests/unit/cli/test_verbs.py and tests/integration/test_smoke.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcstack.cli.reports import JsonFile, add_form_options, on_stdout, write_forms
from hpcstack.cli.session import Session, answer, json_option, say
from hpcstack.core.errors import format_count

if TYPE_CHECKING:
    from hpcstack.report import Report
    from hpcstack.suite.history import Past


@click.command("report", cls=JsonFile)
@click.argument("paths", nargs=-1, required=True, metavar="FILE|FOLDER|STACK")
@click.option(
    "--history",
    "history_",
    is_flag=True,
    help="Show every figure of a STACK's runs here, oldest first.",
)
@click.option(
    "--capsule",
    "capsule_file",
    default="",
    metavar="FILE.tar.gz",
    help="Write the run's capsule: all that its verdicts were made of.",
)
@click.option(
    "--anonymous",
    is_flag=True,
    help="Put other words in it in place of all that may name somebody.",
)
@click.option(
    "--rejudge",
    is_flag=True,
    help="Judge capsules again by this hpcstack; 1 where a verdict differs.",
)
@add_form_options
@json_option
@click.pass_obj
def command(
    session: Session,
    /,
    paths: tuple[str, ...],
    history_: bool,
    capsule_file: str,
    anonymous: bool,
    rejudge: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Show a test report again, or write it in another format.

    It is named by its report.json, by a run's folder, or by a STACK for that stack's newest run
    here. --history shows the runs of a STACK over time. --rejudge takes capsules, which each run
    leaves in its folder, and says which verdicts this hpcstack would give otherwise.
    """
    from hpcstack import report as reports

    if rejudge:
        _refuse_other_forms({**options, "html": ""})
        _rejudge(paths, as_json)
    path = _take_one(paths)
    if capsule_file:
        _write_capsule(session, path, capsule_file, anonymous=anonymous)
        return
    if history_:
        _refuse_other_forms(options)
        _show_history(session, path, options, as_json)
        return

    path = _find_run(session, path)
    report = load_report(Path(path) / "report.json" if Path(path).is_dir() else Path(path))
    document = {**report.model_dump(mode="json"), "verdict": report.verdict()}
    if as_json or not on_stdout(options):
        answer(document, as_json, lambda: reports.render_text(report))
    write_forms(session, report, document, options)


def _take_one(paths: tuple[str, ...]) -> str:
    """Return the only one of PATHS. Raise InputError for several: only --rejudge takes them."""
    from hpcstack.core.errors import InputError

    if len(paths) > 1:
        raise InputError(
            f"{len(paths)} reports are named, and one is shown at a time",
            "hpcstack compare A B, or --rejudge CAPSULE...",
            page="compare-runs",
        )
    return paths[0]


def _find_run(session: Session, path: str) -> str:
    """Return PATH; or the folder of a stack's newest run, where PATH is no file but its name."""
    may_be_name = path.count("/") < 2 and not path.startswith(("/", ".")) and path[-5:] != ".json"
    if may_be_name and not Path(path).exists():
        return read_past(session, path)[-1].folder
    return path


def _write_capsule(session: Session, path: str, file: str, *, anonymous: bool) -> None:
    """Write the capsule of the run that PATH names to FILE."""
    from hpcstack.core.errors import InputError
    from hpcstack.suite.capsule import gather_capsule, hide_names, write_capsule

    folder = Path(_find_run(session, path))
    if not folder.is_dir():
        raise InputError(
            f"{folder} is not the folder of a run", "name the run's folder", page="compare-runs"
        )
    capsule = gather_capsule(folder, load_report(folder / "report.json"))
    if anonymous:
        capsule = hide_names(capsule)
    with session.store.acting(f"{file} was not written"):
        size = write_capsule(Path(file), capsule)
    say(f"{file}: {size} bytes, {format_count(len(capsule.documents), 'document')}")


def _rejudge(paths: tuple[str, ...], as_json: bool) -> NoReturn:
    """Show which verdicts of the capsules PATHS are others today; end with 1 if any is."""
    from dataclasses import asdict

    from hpcstack.suite.capsule import read_capsule, rejudge_capsule

    found = {path: rejudge_capsule(read_capsule(Path(path))) for path in paths}
    lines = []
    for path, differences in found.items():
        lines.append(f"{path}: {format_count(len(differences), 'verdict')} differ")
        lines += [f"  {one.code}: {one.before} -> {one.after}: {one.why}" for one in differences]
    document = {path: [asdict(one) for one in differences] for path, differences in found.items()}
    answer({"capsules": document}, as_json, lambda: "\n".join(lines))
    raise click.exceptions.Exit(1 if any(found.values()) else 0)


def _refuse_other_forms(options: dict[str, Any]) -> None:
    """Raise InputError for a form other than a page, the only one that a history has."""
    from hpcstack.core.errors import InputError

    given = [name for name, value in options.items() if value and name != "html"]
    if given:
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(
            f"{shown}: a history is text, --json or a page (--html)",
            "without --history: the newest run's report",
            page="compare-runs",
        )


def _show_history(session: Session, stack: str, options: dict[str, Any], as_json: bool) -> None:
    """Show the runs of STACK, and write them as a page where --html asks for one."""
    from hpcstack import report as reports
    from hpcstack.core.outputs import write_output

    pasts = read_past(session, stack)
    rows = [
        {
            "started": one.started,
            "verdict": one.verdict,
            "nodes": list(one.nodes),
            "figures": one.drawn,
            "folder": one.folder,
            "key": one.key,
        }
        for one in pasts
    ]
    answer({"stack": stack, "runs": rows}, as_json, lambda: format_pasts(pasts))

    if options["html"]:
        newest = load_report(Path(pasts[-1].folder) / "report.json")
        html = reports.render_html(newest, pasts)
        with session.store.acting(f"{options['html']} was not written"):
            write_output(Path(options["html"]), html)


def read_past(session: Session, text: str) -> list[Past]:
    """Return the runs that this user has made of the stack that TEXT means, oldest first.

    Raise InputError where there are none.
    """
    from hpcstack.core.dirs import find_state_folder
    from hpcstack.core.errors import InputError
    from hpcstack.suite import history

    stack = session.naming.find_stack(text).stack
    found = history.load_history(find_state_folder() / "history" / f"{Path(stack).name}.jsonl")
    if not found:
        raise InputError(
            f"no run of {text} is known here", f"hpcstack test {text}", page="test-a-stack"
        )
    return found


def format_pasts(pasts: list[Past]) -> str:
    """Return a line for each run, then each figure with its median and its last value.

    The median is of runs that can be compared with the last one: `key` names their image, nodes,
    GPUs and NCCL.
    """
    import statistics

    lines = [
        f"{one.started}  {one.verdict:<5} {format_count(len(one.nodes), 'node')}  {one.folder}"
        for one in pasts
    ]

    last = pasts[-1]
    lines += ["", f"{'figure':<60} {'runs':>4} {'median':>12} {'last':>12}"]
    for name in sorted(last.drawn):
        values = [one.drawn[name] for one in pasts if one.key == last.key and name in one.drawn]
        lines.append(
            f"{name:<60} {len(values):>4} {statistics.median(values):>12g} {last.drawn[name]:>12g}"
        )
    lines += ["", "figures are of runs with the last one's image, nodes, GPUs and NCCL"]
    return "\n".join(lines) + "\n"


def load_report(file: Path) -> Report:
    """Read the report in FILE. Raise InputError where it is no report."""
    from pydantic import ValidationError

    from hpcstack import report as reports
    from hpcstack.core.errors import InputError

    try:
        return reports.Report.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", "") or error
        raise InputError(f"{file} cannot be read: {reason}", page="test-a-stack") from None
    except ValidationError as error:
        raise InputError(
            f"{file}: not a report: {error.errors()[0]['msg']}", page="test-a-stack"
        ) from None
