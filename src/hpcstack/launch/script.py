"""Render a plan as a script to read, keep and submit, with its reason above every line.

Tested in tests/unit/launch/test_plan.py.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError, format_count
from hpcstack.core.quote import quote_sh
from hpcstack.launch.failure import make_awk_meanings
from hpcstack.launch.limits import check_time
from hpcstack.launch.log_lines import make_awk_labels
from hpcstack.launch.modes import MODES
from hpcstack.launch.stacks import ANSWER_S, find_lent_spy
from hpcstack.launch.staging import HOW
from hpcstack.render.job_template import render_job_template
from hpcstack.render.template import fill_template, read_data_file
from hpcstack.runtimes.base import Part, make_option
from hpcstack.slurm.gpus import ASKING
from hpcstack.slurm.options import OPTIONS, GivenOption, Scope, find_scope, name_variable
from hpcstack.slurm.rivals import check_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcstack.launch.plan import Plan
    from hpcstack.render.job_template import Option
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

# Options that the outline leaves out: they are long, and no help to see what would run
LONG = ("--container-mounts", "--cpu-bind", "--container-env", "--prolog", "--comment")
END = "HPCSTACK_INSIDE"  # ends the here-documents of the script
MOST_RESTARTS = 3  # times that a job starts again without a node, or for any other reason
NO_COMMAND = ("jupyter",)  # templates that start a program of their own
STACK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
OUTPUT = "%x-%j.out"


def render_script(plan: Plan, artifact: Artifact, why: str, job: tuple[Part, ...] = ()) -> str:
    """Return the script of PLAN. With the directives JOB it is a batch job.

    The same plan gives the same bytes.
    """
    parts = list(plan.parts)
    if job:  # sbatch's options are directives then, and not srun's
        parts = [part for part in parts if find_scope(part.option) is not Scope.JOB]
    elif plan.needs_script:
        # Its job has its parts by then. Slurm 26.05 ends a step whose nodes they do not divide: of a
        # job with spare nodes, say.
        parts = [part for part in parts if part.option != "--segment"]
    # Words that are scripts themselves are written once, as here-documents, and named by variables.
    scripts = [one for part in parts for one in part.words if one.endswith("\n") and END not in one]

    def format_word(text: str) -> str:
        if text in scripts:
            return f'"$inside{scripts.index(text) + 1}"'
        return quote_word(text)

    # A terminal of the step's own shows everything itself: nothing reads what the step says.
    failure = ""
    if not on_terminal(plan.parts):
        failure = render_failure_reader()
    served = plan.request.serves
    requeue = plan.request.requeue
    spare = None
    if plan.spare:
        spare = {"nodes": plan.spare.nodes, "script": plan.spare.script}
    return fill_template(
        "launchers",
        "jobs/launch.sh.j2",
        title=f"{artifact.stack} ({why}), image sha256:{artifact.sha256}",
        runtime=f"{plan.runtime}: {plan.reason}",
        mode=f"{plan.mode}: {MODES[plan.mode].about}",
        directives=job,
        staging=_list_staging(plan),
        failure=failure,
        grace=plan.request.grace,
        watchdog=_list_watchdog(plan),
        spare=spare,
        order=_list_order(plan, parts),
        served=served.folder.replace("JOB", "$SLURM_JOB_ID") if served else "",
        requeue={"command": requeue, "most": MOST_RESTARTS} if requeue else None,
        settings=plan.settings,
        scripts=scripts,
        parts=[(" ".join(map(format_word, part.words)), part.why) for part in parts],
    )


def _list_staging(plan: Plan) -> dict[str, object] | None:
    """Return what the script says of staged data; None where nothing is staged.

    `cast` are the pieces that Slurm broadcasts: the image, where the way is sbcast. The script that
    runs on each node is given all pieces (`put`).
    """
    staged = plan.staged
    if not staged:
        return None
    how = staged.how if staged.image else "copy"  # data is always copied
    cast = [one for one in staged.pieces if staged.how == "sbcast" and one.sha256 != "-"]
    return {
        "why": f"before the ranks, once per node: {HOW[how]}",
        "script": read_data_file("launchers", "on-node/stage.sh"),
        "folder": staged.folder,
        "cast": cast,
        "put": staged.words,
    }


def _list_order(plan: Plan, parts: Sequence[Part]) -> dict[str, object] | None:
    """Return what the script says of the nodes' order; None where it is left to Slurm.

    `place` is where --nodes stands among the words of PARTS: Slurm refuses it beside a list of
    nodes in an order of its own.
    """
    if not plan.ordered:
        return None
    words = [(part.option, word) for part in parts for word in part.words]
    place = next(place for place, (option, _) in enumerate(words) if option == "--nodes")
    if plan.spare:
        place += 1  # the script adds a word before: the list of nodes that are fit
    nodes = next(part.value for part in parts if part.option == "--nodes")
    return {"nodes": nodes, "tasks": plan.ordered, "place": place}


def _list_watchdog(plan: Plan) -> dict[str, object] | None:
    """Return what the script says of the watchdog; None without one.

    `every` is how often it looks, in seconds: four times within its limit, or every 15 s where the
    limit is longer than a minute.
    """
    if not plan.request.watchdog or on_terminal(plan.parts):
        return None
    return {
        "seconds": plan.request.watchdog,
        "every": max(1, min(15, plan.request.watchdog // 4)),
        "script": data.read_script("on-node/stacks.sh"),
        "spy": find_lent_spy(),
        "answer": ANSWER_S,
    }


def render_outline(plan: Plan, command: Sequence[str], *, batch: bool) -> str:
    """Return PLAN in a few lines: scripts are left out, and variables are counted."""
    program = next((part.words[0] for part in plan.parts if not part.option), "")
    shown = [part.words[0] for part in plan.parts if part.option and part.option not in LONG]
    of_the_job = []
    if batch:
        of_the_job = [
            part.words[0] for part in list_directives(plan) if find_scope(part.option) is Scope.JOB
        ]
    by_a_script = any(word.endswith("\n") for part in plan.parts for word in part.words)
    does = "starts" if by_a_script else "runs"
    variables = format_count(len(plan.settings), "variable")

    lines = [
        " ".join(map(quote_word, [program, *shown])),
        f"  by {plan.runtime} ({plan.reason}), in mode {plan.mode}: {MODES[plan.mode].about}",
        f"  what each task {does}: {shlex.join(command)}",
        f"  {variables} set; every line, with its reason: --dry-run --all",
    ]
    if of_the_job:
        lines.insert(0, " ".join(map(quote_word, ["sbatch", *of_the_job])))
    return "\n".join(lines)


def on_terminal(parts: tuple[Part, ...]) -> bool:
    """Whether the step has a terminal of its own (srun --pty), which nothing may come between."""
    return any(part.option == "--pty" for part in parts)


def quote_word(text: str) -> str:
    """Return TEXT quoted as one word of a shell array.

    A word with a comma is quoted, too: between words it would look like a slip.
    """
    out = quote_sh(text)
    if "," in out and out == text:
        return f"'{out}'"
    return out


def render_failure_reader() -> str:
    """Return launchers/jobs/failure.awk with the tables in it that it has in common with Python."""
    text = read_data_file("launchers", "jobs/failure.awk")
    text = text.replace("    # LABELS", make_awk_labels(), 1)
    return text.replace("    # MEANINGS", make_awk_meanings(), 1)


def list_directives(plan: Plan) -> tuple[Part, ...]:
    """Return the #SBATCH lines of a job for PLAN.

    They are what its step asks for, what only a job can ask for, and where the job writes.
    """
    own = [with_spare(part, plan) for part in plan.parts if is_of_the_job(part)]
    named = {part.option for part in own}
    if plan.request.requeue:
        why = "it may start again, without a node that is to blame"
        if "--requeue" not in named:
            own.append(make_option("--requeue", None, why))
        if "--open-mode" not in named:
            own.append(make_option("--open-mode", "append", "what it wrote before stays"))
    if any(part.option == "--output" for part in own):
        return tuple(own)
    output = OUTPUT
    if any(part.option == "--array" for part in own):
        output = OUTPUT.replace("%j", "%A_%a")
    return (*own, make_option("--output", output, "the job's output: its name and number"))


def is_of_the_job(part: Part) -> bool:
    """Whether PART is an option that a job can be asked for."""
    return bool(part.option) and find_scope(part.option) is not Scope.STEP


def make_salloc_line(plan: Plan) -> tuple[str, ...]:
    """Return salloc's line for PLAN, to stand before a script that starts several steps.

    It asks for what PLAN's step asks for, as far as salloc knows the options.
    """
    own = [
        with_spare(part, plan)
        for part in plan.parts
        if is_of_the_job(part) and part.option in OPTIONS and OPTIONS[part.option].salloc
    ]
    words = [word for part in own for word in part.words]
    asked = plan.request.resources.of_shell
    # srun's variables ask for GPUs that salloc must be asked for, too, and salloc's own are about others.
    words += [f"{one.option}={one.source.partition('=')[2]}" for one in asked]
    variables = [name_variable(option, "SALLOC") for option in ASKING]
    hidden = [word for name in variables if name in os.environ for word in ("-u", name)]
    prefix = ("env", *hidden) if hidden else ()
    return (*prefix, "salloc", "--quiet", *words)


def with_spare(part: Part, plan: Plan) -> Part:
    """Return PART as the job has it: --nodes counts the spare nodes of PLAN, too."""
    if not plan.spare or part.option != "--nodes":
        return part
    count = plan.spare.nodes + plan.spare.more
    return make_option("--nodes", count, f"{part.why}, and {plan.spare.more} to spare")


def check_directives(directives: Mapping[str, str | None]) -> None:
    """Raise InputError where sbatch would refuse DIRECTIVES {option: value}; None takes a line away."""
    given = [
        GivenOption(f"--{name}", value or None)
        for name, value in directives.items()
        if value is not None
    ]
    check_options(given, in_a_job=False)
    check_time(directives.get("time") or "")


def make_copied_script(
    template: str,
    stack: str,
    site: Site,
    options: dict[str, str | None],
    words: Sequence[Option],
    argv: Sequence[str],
) -> str:
    """Return the job script TEMPLATE for users to copy, for STACK, a full name.

    OPTIONS are sbatch's by name, WORDS are options of `hpcstack launch`, and ARGV is the command.
    """
    if argv and template in NO_COMMAND:
        raise InputError(
            f"template {template} starts its own program",
            f"leave out `-- {argv[0]} ...`",
            page="run-jupyter",
        )
    if not STACK.fullmatch(stack):
        raise InputError(f"{stack!r} is not a stack's full name", "hpcstack list shows all stacks")
    return render_job_template(template, stack, site, options, words, argv)
