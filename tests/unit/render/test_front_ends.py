"""What other front ends take: each by its own models, or by checks of ours from its specification."""

from __future__ import annotations

import ast
import re
import sys
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from kubeflow_trainer_api import models

from hpcstack.core import data
from hpcstack.core.errors import InputError
from hpcstack.preview import render_for_front_end
from hpcstack.recipe.catalog import Catalog
from hpcstack.recipe.model import Stack
from hpcstack.render.edf import render_edf
from hpcstack.render.kubernetes import (
    ClusterJob,
    make_object_name,
    render_job_set,
    render_train_job,
)
from hpcstack.render.reframe import render_reframe
from hpcstack.site.load import Site

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

IMAGE = "registry.example/hpc/pytorch:25.10"
# RFC 1035, as Kubernetes asks of names that become host names
LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
TEXT = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)


def make_stack(name: str = "pytorch-25.10", **changes: Any) -> Stack:
    stack = Catalog([data.find_data_folder("recipes")]).find(name).stack
    return stack.model_copy(update=changes)


def make_site(**values: Any) -> Site:
    return Site.model_validate(
        {"store": "/store", "lock_dir": "/locks", "module_root": "/modules", **values}
    )


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    if isinstance(value, list):
        return [without_none(one) for one in value]
    return value


# -- EDF, by the keys and types of its schema (sarus-suite/raster, src/schema/edf.json)


def check_edf(text: str) -> dict[str, Any]:
    found = tomllib.loads(text)
    kinds = {"image": str, "mounts": list, "env": dict, "entrypoint": bool}
    assert set(found) <= set(kinds)
    assert all(isinstance(found[key], kinds[key]) for key in found)
    assert all(isinstance(one, str) for one in found["env"].values())
    for mount in found.get("mounts", []):
        assert re.fullmatch(r"[^:]+:[^:]+(:[^:]+)?", mount)
    return found


def test_an_edf() -> None:
    site = make_site(mounts=["/scratch:/scratch", "/data:/srv/data"])
    found = check_edf(render_edf(make_stack(), site, "/store/images/x/image.sqsh"))
    assert found["image"] == "/store/images/x/image.sqsh"
    assert found["mounts"][:2] == ["/scratch:/scratch", "/data:/srv/data"]
    assert found["env"]["PYTHONNOUSERSITE"] == "1"
    assert found["entrypoint"] is False


def test_an_edf_has_the_fabrics_variables() -> None:
    slingshot = make_site(
        fabric={"kind": "slingshot", "settings": {"FI_CXI_ATS": {"value": "0", "reason": "a test"}}}
    )
    found = check_edf(render_edf(make_stack(), slingshot, IMAGE))
    assert found["env"]["FI_CXI_ATS"] == "0"
    assert "NCCL_NET" in found["env"]


def test_what_an_edf_would_fill_in_is_refused() -> None:
    with pytest.raises(InputError):
        render_edf(make_stack(), make_site(), "/store/${USER}/image.sqsh")


@given(TEXT.filter(lambda text: "${" not in text))
def test_any_image_name_stays_as_it_is(image: str) -> None:
    assert check_edf(render_edf(make_stack(), make_site(), image))["image"] == image


# -- Kubernetes, by the models of Kubeflow Trainer, which has those of JobSet, too


