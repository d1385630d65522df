"""Modulefiles and wrappers of a release.

Pure: what was measured of its image is given, and rendered.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.characters import CONTROL, VARIABLE
from hpcstack.core.errors import InputError
from hpcstack.core.quote import join_lines
from hpcstack.hardware.compatibility import Driver, driver_of, judge_fit
from hpcstack.render.image import KERNEL_NAMES
from hpcstack.render.launchers import COMPAT, HOST_LIBRARIES
from hpcstack.render.template import fill_template
from hpcstack.runtimes import RUNTIMES
from hpcstack.runtimes.enroot import IN, START

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.recipe.model import Stack
    from hpcstack.site.injection import Brought, Reasoned
    from hpcstack.site.load import Site

# What people search for by `module spider`, beside what the recipe itself adds
SHOWN = re.compile(
    r"^(torch|torchvision|torchaudio|deepspeed|numpy|scipy|pandas|transformer[-_]engine|flash[-_]attn|lightning|"
    r"pytorch[-_]lightning|transformers|accelerate|peft|datasets|tokenizers|apex|triton|nemo[-_]toolkit|"
    r"megatron[-_]core|horovod|jax|jaxlib|flax|optax|tensorflow|keras|vllm|tensorrt[-_]llm|mpi4py|cupy.*|cudf.*|"
    r"cuml.*|dask|h5py|timm|webdataset|nvidia-dali.*|wandb|mlflow|ray)$",
    re.IGNORECASE,
)
PLAIN = re.compile(r"^[A-Za-z0-9._+-]+$")
OWN = ("PATH", "LD_LIBRARY_PATH", "HOME", "SHELL")  # Apptainer makes these itself, from both sides
WIDTH = 100  # characters of a whatis line that are shown


@dataclass(frozen=True)
class Network:
    """What wrappers tell the fabric's libraries, and what they bring of the nodes' own to a job of
    several nodes.
    """

    settings: Mapping[str, Reasoned] = field(default_factory=dict)  # in every job
    between_nodes: Mapping[str, Reasoned] = field(default_factory=dict)  # in a job of several nodes
    brought: tuple[Brought, ...] = ()

    @classmethod
    def of(cls, site: Site, image: Mapping[str, str]) -> Network:
        """The network of SITE for an IMAGE of these variables.

        Which injection a node has is asked there.
        """
        always = site.fabric.settings
        both = site.fabric.settings_for(2, image)
        between = {name: row for name, row in both.items() if name not in always}
        return cls(always, between, tuple(site.fabric.bring(None, image)))

    @property
    def names(self) -> list[str]:
        """The variables that win over the image's own where they are set."""
        brought = [name for one in self.brought for name in one.settings]
        return list(dict.fromkeys([*self.settings, *self.between_nodes, *brought]))


@dataclass(frozen=True)
class Release:
    """What a published image is to its users: `pytorch/24.11-r1`, absolute paths, and the evidence."""

    stack: Stack
    number: int
    image: str
    sha256: str
    folder: str
    base: str
    stand_in: str = ""
    adopted: str = ""  # where the image was taken from, if hpcstack did not build it
    channel: str = "testing"
    dates: str = "/nonexistent"  # the file that says when its version goes
    holds: tuple[tuple[str, str], ...] = ()
    pip: tuple[tuple[str, str], ...] = ()
    fits: tuple[
        tuple[str, str], ...
    ] = ()  # ((node type, how its driver runs the image), ...) when it was published
    tested: tuple[
        tuple[str, str], ...
    ] = ()  # what the last report of this image says: ((what, value), ...)
    override: str = ""  # why it was published although the gate was shut
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    network: Network = Network()
    runtime: str = "auto"
    without_gpus: bool = False  # no node of the site has one: NVIDIA's hooks must not look for it
    platform: str = "linux/amd64"

    @property
    def version(self) -> str:
        return f"{self.stack.release_version}-r{self.number}"

    @property
    def name(self) -> str:
        return f"{self.stack.name}/{self.version}"

    @property
    def bin(self) -> str:
        return f"{self.folder}/bin"

    @property
    def kernel_name(self) -> str:
        """What `uname -m` says on nodes that run the image."""
        return KERNEL_NAMES[self.platform]

    @property
    def driver(self) -> Driver:
        return driver_of(self.environment)


