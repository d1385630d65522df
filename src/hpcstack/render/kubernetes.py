"""A command in a stack's image as objects of Kubernetes: Kubeflow Trainer's TrainJob, or a JobSet.

Sources: https://www.kubeflow.org/docs/components/trainer (trainer.kubeflow.org/v1alpha1) and
https://jobset.sigs.k8s.io/docs (jobset.x-k8s.io/v1alpha2).

Tested in tests/unit/render/test_front_ends.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from hpcstack.core.errors import InputError
from hpcstack.render.edf import own_variables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcstack.recipe.model import Stack

GPU = "nvidia.com/gpu"  # as NVIDIA's device plugin names it
RUNTIME = "torch-distributed"  # the ClusterTrainingRuntime that Trainer brings for PyTorch
PORT = 29500
SHM = "/dev/shm"
MAX_NAME = 47  # a JobSet's name is part of its pods' host names, which have 63 characters


@dataclass(frozen=True)
class ClusterJob:
    """What is to run: COMMAND in IMAGE on NODES nodes with GPUS GPUs each."""

    image: str  # of a registry
    command: tuple[str, ...]
    nodes: int
    gpus: int

    def __post_init__(self) -> None:
        if not self.image:
            raise InputError(
                "Kubernetes pulls its images from a registry",
                "hpcstack push STACK REGISTRY/NAME, then --image REGISTRY/NAME:TAG",
                page="other-front-ends",
            )
        if not self.command:
            raise InputError(
                "say what is to run",
                "hpcstack render STACK --format kubernetes --image REF -- train.py",
                page="other-front-ends",
            )

    @property
    def ranks(self) -> int:
        """Ranks of each node: one for each GPU."""
        return max(self.gpus, 1)


def render_train_job(stack: Stack, job: ClusterJob) -> str:
    """Return the TrainJob that runs JOB, as YAML."""
    words = job.command
    if stack.launch.mode in ("torchrun", "task-per-gpu"):
        words = ("torchrun", *words)
    document = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": make_object_name(stack.full_name), "labels": _make_labels(stack)},
        "spec": {
            "runtimeRef": {
                "apiGroup": "trainer.kubeflow.org",
                "kind": "ClusterTrainingRuntime",
                "name": RUNTIME,
            },
            "trainer": {
                "image": job.image,
                "command": _escape_words(words),
                "env": _make_environment(),
                "numNodes": job.nodes,
                "numProcPerNode": job.ranks,
                "resourcesPerNode": _make_resources(job),
            },
        },
    }
    return _dump(document)


def render_job_set(stack: Stack, job: ClusterJob) -> str:
    """Return the JobSet that runs JOB, as YAML: a pod for each node, which starts torchrun."""
    name = make_object_name(stack.full_name)
    container = {
        "name": "node",
        "image": job.image,
        "command": _make_node_command(stack, job, name),
        "env": _make_environment(),
        "resources": _make_resources(job),
        # Ranks of a node and data loaders share memory; the default is 64 MiB.
        "volumeMounts": [{"name": "shm", "mountPath": SHM}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    of_job = {
        "parallelism": job.nodes,
        "completions": job.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }
    document = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": _make_labels(stack)},
        "spec": {
            "failurePolicy": {"maxRestarts": 0},
            "network": {"enableDNSHostnames": True},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": of_job}}],
        },
    }
    return _dump(document)


def _make_node_command(stack: Stack, job: ClusterJob, name: str) -> list[str]:
    """Return what each pod runs: torchrun, which finds the first pod by its name in the DNS."""
    if stack.launch.mode not in ("torchrun", "task-per-gpu"):
        return _escape_words(job.command)
    # JOBSET-REPLICATEDJOB-JOB-POD.JOBSET: how a JobSet names the first of its pods.
    first = f"{name}-node-0-0.{name}"
    return [
        "torchrun",
        f"--nnodes={job.nodes}",
        f"--nproc-per-node={job.ranks}",
        "--node-rank=$(JOB_COMPLETION_INDEX)",
        f"--master-addr={first}",
        f"--master-port={PORT}",
        *_escape_words(job.command),
    ]


def make_object_name(full_name: str) -> str:
    """Return FULL_NAME as the name of an object: small letters, digits and hyphens (RFC 1035)."""
    plain = re.sub(r"[^a-z0-9]+", "-", full_name.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"stack-{plain}"
    return plain[:MAX_NAME].rstrip("-")


def _make_labels(stack: Stack) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": stack.name[:63],
        "app.kubernetes.io/version": stack.release_version.replace("+", "_")[:63],
        "app.kubernetes.io/managed-by": "hpcstack",
    }


def _make_environment() -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in own_variables().items()]


def _make_resources(job: ClusterJob) -> dict[str, Any]:
    if not job.gpus:
        return {}
    return {"limits": {GPU: job.gpus}, "requests": {GPU: job.gpus}}


def _escape_words(words: Sequence[str]) -> list[str]:
    """Return WORDS so that Kubernetes fills nothing in.

    It reads `$(NAME)` as a variable, and `$$` as `$`.
    """
    return [word.replace("$", "$$") for word in words]


def _dump(document: dict[str, Any]) -> str:
    """Return DOCUMENT as YAML, its keys in their order."""
    text: str = yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)
    return text