def check_train_job(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    model = models.TrainerV1alpha1TrainJob.from_dict(found)
    assert model is not None
    assert without_none(model.to_dict()) == found, "the model knows every key"
    assert LABEL.fullmatch(found["metadata"]["name"])
    return found


def check_job_set(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text)
    model = models.JobsetV1alpha2JobSet.from_dict(found)
    assert model is not None
    assert without_none(model.to_dict()) == found, "the model knows every key"
    (job,) = found["spec"]["replicatedJobs"]
    # jobset.sigs.k8s.io: JOBSET-JOB-INDEX-POD must be a host name, with the five letters of a pod
    assert len(f"{found['metadata']['name']}-{job['name']}-0-0-abcde") <= 63
    spec = job["template"]["spec"]
    assert spec["completions"] == spec["parallelism"]
    assert spec["template"]["spec"]["restartPolicy"] in ("Never", "OnFailure")
    return found


def test_a_train_job() -> None:
    job = ClusterJob(IMAGE, ("train.py", "--home", "$(HOME)"), 4, 8)
    found = check_train_job(render_train_job(make_stack(), job))["spec"]["trainer"]
    assert (found["numNodes"], found["numProcPerNode"]) == (4, 8)
    assert found["command"] == ["torchrun", "train.py", "--home", "$$(HOME)"]
    assert found["resourcesPerNode"]["limits"] == {"nvidia.com/gpu": 8}


def test_a_job_set() -> None:
    job = ClusterJob(IMAGE, ("train.py",), 4, 8)
    found = check_job_set(render_job_set(make_stack(), job))
    (one,) = found["spec"]["replicatedJobs"]
    pod = one["template"]["spec"]["template"]["spec"]
    command = pod["containers"][0]["command"]
    assert command[0] == "torchrun"
    assert "--node-rank=$(JOB_COMPLETION_INDEX)" in command
    assert "--master-addr=pytorch-25-10-node-0-0.pytorch-25-10" in command
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory"}


def test_without_gpus() -> None:
    job = ClusterJob(IMAGE, ("train.py",), 1, 0)
    assert (
        check_train_job(render_train_job(make_stack(), job))["spec"]["trainer"]["numProcPerNode"]
        == 1
    )
    check_job_set(render_job_set(make_stack(), job))


@example(["$$", "a$$(b)", "$(c)", "$"], 2, 8)  # text that is drawn hardly ever has two of them
@given(st.lists(TEXT, min_size=1, max_size=4), st.integers(1, 4096), st.integers(0, 16))
def test_any_command_stays_as_it_is(words: list[str], nodes: int, gpus: int) -> None:
    job = ClusterJob(IMAGE, tuple(words), nodes, gpus)
    for text in (
        check_train_job(render_train_job(make_stack(), job))["spec"]["trainer"]["command"],
        check_job_set(render_job_set(make_stack(), job))["spec"]["replicatedJobs"][0]["template"][
            "spec"
        ]["template"]["spec"]["containers"][0]["command"],
    ):
        # Kubernetes reads $$ as $, and fills in $(NAME).
        assert [word.replace("$$", "$") for word in text[-len(words) :]] == words
        assert not any("$(" in word.replace("$$", "") for word in text[-len(words) :])


@given(st.text(max_size=80))
def test_any_name_becomes_an_objects(name: str) -> None:
    assert LABEL.fullmatch(make_object_name(name))


def test_a_cluster_elsewhere_is_asked_for() -> None:
    asked: dict[str, Any] = {"command": ("x",), "nodes": 2, "own": ("hpcstack",)}
    with pytest.raises(InputError) as error:
        render_for_front_end(
            "kubernetes", make_stack(), make_site(), image=IMAGE, gpus=None, **asked
        )
    assert "--gpus-per-node" in error.value.hint
    with pytest.raises(InputError) as error:
        render_for_front_end("jobset", make_stack(), make_site(), image="", gpus=8, **asked)
    assert "hpcstack push" in error.value.hint
    with pytest.raises(InputError):
        render_for_front_end(
            "jobset", make_stack(), make_site(), image=IMAGE, gpus=8, **{**asked, "command": ()}
        )


# -- ReFrame, which runs it in tests/integration/test_front_ends.py


@given(st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_a_reframe_test_is_python_whatever_the_words(words: list[str]) -> None:
    text = render_reframe(make_stack(), words, 2, "quick")
    tree = ast.parse(text)
    own = next(
        node.value for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "OWN"
    )  # fmt: skip
    assert ast.literal_eval(own) == words
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    assert found.name == "Smoke_pytorch_25_10"