def render_modulefile(release: Release) -> str:
    """The Lua modulefile.

    It names absolute paths of the release only, so what is loaded can be unloaded.
    """
    return fill_template(
        "modules",
        "modulefile.lua.j2",
        help=help_text(release),
        extensions=", ".join(list_extensions(release)),
        **_values(release),
    )


def modulefile_tcl(release: Release) -> str:
    """The same in Tcl, for Environment Modules."""
    return fill_template(
        "modules",
        "modulefile.tcl.j2",
        help=help_text(release).rstrip("\n").split("\n"),
        **_values(release),
    )


def _values(release: Release) -> dict[str, object]:
    for value in (
        release.name,
        release.stack.full_name,
        release.image,
        release.sha256,
        release.folder,
        release.dates,
    ):
        if CONTROL.search(
            value
        ):  # on Lmod 8.6 a newline in setenv runs what follows it: TACC/Lmod #659
            raise InputError(f"{value!r} has a control character in it", "no module can set that")
    return {
        "release": release.name,
        "name": release.stack.name,
        "version": release.version,
        "meant": f"{release.stack.name}/{release.stack.release_version}",
        "stack": release.stack.full_name,
        "whatis": list_whatis(release),
        "channel": release.channel,
        "dates": release.dates,
        "driver": release.driver,
        "kernel_name": release.kernel_name,
        "image": release.image,
        "sha256": release.sha256,
        "bin": release.bin,
        "void": release.without_gpus,
        "settings": module_settings(release.stack),
    }


def module_settings(stack: Stack) -> list[tuple[str, str, str, str]]:
    """(act, variable, value, separator) of what the recipe's `module.environment` says, in the
    order of modulefiles: what is prepended last comes first.
    """
    out = []
    for name, setting in stack.module.environment.items():
        if setting.set is not None:
            out.append(("set", name, setting.set, ""))
        out += [("prepend", name, part, setting.separator) for part in reversed(setting.prepend)]
        out += [("append", name, part, setting.separator) for part in setting.append]
    for _, name, value, _ in out:
        if CONTROL.search(value):
            raise InputError(
                f"module.environment: {name} has a control character in it",
                "no module can set that",
            )
    return out


def with_settings(stack: Stack, environment: Mapping[str, str]) -> dict[str, str]:
    """ENVIRONMENT as loading a module of STACK leaves it, but for hpcstack's own variables."""
    after = dict(environment)
    for act, name, value, separator in module_settings(stack):
        had = after.get(name, "")
        if act == "set" or not had:
            after[name] = value
        else:
            after[name] = (
                f"{value}{separator}{had}" if act == "prepend" else f"{had}{separator}{value}"
            )
    return after


