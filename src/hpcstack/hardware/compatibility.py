"""Whether a driver and a GPU run an image, by which of NVIDIA's rules, and where that is written.

lint, modules and launchers share this one answer. Pure; facts/cuda.yaml and facts/gpus.yaml are its
tables. NVIDIA's terms: https://docs.nvidia.com/deploy/cuda-compatibility/
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcstack.core.data import read_facts
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
    """Whether an image runs: the KIND of answer, the RULE in a few words, and its SOURCE.

    CERTAIN is False where a fact was missing or not looked up.
    """

    kind: Kind
    rule: str
    source: str = ""
    certain: bool = True

    @property
    def runs(self) -> bool:
        """Whether nothing is known that keeps the image from running."""
        return self.kind != "does not run"

    def __str__(self) -> str:
        text = f"{self.kind}: {self.rule}"
        if not self.certain:
            text += " (not certain)"
        return text


def judge_fit(driver: str, model: str, image: Mapping[str, str]) -> Fit:
    """Return how a driver and a GPU run an image.

    DRIVER is a version (`535.104.05`) or a branch (`535`), MODEL the GPU's name, IMAGE the image's
    variables. An empty DRIVER or MODEL is unknown, and not held against the image.
    """
    cuda = image.get("CUDA_VERSION", "")
    if not cuda:
        return Fit("unknown", "the image names no CUDA_VERSION")
    if not VERSION.fullmatch(cuda):
        what = f"the image's CUDA_VERSION is not a version: {cuda[:40]!r}"
        return Fit("unknown", what, certain=False)

    gpu = facts.find_gpu(model) if model else None
    refused = _refuse_gpu(gpu, cuda, image.get("TORCH_CUDA_ARCH_LIST", ""))
    if refused:
        return refused
    if not driver:
        return Fit("unknown", "the site does not say which driver its nodes have", certain=False)

    found = _judge_driver(driver, gpu, cuda, image)
    doubt = _doubt_driver(driver, gpu)
    if found.runs and doubt:
        return Fit("unknown", doubt, certain=False)
    return found


def parse_version(text: str) -> tuple[int, ...]:
    """Return TEXT as numbers, so that versions compare: `12.6.3.001` as (12, 6, 3, 1).

    What stands behind a `+` does not count.
    """
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", text.partition("+")[0]))


def _at_least(driver: str, wanted: str) -> bool:
    """Return whether DRIVER is WANTED or newer; a bare branch counts as the newest of it."""
    have, need = parse_version(driver), parse_version(wanted)
    if len(have) == 1:
        return have[:1] >= need[:1]
    return have >= need


def _cite(name: str, keys: list[str] | tuple[str, ...]) -> str:
    """Return the source of the first of KEYS, and where to find those of the others.

    It is read in a warning, beside a recipe's line, so it has to be short.
    """
    first = facts.find_source(name, keys[0])
    if len(keys) == 1:
        return first
    return f"{first}, and {len(keys) - 1} more in facts/{name}.yaml"


def find_toolkit_driver(cuda: str, image: Mapping[str, str]) -> tuple[str, str]:
    """Return the driver that ships with the toolkit CUDA, and the source; two empty texts for none.

    Where the table has no row, it is what the IMAGE says itself, or the newest of the same minor
    release.
    """
    rows: list[dict[str, Any]] = read_facts("cuda")["toolkits"]
    wanted = parse_version(cuda)[:3]
    for row in rows:
        if parse_version(row["cuda"]) == wanted:
            return row["driver"], _cite("cuda", row["source"])
    own = image.get("CUDA_DRIVER_VERSION", "")
    if VERSION.fullmatch(own):
        return own, "CUDA_DRIVER_VERSION of the image"

    same = [row for row in rows if parse_version(row["cuda"])[:2] == wanted[:2]]
    if not same:
        return "", ""
    last = max(same, key=lambda row: parse_version(row["cuda"]))
    return last["driver"], _cite("cuda", last["source"])


def _refuse_gpu(gpu: Gpu | None, cuda: str, architectures: str) -> Fit | None:
    """Return why GPU cannot run the image's code, whatever the driver; None where nothing says so.

    ARCHITECTURES is what the image's code is compiled for, such as `8.0 9.0 12.0+PTX`.
    """
    if gpu is None:
        return None
    where = _cite("gpus", gpu.source)
    name = f"{gpu.model} (sm_{gpu.capability.replace('.', '')})"

    if gpu.cuda_last and parse_version(cuda)[:2] > parse_version(gpu.cuda_last):
        rule = f"CUDA {cuda} has dropped the {name}; CUDA {gpu.cuda_last} was the last"
        return Fit("does not run", rule, where)

    if _read_architectures(architectures):
        # What was compiled decides: a B300 runs 10.0 code of a CUDA that does not know it.
        if has_sass(gpu.capability, architectures):
            return None
        if not is_covered(gpu.capability, architectures):
            rule = (
                f"the image is compiled for {architectures}, "
                f"not for the {gpu.model} ({gpu.capability})"
            )
            return Fit("does not run", rule, "TORCH_CUDA_ARCH_LIST of the image")

    if gpu.cuda_first and parse_version(cuda)[:2] < parse_version(gpu.cuda_first):
        # PTX may be compiled for it, but CUDA's own libraries hold no code for it: 24.11 sees a
        # GB10 and cannot use it.
        rule = f"CUDA {cuda} does not know the {name}; CUDA {gpu.cuda_first} is the first"
        return Fit("does not run", rule, where, certain=False)
    return None


def is_covered(capability: str, architectures: str) -> bool:
    """Return whether code for ARCHITECTURES (`8.0 9.0 12.0+PTX`) runs on CAPABILITY.

    It runs as SASS of the same major capability, or is compiled from PTX of a lower one.
    """
    if has_sass(capability, architectures):
        return True
    return any(
        ptx and not suffix and number <= parse_version(capability)
        for number, suffix, ptx in _read_architectures(architectures)
    )


def has_sass(capability: str, architectures: str) -> bool:
    """Return whether ARCHITECTURES have compiled code (SASS) that runs on CAPABILITY.

    It is of the same major and no higher minor; `9.0a` is for exactly that capability.
    """
    major, minor = parse_version(capability)[:2]
    for number, suffix, _ in _read_architectures(architectures):
        if number[0] != major:
            continue
        if number[1] == minor or (suffix != "a" and number[1] < minor):
            return True
    return False


def _read_architectures(text: str) -> list[tuple[tuple[int, ...], str, bool]]:
    """Return ((major, minor), suffix, whether PTX is there) of each entry of an architecture list.

    The suffix is `a`, `f` or nothing.
    """
    found = re.findall(r"(?<![0-9.])([0-9]{1,3})(?:\.([0-9]{1,3}))?([af]?)(\+PTX)?(?![0-9.])", text)
    return [
        ((int(major), int(minor or 0)), suffix, bool(ptx)) for major, minor, suffix, ptx in found
    ]


def _doubt_driver(driver: str, gpu: Gpu | None) -> str:
    """Return why the driver may not know the GPU at all; empty where nothing says so.

    facts/gpus.yaml has no source for a GPU's first and last branch. So this is told, and nothing is
    refused for it.
    """
    if gpu and gpu.first_driver and parse_version(driver)[:1] < parse_version(gpu.first_driver):
        known = f"{gpu.first_driver} is said to be the first, without a source"
        return f"driver {driver} may be too old for the {gpu.model}: {known}"
    if gpu and gpu.last_driver and parse_version(driver)[:1] > parse_version(gpu.last_driver):
        known = f"{gpu.last_driver} is said to be the last, without a source"
        return f"driver {driver} may no longer know the {gpu.model}: {known}"
    return ""


def _judge_driver(driver: str, gpu: Gpu | None, cuda: str, image: Mapping[str, str]) -> Fit:
    """Return by which rule DRIVER runs an image of CUDA: native, minor-version or forward."""
    needed, where = find_toolkit_driver(cuda, image)
    if not needed:
        return Fit("unknown", f"no driver is known for CUDA {cuda}", certain=False)
    if _at_least(driver, needed):
        rule = f"driver {driver} is CUDA {cuda}'s own ({needed}) or newer"
        return Fit("native", rule, where)
    minor = _find_minor_row(cuda)
    if minor and _at_least(driver, minor["driver"]):
        return _judge_minor(driver, gpu, cuda, image, minor)
    return _judge_forward(driver, gpu, cuda, image)


def _find_minor_row(cuda: str) -> dict[str, Any] | None:
    """Return the row of facts/cuda.yaml on minor-version compatibility within CUDA's major."""
    for row in read_facts("cuda")["minor_version"]:
        if row["major"] == cuda.partition(".")[0]:
            found: dict[str, Any] = row
            return found
    return None


