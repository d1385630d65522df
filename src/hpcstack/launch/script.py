"""A plan as a script that people read, keep and submit: every word of it with its reason above it."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.errors import InputError, format_count
from hpcstack.core.quote import quote_sh
from hpcstack.launch.modes import MODES
from hpcstack.launch.stacks import ANSWER_S, lent_spy
from hpcstack.launch.staging import HOW
from hpcstack.releases.named import resolve_name
from hpcstack.releases.tree import Tree
from hpcstack.render.launchers import job_template
from hpcstack.render.template import fill_template, read_data_file
from hpcstack.runtimes.base import Part, make_option
from hpcstack.slurm.options import OPTIONS, Scope, find_scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.launch.plan import Plan
    from hpcstack.site.load import Site
    from hpcstack.store.artifact import Artifact

# Options that a person need not see to know what would run
LONG = ("--container-mounts", "--cpu-bind", "--container-env", "--prolog", "--comment")
END = "HPCSTACK_INSIDE"
NO_COMMAND = ("jupyter",)  # templates that start a program of their own
STACK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
OUTPUT = "%x-%j.out"


def render_script(plan: Plan, artifact: Artifact, why: str, job: tuple[Part, ...] = ()) -> str:
    """The script of PLAN; the directives JOB make it a batch job.

    The same plan gives the same bytes.
    """
    parts = [part for part in plan.parts if not (job and find_scope(part.option) is Scope.JOB)]
    scripts = [one for part in parts for one in part.words if one.endswith("\n") and END not in one]

    staging = None
    if staged := plan.staged:
        cast = [one for one in staged.pieces if staged.how == "sbcast" and one.sha256 != "-"]
        staging = {
            "why": (
                f"before the ranks, once per node: "
                f"{HOW[staged.how] if staged.image else HOW['copy']}"
            ),
            "script": read_data_file("launchers", "on-node/stage.sh"),
            "folder": staged.folder,
            "cast": cast,
            "put": staged.words,
        }

    watchdog = None
    if plan.watchdog and not on_terminal(plan.parts):
        every = max(1, min(15, plan.watchdog // 4))
        watchdog = {
            "seconds": plan.watchdog,
            "every": every,
            "script": data.read_script("on-node/stacks.sh"),
            "spy": lent_spy(),
            "answer": ANSWER_S,
        }
    failure = "" if on_terminal(plan.parts) else read_data_file("launchers", "jobs/failure.awk")

    def word(text: str) -> str:
        return f'"$inside{scripts.index(text) + 1}"' if text in scripts else quote_word(text)

    return fill_template(
        "launchers",
        "jobs/launch.sh.j2",
        title=f"{artifact.stack} ({why}), image sha256:{artifact.sha256}",
        runtime=f"{plan.runtime}: {plan.reason}",
        mode=f"{plan.mode}: {MODES[plan.mode].about}",
        directives=job,
        staging=staging,
        failure=failure,
        grace=plan.grace,
        watchdog=watchdog,
        spare={"nodes": plan.spare.nodes, "script": plan.spare.script} if plan.spare else None,
        settings=plan.settings,
        scripts=scripts,
        parts=[(" ".join(word(one) for one in part.words), part.why) for part in parts],
    )


def render_outline(plan: Plan, command: Sequence[str], *, batch: bool) -> str:
    """The line of PLAN for people: a script of ours is named, not shown; variables are counted."""
    program = next((part.words[0] for part in plan.parts if not part.option), "")
    shown = [part.words[0] for part in plan.parts if part.option and part.option not in LONG]
    of_the_job = []
    if batch:
        of_the_job = [
            part.words[0] for part in list_directives(plan) if find_scope(part.option) is Scope.JOB
        ]
    by_a_script = any(word.endswith("\n") for part in plan.parts for word in part.words)

    lines = [
        " ".join(map(quote_word, [program, *shown])),
        f"  by {plan.runtime} ({plan.reason}), in mode {plan.mode}: {MODES[plan.mode].about}",
        f"  what each task {'starts' if by_a_script else 'runs'}: {shlex.join(command)}",
        (
            f"  {format_count(len(plan.settings), 'variable')} set; every line, with its reason: "
            f"--dry-run --all"
        ),
    ]
    if of_the_job:
        lines.insert(0, " ".join(map(quote_word, ["sbatch", *of_the_job])))
    return "\n".join(lines)


def on_terminal(parts: tuple[Part, ...]) -> bool:
    """Whether the step has a terminal of its own (srun --pty), which nothing may come between."""
    return any(part.option == "--pty" for part in parts)


def quote_word(text: str) -> str:
    """One word of an array: with a comma outside quotes it would look like a slip."""
    out = quote_sh(text)
    return f"'{out}'" if "," in out and out == text else out


def list_directives(plan: Plan) -> tuple[Part, ...]:
    """The #SBATCH lines of a job for PLAN: what its step asks for, what only a job can ask for,
    where it writes.
    """
    own = [with_spare(part, plan) for part in plan.parts if is_of_the_job(part)]
    if any(part.option == "--output" for part in own):
        return tuple(own)
    is_array = any(part.option == "--array" for part in own)
    output = OUTPUT.replace("%j", "%A_%a") if is_array else OUTPUT
    return (*own, make_option("--output", output, "the job's output: its name and number"))


def is_of_the_job(part: Part) -> bool:
    """Whether PART is an option that a job is asked for."""
    return bool(part.option) and find_scope(part.option) is not Scope.STEP


def make_salloc_line(plan: Plan) -> tuple[str, ...]:
    """salloc's line for a script of two steps: first what the nodes need, then PLAN's."""
    own = [
        with_spare(part, plan)
        for part in plan.parts
        if is_of_the_job(part) and OPTIONS[part.option].salloc
    ]
    return ("salloc", "--quiet", *(word for part in own for word in part.words))


def with_spare(part: Part, plan: Plan) -> Part:
    """PART as the job has it: --nodes with those that are spare."""
    if not plan.spare or part.option != "--nodes":
        return part
    count = plan.spare.nodes + plan.spare.more
    return make_option("--nodes", count, f"{part.why}, and {plan.spare.more} to spare")


def copied_script(
    template: str,
    name: str,
    site: Site,
    options: dict[str, str | None],
    words: Sequence[str],
    argv: Sequence[str],
) -> str:
    """The job script TEMPLATE that users copy, for the stack that NAME means: OPTIONS are sbatch's,
    WORDS launch's.
    """
    if not name.endswith(".yaml"):
        name = resolve_name(name, Tree(site.module_tree), os.environ).stack
    if argv and template in NO_COMMAND:
        raise InputError(
            f"template {template} starts its own program", f"leave out `-- {argv[0]} ...`"
        )
    if not STACK.fullmatch(name):
        raise InputError(f"{name!r} is not a stack's full name", "hpcstack list shows all stacks")
    return job_template(template, name, site, options, words, argv)