def list_whatis(release: Release) -> list[str]:
    """The lines of `module whatis`, each short enough to be shown."""
    lines = [f"Description: {release.stack.summary}", f"Base: {release.base}"]
    lines += [f"{name}: {value}" for name, value in release.holds]
    lines.append(f"Tested: {dict(release.tested).get('verdict', 'not yet')}")
    if release.stand_in:
        lines.append(f"Stand-in: {release.stand_in}")
    if release.adopted:
        lines.append(f"Adopted: {release.adopted}")
    plain = [join_lines(text) for text in lines]
    return [text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..." for text in plain]


def describe_fits(
    site: Site, platform: str, environment: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """((node type, how its driver and GPU run an image of PLATFORM with ENVIRONMENT), ...)."""
    return tuple(
        (name, str(judge_fit(node.driver, node.gpus.model, environment)))
        for name, node in site.node_types.items()
        if node.gpus and node.real_gpus and node.driver and node.platform == platform
    )


def help_text(release: Release) -> str:
    """What `module help` shows: what is inside, what was measured, and three lines to copy."""
    stack = release.stack
    lines = [stack.summary, "", f"  base: {release.base}"]
    lines += [f"  {name}: {value}" for name, value in release.holds]
    lines.append(f"  architecture: {release.kernel_name}")
    if release.driver.least:
        lines.append(
            f"  driver: {release.driver.least} or newer ({release.driver.native} for every feature)"
        )
    lines += [f"  on {node}: {said}" for node, said in release.fits]
    lines.append(f"  image: sha256 {release.sha256}")
    lines += [
        "",
        f"Channel: {release.channel}. Tests: "
        + ("none of this image" if not release.tested else ""),
    ]
    lines = [
        *lines[:-1],
        lines[-1].rstrip(),
        *(f"  {name}: {value}" for name, value in release.tested),
    ]
    if release.override:
        lines.append(f"  PUBLISHED ALTHOUGH THE GATE WAS SHUT: {release.override}")
    if release.stand_in:
        lines += ["", f"STAND-IN, not NVIDIA's image: {release.stand_in}"]
    if release.adopted:
        lines += ["", f"ADOPTED, not built by hpcstack: {release.adopted}"]
    lines += ["", *lines_to_copy(release)]
    if stack.module.wrapped:
        lines.append(f"On this node:           {', '.join(stack.module.wrapped)}")
    return "\n".join(join_lines(text) for text in lines) + "\n"


def lines_to_copy(release: Release) -> list[str]:
    """How the release is used, by `hpcstack launch` and by srun itself: lines that run in one's own
    folder, with a COMMAND in them.
    """
    stack = release.stack
    void = " --container-env=NVIDIA_VISIBLE_DEVICES" if release.without_gpus else ""
    has_cuda = any(name == "CUDA" for name, _ in release.holds)
    nv = "--nv " if has_cuda and not release.without_gpus else ""
    srun = "srun -N 2 --ntasks-per-node=1" + (" --mpi=pmix" if stack.launch.mode == "mpi" else "")
    return [
        "On two nodes, now:      hpcstack launch " + stack.full_name + " -N 2 -- train.py",
        "As a batch job:         hpcstack launch " + stack.full_name + " -N 2 --batch -- train.py",
        "By hand, on a node:     hpcstack python, hpcstack shell",
        f'By srun with Pyxis:     {srun}{void} --container-image="$HPCSTACK_IMAGE" '
        '--container-mounts="$PWD:$PWD" --container-workdir="$PWD" /opt/hpcstack/compat.sh COMMAND',
        (
            f'By srun and Apptainer:  {srun} apptainer exec {nv}--bind "$PWD" --pwd "$PWD" '
            f'"$HPCSTACK_IMAGE" COMMAND'
        ),
    ]


def list_extensions(release: Release) -> list[str]:
    """`torch/2.6.0a0+...` for `module spider`: the image's real versions of what users search for."""
    added = {
        re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower()
        for text in release.stack.packages.pip
    }
    return [
        f"{name}/{version}"
        for name, version in release.pip
        if (SHOWN.fullmatch(name) or name.lower() in added)
        and PLAIN.fullmatch(name)
        and PLAIN.fullmatch(version)
    ]


def render_wrappers(release: Release) -> dict[str, str]:
    """{path: script}: `libexec/run`, which chooses the runtime, and `bin/COMMAND` for each of the
    recipe's commands.
    """
    run = f"{release.folder}/libexec/run"
    commands = {
        f"bin/{command}": fill_template(
            "modules", "wrapper.sh.j2", command=command, release=release.name, run=run
        )
        for command in release.stack.module.wrapped
    }
    image = {
        name: value
        for name, value in sorted(release.environment.items())
        if VARIABLE.fullmatch(name)
    }
    runtime = RUNTIMES.get(release.runtime)
    own = fill_template(
        "modules",
        "run.sh.j2",
        release=release.name,
        kernel_name=release.kernel_name,
        image=release.image,
        bin=release.bin,
        compat=COMPAT,
        enter=IN,
        start=data.read_script(START),
        mounts=release.mounts,
        image_names=" ".join(image),
        image_environment=[
            (name, value)
            for name, value in image.items()
            if name not in OWN and name not in release.network.names
        ],
        network=release.network,
        host_libraries=HOST_LIBRARIES,
        runtime=runtime.name if runtime and runtime.in_modules else "auto",
    )
    return {**commands, "libexec/run": own}