def _find_forward_row(cuda: str) -> dict[str, Any] | None:
    """Return the row of facts/cuda.yaml on the branches that CUDA's compat libraries serve."""
    for row in read_facts("cuda")["forward_branches"]:
        if parse_version(row["cuda"])[:2] == parse_version(cuda)[:2]:
            found: dict[str, Any] = row
            return found
    return None


def _list_forward_branches(cuda: str, image: Mapping[str, str]) -> tuple[str, ...]:
    """Return the driver branches that CUDA's compat libraries serve; the image's own word first."""
    named = read_required_branches(image.get("NVIDIA_REQUIRE_CUDA", ""))
    row = _find_forward_row(cuda)
    if named or not row:
        return named
    return tuple(row["branches"])


def _judge_minor(
    driver: str, gpu: Gpu | None, cuda: str, image: Mapping[str, str], row: Mapping[str, Any]
) -> Fit:
    """Return whether a DRIVER of the same CUDA major, as ROW has it, runs the image."""
    architectures = image.get("TORCH_CUDA_ARCH_LIST", "")
    # Only the driver of the image's own CUDA, or a newer one, compiles that CUDA's PTX.
    if gpu and _read_architectures(architectures) and not has_sass(gpu.capability, architectures):
        rule = (
            f"the {gpu.model} needs PTX of CUDA {cuda} compiled, "
            f"and driver {driver} is older than that CUDA"
        )
        return Fit("does not run", rule, _cite("cuda", ["FAQ", "NUMBA"]), certain=False)
    rule = (
        f"driver {driver} is of CUDA {row['major']} (>= {row['driver']}), as CUDA {cuda} is; "
        "with limited features"
    )
    return Fit("minor-version compatible", rule, _cite("cuda", row["source"]))


