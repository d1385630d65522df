"""Renders the modulefiles and wrappers of a release. Pure: all that they say is given."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hpcstack.core import data
from hpcstack.core.characters import CONTROL, VARIABLE
from hpcstack.core.errors import InputError
from hpcstack.core.quote import join_lines
from hpcstack.hardware.compatibility import Driver, judge_fit, read_driver_needs
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

# The packages that users look for with `module spider`, beside those that the recipe itself adds
SHOWN = re.compile(
    r"^(torch|torchvision|torchaudio|deepspeed|numpy|scipy|pandas|transformer[-_]engine|flash[-_]attn|lightning|"
    r"pytorch[-_]lightning|transformers|accelerate|peft|datasets|tokenizers|apex|triton|nemo[-_]toolkit|"
    r"megatron[-_]core|horovod|jax|jaxlib|flax|optax|tensorflow|keras|vllm|tensorrt[-_]llm|mpi4py|cupy.*|cudf.*|"
    r"cuml.*|dask|h5py|timm|webdataset|nvidia-dali.*|wandb|mlflow|ray)$",
    re.IGNORECASE,
)
PLAIN = re.compile(r"^[A-Za-z0-9._+-]+$")  # nothing that separates names from versions, or entries
OWN = ("PATH", "LD_LIBRARY_PATH", "HOME", "SHELL")  # Apptainer makes these itself, from both sides
WIDTH = 100  # characters of a whatis line
MOST_UNLISTED = 5  # lines of the help on what could not be listed


@dataclass(frozen=True)
class Network:
    """The variables that wrappers set for the fabric, and the libraries of the nodes that they
    bring into the image.
    """

    settings: Mapping[str, Reasoned] = field(default_factory=dict)  # in every job
    between_nodes: Mapping[str, Reasoned] = field(default_factory=dict)  # in a job of several nodes
    brought: tuple[Brought, ...] = ()  # of the nodes' own, in a job of several nodes

    @classmethod
    def of(cls, site: Site, image: Mapping[str, str]) -> Network:
        """Return the network of SITE for an image with the variables IMAGE.

        All that a node type of the site may bring is named: the wrapper asks on the node what it
        has there.
        """
        always = site.fabric.settings
        both = site.fabric.settings_for(2, image)
        between = {name: row for name, row in both.items() if name not in always}
        return cls(always, between, tuple(site.fabric.bring(None, image)))

    @property
    def names(self) -> list[str]:
        """The names of the variables that win over the image's own where they are set."""
        brought = [name for one in self.brought for name in one.settings]
        return list(dict.fromkeys([*self.settings, *self.between_nodes, *brought]))


@dataclass(frozen=True)
class Release:
    """What a published image is to its users: a module's name, absolute paths, and the evidence."""

    stack: Stack
    number: int
    image: str
    sha256: str
    folder: str
    base: str
    stand_in: str = ""
    adopted: str = ""  # where the image was taken from, if hpcstack did not build it
    unlisted: tuple[str, ...] = ()  # what of its packages could not be listed
    channel: str = "testing"
    dates: str = "/nonexistent"  # the file that says when its version is retired
    holds: tuple[tuple[str, str], ...] = ()  # ((CUDA, its version), ...)
    pip: tuple[tuple[str, str], ...] = ()  # ((package, its version), ...)
    # ((node type, how its driver runs the image), ...), as it was when it was published
    fits: tuple[tuple[str, str], ...] = ()
    # ((what, value), ...) of the report that it was published with
    tested: tuple[tuple[str, str], ...] = ()
    override: str = ""  # why it was published although the gate was shut
    environment: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[str, ...] = ()
    network: Network = Network()
    runtime: str = "auto"
    without_gpus: bool = False  # no node of the site has one: NVIDIA's hooks must not look for it
    platform: str = "linux/amd64"

    @property
    def version(self) -> str:
        """`24.11-r1`."""
        return f"{self.stack.release_version}-r{self.number}"

    @property
    def name(self) -> str:
        """`pytorch/24.11-r1`."""
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
        return read_driver_needs(self.environment)


def render_modulefile(release: Release) -> str:
    """Return the Lua modulefile.

    It names nothing but absolute paths of this release, so whatever it loads it can unload.
    """
    return fill_template(
        "modules",
        "modulefile.lua.j2",
        help=help_text(release),
        extensions=", ".join(list_extensions(release)),
        **_list_values(release),
    )


def render_modulefile_tcl(release: Release) -> str:
    """Return the same in Tcl, for Environment Modules."""
    return fill_template(
        "modules",
        "modulefile.tcl.j2",
        help=help_text(release).rstrip("\n").split("\n"),
        **_list_values(release),
    )


def _list_values(release: Release) -> dict[str, object]:
    """Return what both templates are filled with. InputError for control characters in it."""
    names = (release.name, release.stack.full_name, release.sha256)
    paths = (release.image, release.folder, release.dates)
    for value in (*names, *paths):
        # On Lmod 8.6 a newline in setenv runs what follows it: TACC/Lmod #659.
        if CONTROL.search(value):
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
        "settings": list_module_settings(release.stack),
    }


