"""Whether a driver and a GPU run a base image, by which of NVIDIA's rules, and where the rule is
written.

The one answer that lint, modules and launchers share. Pure; facts/cuda.yaml and facts/gpus.yaml are
its tables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcstack.hardware import facts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcstack.hardware.facts import Gpu

Kind = Literal[
    "native", "minor-version compatible", "forward compatible", "does not run", "unknown"
]
VERSION = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9}){0,5}([+-].{0,40})?")
COMPAT_NOTE = "the image's own libcuda (cuda-compat) must come first on LD_LIBRARY_PATH"


@dataclass(frozen=True)
class Fit:
    """KIND, the rule in a few words, and its source.

    `certain` is False where a fact was missing or not looked up.
    """

    kind: Kind
    rule: str
    source: str = ""
    certain: bool = True

    @property
    def runs(self) -> bool:
        return self.kind != "does not run"

    @property
    def needs_compat(self) -> bool:
        return self.kind == "forward compatible"

    def __str__(self) -> str:
        return f"{self.kind}: {self.rule}" + ("" if self.certain else " (not certain)")


def judge_fit(driver: str, model: str, image: Mapping[str, str]) -> Fit:
    """How DRIVER (`535.104.05`, or a branch `535`) and the GPU MODEL run an image with the
    variables IMAGE.

    An empty DRIVER or MODEL is unknown and is not held against the image.
    """
    cuda = image.get("CUDA_VERSION", "")
    if not cuda:
        return Fit("unknown", "the image names no CUDA_VERSION")
    if not VERSION.fullmatch(cuda):
        return Fit(
            "unknown", f"the image's CUDA_VERSION is not a version: {cuda[:40]!r}", certain=False
        )
    known = facts.find_gpu(model) if model else None
    if wrong := _silicon(known, cuda, image.get("TORCH_CUDA_ARCH_LIST", "")):
        return wrong
    if not driver:
        return Fit("unknown", "the site does not say which driver its nodes have", certain=False)
    found = _compatibility(driver, known, cuda, image)
    if found.runs and (doubt := _doubt_about_silicon(driver, known)):
        return Fit("unknown", doubt, certain=False)
    return found


def parse_version(text: str) -> tuple[int, ...]:
    """`12.6.3.001` as (12, 6, 3, 1), so that versions compare as such."""
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", text.partition("+")[0]))


def _at_least(driver: str, wanted: str) -> bool:
    """Whether DRIVER is WANTED or newer; a bare branch counts as the newest of that branch."""
    have, need = parse_version(driver), parse_version(wanted)
    return have[:1] >= need[:1] if len(have) == 1 else have >= need


def _source(name: str, keys: list[str] | tuple[str, ...]) -> str:
    """The first of KEYS' sources, and where the others are: they are read in a warning, beside a
    recipe.
    """
    first = facts.find_source(name, keys[0])
    return first if len(keys) == 1 else f"{first}, and {len(keys) - 1} more in facts/{name}.yaml"


def toolkit_driver(cuda: str, image: Mapping[str, str]) -> tuple[str, str]:
    """The driver that ships with toolkit CUDA, and the source; the image's own word where the table
    has no row.
    """
    rows: list[dict[str, Any]] = facts.read_facts("cuda")["toolkits"]
    wanted = parse_version(cuda)[:3]
    for row in rows:
        if parse_version(row["cuda"]) == wanted:
            return row["driver"], _source("cuda", row["source"])
    own = image.get("CUDA_DRIVER_VERSION", "")
    if VERSION.fullmatch(own):
        return own, "CUDA_DRIVER_VERSION of the image"
    same = [row for row in rows if parse_version(row["cuda"])[:2] == wanted[:2]]
    last = max(same, key=lambda row: parse_version(row["cuda"]), default=None)
    return (last["driver"], _source("cuda", last["source"])) if last else ("", "")


def _silicon(gpu: Gpu | None, cuda: str, architectures: str) -> Fit | None:
    """Why the GPU cannot run the image's code, whatever the driver; None where nothing speaks
    against it.
    """
    if gpu is None:
        return None
    where = _source("gpus", gpu.source)
    if gpu.cuda_last and parse_version(cuda)[:2] > parse_version(gpu.cuda_last):
        rule = (
            f"CUDA {cuda} has dropped the {gpu.model} (sm_{_sm(gpu)}); CUDA {gpu.cuda_last} was "
            f"the last"
        )
        return Fit("does not run", rule, where)
    architectures = architectures if _entries(architectures) else ""
    if architectures and has_sass(gpu.capability, architectures):
        return (
            None  # what was compiled decides: a B300 runs 10.0 code of a CUDA that does not know it
        )
    if architectures and not is_covered(gpu.capability, architectures):
        rule = (
            f"the image is compiled for {architectures}, not for the {gpu.model} ({gpu.capability})"
        )
        return Fit("does not run", rule, "TORCH_CUDA_ARCH_LIST of the image")
    if gpu.cuda_first and parse_version(cuda)[:2] < parse_version(gpu.cuda_first):
        # PTX may be compiled for it, but CUDA's own libraries hold no code for it: 24.11 sees a
        # GB10 and cannot use it.
        rule = (
            f"CUDA {cuda} does not know the {gpu.model} (sm_{_sm(gpu)}); CUDA {gpu.cuda_first} is "
            f"the first"
        )
        return Fit("does not run", rule, where, certain=False)
    return None


def _sm(gpu: Gpu) -> str:
    return gpu.capability.replace(".", "")


def is_covered(capability: str, architectures: str) -> bool:
    """Whether code for ARCHITECTURES (`8.0 9.0 12.0+PTX`) runs on CAPABILITY: as SASS of its major,
    or from PTX.
    """
    return has_sass(capability, architectures) or any(
        ptx and not suffix and number <= parse_version(capability)
        for number, suffix, ptx in _entries(architectures)
    )


def has_sass(capability: str, architectures: str) -> bool:
    """Whether there is compiled code: of the same major and no higher minor; `9.0a` is for exactly
    that capability.
    """
    major, minor = parse_version(capability)[:2]
    return any(
        number[0] == major and (number[1] == minor if suffix == "a" else number[1] <= minor)
        for number, suffix, _ in _entries(architectures)
    )


def _entries(architectures: str) -> list[tuple[tuple[int, ...], str, bool]]:
    """((major, minor), `a` or `f` or nothing, whether PTX is there) of each entry of an arch list."""
    found = re.findall(
        r"(?<![0-9.])([0-9]{1,3})(?:\.([0-9]{1,3}))?([af]?)(\+PTX)?(?![0-9.])", architectures
    )
    return [
        ((int(major), int(minor or 0)), suffix, bool(ptx)) for major, minor, suffix, ptx in found
    ]


def _doubt_about_silicon(driver: str, gpu: Gpu | None) -> str:
    """Why the driver may not know the GPU at all; empty where nothing speaks against it.

    Which branch was a GPU's first or last has no source in facts/gpus.yaml. It is told, and nothing
    is refused for it.
    """
    if gpu and gpu.first_driver and parse_version(driver)[:1] < parse_version(gpu.first_driver):
        known = f"{gpu.first_driver} is said to be the first, without a source"
        return f"driver {driver} may be too old for the {gpu.model}: {known}"
    if gpu and gpu.last_driver and parse_version(driver)[:1] > parse_version(gpu.last_driver):
        known = f"{gpu.last_driver} is said to be the last, without a source"
        return f"driver {driver} may no longer know the {gpu.model}: {known}"
    return ""


def _compatibility(driver: str, gpu: Gpu | None, cuda: str, image: Mapping[str, str]) -> Fit:
    needed, where = toolkit_driver(cuda, image)
    if not needed:
        return Fit("unknown", f"no driver is known for CUDA {cuda}", certain=False)
    if _at_least(driver, needed):
        rule = f"driver {driver} is CUDA {cuda}'s own ({needed}) or newer"
        return Fit("native", rule, where)
    minor = next(
        (
            row
            for row in facts.read_facts("cuda")["minor_version"]
            if row["major"] == cuda.partition(".")[0]
        ),
        None,
    )
    if minor and _at_least(driver, minor["driver"]):
        return _minor(driver, gpu, cuda, image, minor)
    return _forward(driver, gpu, cuda, image)


def _minor(
    driver: str, gpu: Gpu | None, cuda: str, image: Mapping[str, str], row: Mapping[str, Any]
) -> Fit:
    architectures = image.get("TORCH_CUDA_ARCH_LIST", "")
    if gpu and _entries(architectures) and not has_sass(gpu.capability, architectures):
        rule = (
            f"the {gpu.model} needs PTX of CUDA {cuda} compiled, and driver {driver} is older than "
            f"that CUDA"
        )
        return Fit("does not run", rule, _source("cuda", ["FAQ", "NUMBA"]), certain=False)
    rule = (
        f"driver {driver} is of CUDA {row['major']} (>= {row['driver']}), as CUDA {cuda} is; with "
        f"limited features"
    )
    return Fit("minor-version compatible", rule, _source("cuda", row["source"]))


def _forward(driver: str, gpu: Gpu | None, cuda: str, image: Mapping[str, str]) -> Fit:
    """Across majors: the image's own libcuda, on data-centre GPUs, over the branches that it was
    made for.
    """
    tables = facts.read_facts("cuda")
    where = _source("cuda", tables["forward"]["source"])
    if gpu and gpu.kind == "consumer":
        rule = (
            f"driver {driver} is older than CUDA {cuda}, and forward compatibility is not for the "
            f"{gpu.model}"
        )
        return Fit("does not run", rule, where)
    branch = str(parse_version(driver)[0])
    row = next(
        (
            r
            for r in tables["forward_branches"]
            if parse_version(r["cuda"])[:2] == parse_version(cuda)[:2]
        ),
        None,
    )
    branches = required_branches(image.get("NVIDIA_REQUIRE_CUDA", "")) or (
        tuple(row["branches"]) if row else ()
    )
    if branches and branch not in branches:
        rule = (
            f"driver {driver} is older than CUDA {cuda}, whose compat libraries serve branches "
            f"{', '.join(branches)}"
        )
        return Fit(
            "does not run",
            rule,
            _source("cuda", row["source"]) if row else "NVIDIA_REQUIRE_CUDA of the image",
        )
    certain = bool(branches) and gpu is not None and gpu.kind == "data-centre"
    rule = f"driver {driver} is older than CUDA {cuda}: {COMPAT_NOTE}"
    if not branches:
        rule += f"; whether they serve branch {branch} is not known: prove it with hpcstack test"
    return Fit("forward compatible", rule, where, certain)


@dataclass(frozen=True)
class Driver:
    """Which drivers run an image: its own (NATIVE), the LEAST of its CUDA's major, forward
    compatible BRANCHES.
    """

    cuda: str = ""
    native: str = ""
    least: str = ""
    branches: str = ""


def driver_of(image: Mapping[str, str]) -> Driver:
    """The drivers for an image with the variables IMAGE; empty where no fact says."""
    cuda = image.get("CUDA_VERSION", "")
    if not VERSION.fullmatch(cuda):
        return Driver()
    native, _ = toolkit_driver(cuda, image)
    tables = facts.read_facts("cuda")
    minor = next(
        (row for row in tables["minor_version"] if row["major"] == cuda.partition(".")[0]), None
    )
    row = next(
        (
            r
            for r in tables["forward_branches"]
            if parse_version(r["cuda"])[:2] == parse_version(cuda)[:2]
        ),
        None,
    )
    branches = required_branches(image.get("NVIDIA_REQUIRE_CUDA", "")) or (
        tuple(row["branches"]) if row else ()
    )
    least = minor["driver"] if minor else native
    if native and parse_version(native) < parse_version(least):
        least = native
    return Driver(cuda, native or least, least, " ".join(str(branch) for branch in branches))


def required_branches(expression: str) -> tuple[str, ...]:
    """The driver branches that NVIDIA_REQUIRE_CUDA lists (`brand=tesla,driver>=535,driver<536`)."""
    found = re.findall(r"driver>=([0-9]{1,9}),driver<([0-9]{1,9})(?![0-9])", expression)
    return tuple(dict.fromkeys(low for low, high in found if int(high) == int(low) + 1))