def _judge_forward(driver: str, gpu: Gpu | None, cuda: str, image: Mapping[str, str]) -> Fit:
    """Return whether a DRIVER of an older CUDA major runs the image.

    It takes the image's own libcuda, a data-centre GPU, and a branch that this libcuda serves.
    """
    tables = read_facts("cuda")
    where = _cite("cuda", tables["forward"]["source"])
    if gpu and gpu.kind == "consumer":
        rule = (
            f"driver {driver} is older than CUDA {cuda}, "
            f"and forward compatibility is not for the {gpu.model}"
        )
        return Fit("does not run", rule, where)

    branch = str(parse_version(driver)[0])
    branches = _list_forward_branches(cuda, image)
    if branches and branch not in branches:
        rule = (
            f"driver {driver} is older than CUDA {cuda}, whose compat libraries serve branches "
            f"{', '.join(branches)}"
        )
        row = _find_forward_row(cuda)
        source = "NVIDIA_REQUIRE_CUDA of the image"
        if row:
            source = _cite("cuda", row["source"])
        return Fit("does not run", rule, source)

    certain = bool(branches) and gpu is not None and gpu.kind == "data-centre"
    rule = f"driver {driver} is older than CUDA {cuda}: {COMPAT_NOTE}"
    if not branches:
        rule += f"; whether they serve branch {branch} is not known: prove it with hpcstack test"
    return Fit("forward compatible", rule, where, certain)


@dataclass(frozen=True)
class Driver:
    """Which drivers run an image of CUDA.

    NATIVE is the toolkit's own, LEAST the oldest that minor-version compatibility allows, BRANCHES
    those that run it forward compatible, separated by blanks. Empty texts are unknown.
    """

    cuda: str = ""
    native: str = ""
    least: str = ""
    branches: str = ""


def read_driver_needs(image: Mapping[str, str]) -> Driver:
    """Return the drivers that run an image with the variables IMAGE; empty where no fact says."""
    cuda = image.get("CUDA_VERSION", "")
    if not VERSION.fullmatch(cuda):
        return Driver()
    native, _ = find_toolkit_driver(cuda, image)
    minor = _find_minor_row(cuda)
    branches = _list_forward_branches(cuda, image)
    least = minor["driver"] if minor else native
    if native and parse_version(native) < parse_version(least):
        least = native
    return Driver(cuda, native or least, least, " ".join(str(branch) for branch in branches))


def read_required_branches(expression: str) -> tuple[str, ...]:
    """Return the driver branches that NVIDIA_REQUIRE_CUDA lists.

    Each is written as `brand=tesla,driver>=535,driver<536`.
    """
    found = re.findall(r"driver>=([0-9]{1,9}),driver<([0-9]{1,9})(?![0-9])", expression)
    return tuple(dict.fromkeys(low for low, high in found if int(high) == int(low) + 1))