def list_module_settings(stack: Stack) -> list[tuple[str, str, str, str]]:
    """Return (act, variable, value, separator) of what the recipe's `module.environment` says.

    ACT is set, prepend or append. They stand in the order of a modulefile: what is prepended last
    comes first, so values are prepended in reverse.
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
    """Return ENVIRONMENT as loading a module of STACK leaves it, but for hpcstack's variables."""
    after = dict(environment)
    for act, name, value, separator in list_module_settings(stack):
        had = after.get(name, "")
        if act == "set" or not had:
            after[name] = value
        elif act == "prepend":
            after[name] = f"{value}{separator}{had}"
        else:
            after[name] = f"{had}{separator}{value}"
    return after


def list_whatis(release: Release) -> list[str]:
    """Return the lines of `module whatis`, cut at `WIDTH`."""
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
    """Return ((node type, how its driver and GPU run an image), ...).

    The image is for PLATFORM and has ENVIRONMENT. Node types without real GPUs, or of another
    platform, are left out.
    """
    return tuple(
        (name, str(judge_fit(node.driver, node.gpus.model, environment)))
        for name, node in site.node_types.items()
        if node.gpus and node.real_gpus and node.driver and node.platform == platform
    )


def help_text(release: Release) -> str:
    """Return what `module help` shows: what is inside, what was tested, and lines to copy."""
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

    tests = "Tests:" if "verdict" in dict(release.tested) else "Tests: none of this image"
    lines += ["", f"Channel: {release.channel}. {tests}"]
    lines += [f"  {name}: {value}" for name, value in release.tested]
    if release.override:
        lines.append(f"  PUBLISHED ALTHOUGH THE GATE WAS SHUT: {release.override}")
    if release.stand_in:
        lines += ["", f"STAND-IN, not NVIDIA's image: {release.stand_in}"]
    if release.adopted:
        lines += ["", f"ADOPTED, not built by hpcstack: {release.adopted}"]
    if release.unlisted:
        shown = [f"  {line}" for line in release.unlisted[:MOST_UNLISTED]]
        more = len(release.unlisted) - len(shown)
        shown += [f"  and {more} more"] if more > 0 else []
        lines += ["", "UNKNOWN, packages that could not be listed:", *shown]
    lines += ["", *list_lines_to_copy(release)]
    if stack.module.wrapped:
        lines.append(f"On this node:           {', '.join(stack.module.wrapped)}")
    return "\n".join(join_lines(text) for text in lines) + "\n"


def list_lines_to_copy(release: Release) -> list[str]:
    """Return lines that use the release, by `hpcstack launch` and by srun itself.

    They run in the user's current folder; COMMAND stands for what is to be run.
    """
    stack = release.stack
    launch = f"hpcstack launch {stack.full_name} -N 2"
    srun = "srun -N 2 --ntasks-per-node=1"
    if stack.launch.mode == "mpi":
        srun += " --mpi=pmix"

    # Where no node has a GPU the module sets the variable to `void`. Without this option the
    # image's own value would win over it.
    void = " --container-env=NVIDIA_VISIBLE_DEVICES" if release.without_gpus else ""
    pyxis = (
        f'{srun}{void} --container-image="$HPCSTACK_IMAGE" --container-mounts="$PWD:$PWD" '
        f'--container-workdir="$PWD" /opt/hpcstack/compat.sh COMMAND'
    )
    has_cuda = any(name == "CUDA" for name, _ in release.holds)
    nv = "--nv " if has_cuda and not release.without_gpus else ""
    apptainer = f'{srun} apptainer exec {nv}--bind "$PWD" --pwd "$PWD" "$HPCSTACK_IMAGE" COMMAND'
    return [
        f"On two nodes, now:      {launch} -- train.py",
        f"As a batch job:         {launch} --batch -- train.py",
        "By hand, on a node:     hpcstack python, hpcstack shell",
        f"By srun with Pyxis:     {pyxis}",
        f"By srun and Apptainer:  {apptainer}",
    ]


def list_extensions(release: Release) -> list[str]:
    """Return what `module spider` finds beside modules: `torch/2.6.0a0+...`, as it is in the image.

    Of the Python packages that is what users search for, and what the recipe adds.
    """
    added = {
        re.split(r"[^A-Za-z0-9._-]", text, maxsplit=1)[0].lower()
        for text in release.stack.packages.pip
    }
    out = []
    for name, version in release.pip:
        is_wanted = SHOWN.fullmatch(name) or name.lower() in added
        if is_wanted and PLAIN.fullmatch(name) and PLAIN.fullmatch(version):
            out.append(f"{name}/{version}")
    return out


def render_wrappers(release: Release) -> dict[str, str]:
    """Return {path: script} of the release's wrappers.

    `libexec/run` chooses the runtime; each of the recipe's commands has a `bin/COMMAND`, which
    calls it.
    """
    run = f"{release.folder}/libexec/run"
    out = {}
    for command in release.stack.module.wrapped:
        out[f"bin/{command}"] = fill_template(
            "modules", "wrapper.sh.j2", command=command, release=release.name, run=run
        )

    image = {
        name: value
        for name, value in sorted(release.environment.items())
        if VARIABLE.fullmatch(name)
    }
    image_environment = [
        (name, value)
        for name, value in image.items()
        if name not in OWN and name not in release.network.names
    ]
    # Where the wrapper cannot start the site's runtime by itself, it takes what is there.
    runtime = RUNTIMES.get(release.runtime)

    out["libexec/run"] = fill_template(
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
        image_environment=image_environment,
        network=release.network,
        host_libraries=HOST_LIBRARIES,
        runtime=runtime.name if runtime and runtime.in_modules else "auto",
    )
    return out
