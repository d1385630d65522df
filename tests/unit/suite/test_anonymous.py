"""Words that may name somebody, and what stands in their place: row T7 of what once got through."""

from __future__ import annotations

import ipaddress
import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcstack.suite.anonymous import Replacements, list_own_words
from hpcstack.suite.capsule import Capsule, hide_names, rejudge_capsule
from support import clusters
from support.capsules import run_nodes

# What names somebody, as machines and programs write it
NAMES = [
    "fe80:0000:0000:0000:0002:c903:00ab:cdef",  # a GID, as /sys has it
    "fe80::2:c903:ab:cdef",
    "2a00:1450:4001:81b::200e",
    "::ffff:10.31.7.9",
    "0000:0000:0000:0000:0000:ffff:0a1f:0709",
    "10.31.7.9",
    "0x0002c90300abcdef",  # a node's GUID
    "0002:c903:00ab:cdef",
    "0002c90300abcdef",
    "00:02:c9:ab:cd:ef",
    "80:00:00:02:fe:80:00:00:00:00:00:00:00:02:c9:03:00:ab:cd:ef",
    "9c6f5af3-53bf-49b5-a436-b66766c413c3",
    "GPU-9c6f5af3-53bf-49b5-a436-b66766c413c3",
    "MIG-9c6f5af3-53bf-49b5-a436-b66766c413c3",
    "1650522001234",
    "alice",
    "mallory42",
    "login-07.acme.example",
    "lustre-mds3",
    "o2ib7",
    "alice@acme.example",
    "/home/alice/train.py",
    "/scratch/acme",
    "acme-llm-70b.pt",
    "QM9700-acme-leaf12",
    "王伟",
    "Жанна",
    "lumi-login-02",
    "node0417",
    "nid_001234",
    "rack_12_mds_34",
    "project_465000123",
    "uid_54321",
    "0002.9012.3456",
    "00_02_09_12_33_44",
    "141.52.20.9_29500",
    "141.52.20.9%ib0",
    "141.52.20.[9-12]",
    "141.52.20.9-12",
    "10.31.7.9.53",
    "010.031.007.009",
    "-1650522001234",
    "1650_522001234",
    "123456e7890123",
    "1650522001234.7",
]
LEADING = {  # of some, the part that names somebody
    "141.52.20.9_29500": "141.52.20",
    "141.52.20.9%ib0": "141.52.20",
    "141.52.20.[9-12]": "141.52.20",
    "141.52.20.9-12": "141.52.20",
    "10.31.7.9.53": "10.31.7",
    "uid_54321": "54321",
}
# Places in which a word may stand
AROUND = [
    "{}",
    "user {} has it",
    "rank 3 on {}: it waits",
    "'{}', and more",
    "host={};",
    "Serial Number : {}",
    "    Cluster UUID                      : {}\n    CliqueId : 0",
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name={}, GPU has fallen off the bus.",
    "tcp://{}:29500",
    "{}:1: no route",
    "{},{}\n",
    "({})",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("around", AROUND)
def test_t7_a_name_is_hidden_wherever_it_stands(name: str, around: str) -> None:
    text = Replacements({}).change(around.format(name, name))
    for part in re.split(r"[/@]", LEADING.get(name, name)):
        if part not in ("", "home", "scratch", "train.py"):
            assert part not in text


@given(st.from_regex(r"[a-z]{3,9}[0-9]{0,3}(-[a-z0-9]{1,5})?(\.[a-z]{2,8}){0,2}", fullmatch=True))
def test_t7_no_name_that_is_no_word_of_the_suite_stays(name: str) -> None:
    words = re.split(r"[.@:/]", name)
    text = Replacements({}).change(f"on {name}: it waits")
    for word in words:
        if not (word in list_own_words() or _is_a_device_or_number(word)):
            assert word not in re.split(r"[\s.@:/]", text), text


def _is_a_device_or_number(word: str) -> bool:
    return Replacements({})._may_stay(word)


def test_the_same_word_has_the_same_replacement_and_another_key_another_one() -> None:
    one = Replacements({})
    assert one.change("alice bob alice") == one.change("alice bob alice")
    first, second, third = one.change("alice bob alice").split()
    assert first == third != second
    assert Replacements({}).change("alice") != one.change("alice")
    assert one.change("UUID : GPU-7") == f"UUID : {one.change('GPU-7')}"


def test_addresses_keep_their_class() -> None:
    change = Replacements({}).change
    assert ipaddress.ip_address(change("fe80::2:c903:ab:cdef")).is_link_local
    assert not ipaddress.ip_address(change("2a00:1450:4001:81b::200e")).is_link_local
    assert change("2a00:1450:4001:81b::200e").startswith("2001:db8:")
    mapped = ipaddress.IPv6Address(change("0000:0000:0000:0000:0000:ffff:0a1f:0709"))
    assert str(mapped.ipv4_mapped).startswith("192.0.2.")
    assert len(change("fe80:0000:0000:0000:0002:c903:00ab:cdef")) == 39
    assert change("10.31.7.9").startswith("192.0.2.")
    for stays in ("127.0.0.1", "::1", "0.0.0.0", "::"):
        assert change(stays) == stays
    zeros = "0000:0000:0000:0000:0000:0000:0000:0000"
    assert change(zeros) == zeros


@pytest.mark.parametrize(
    "text",
    [
        "00000000-0000-0000-0000-000000000000",
        "0000:0000:0000:0000",
        "0x0000000000000004",
        "Serial Number : N/A",
        "GPU UUID : [N/A]",
        "550.90.07",
        "96.00.74.00.01",
        "00000000:1A:00.0",
        "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.",
        "400 Gb/sec (4X NDR)",
        "/sys/class/infiniband/mlx5_10/ports/1/phys_state",
        "/dev/nvidia7",
        "GPU0\tX\tNV18\tPIX\tSYS",
        "0, NVIDIA H100 80GB HBM3, Not Active, 26.562 GB/s, 81559 MiB, 12.5%",
        "2026-11-28T10:00:00Z",
        "nvidia-smi --query-gpu=index,name,pci.bus_id --format=csv,noheader,nounits",
        "all_reduce_float32_17179869184_busbw_GB_s",
    ],
)
def test_what_names_nobody_stays(text: str) -> None:
    assert Replacements({}).change(text) == text


def test_keys_of_a_document_say_that_a_value_identifies() -> None:
    document = {"serial": 123456, "gpu_uuid": "12", "uid": 1001, "count": 123456, "ok": True}
    hidden = Replacements({}).change_all(document)
    assert hidden["count"] == 123456
    assert hidden["ok"] is True
    assert hidden["serial"] != 123456
    assert hidden["uid"] != 1001
    assert hidden["gpu_uuid"] != "12"


def test_hosts_become_their_other_names_long_ones_first() -> None:
    change = Replacements({"gpu1.acme.example": "node1", "gpu1b": "node2"}).change
    assert change("gpu1.acme.example gpu1 gpu1b gpu1c").split()[:3] == ["node1", "node1", "node2"]
    assert "gpu1c" not in change("gpu1c")


@pytest.mark.parametrize(
    "text",
    [
        "/sys/fs/cgroup/slurm/uid_54321/job_987654/step_0",
        "uid=54321(x) gid=20123(y)",
        "UID:54321",
        "/run/user/54321/bus",
        "user@54321.service",
        "user=123456",
        "S/N: 123456",
        "asset 123456",
        "node_guid 0002:c903:00ab:cdef",
        "Serial Number : 123456",
    ],
)
def test_t7_what_is_said_to_be_an_identifier_is_one(text: str) -> None:
    changed = Replacements({}).change(text)
    for number in re.findall(r"\d{5,}|[0-9a-f]{4}:[0-9a-f:]+", text):
        assert number not in changed


def test_t7_what_lies_below_an_identifying_key_is_hidden() -> None:
    document = {
        "uid": [54321],
        "uids": {"a": 54321},
        "gid": 54321,
        "serial_numbers": [1650522001234],
    }
    document |= {"serial": 123456.5, "user": ["alice", "root"]}
    text = json.dumps(Replacements({}).change_all(document))
    for one in ("54321", "1650522001234", "123456", "alice"):
        assert one not in text


def test_t7_a_text_that_is_made_to_cost_costs_little() -> None:
    began = time.process_time()
    for text in ("serial " * 3000, "word " * 5000, "uuid_" * 5000, "1." * 8000, "a_" * 9000):
        Replacements({}).change(text)
    assert time.process_time() - began < 4


def test_different_addresses_and_folders_have_different_replacements() -> None:
    change = Replacements({}).change
    addresses = [f"10.{one >> 8}.{one & 255}.7" for one in range(2000)]
    assert len({change(one) for one in addresses}) == 2000
    hidden = Replacements({}).change_all({"/home/a": 1, "/scratch/b": 2})
    assert sorted(hidden.values()) == [1, 2]


def test_a_host_that_is_called_as_a_key_changes_no_key() -> None:
    hidden = Replacements({"host": "node1", "code": "node2"}).change_all({"host": "host"})
    assert hidden == {"host": "node1"}


def test_a_path_keeps_its_end() -> None:
    change = Replacements({}).change
    for path in ("/sys/class/infiniband/mlx5_0/ports/1/gids/*", "/sys/class/cxi/*"):
        assert change(path) == path


@pytest.mark.parametrize("name", clusters.names())
def test_t7_a_capsule_in_which_everything_names_somebody(name: str, tmp_path: Path) -> None:
    """In each document, as a value and as a key, and in what the machine answered."""
    assert name in clusters.names()
    capsule = run_nodes(name, tmp_path)
    documents = json.loads(json.dumps(capsule.documents))
    for document in (one for key, one in documents.items() if key != "verdicts.json"):
        if "answers" in document:
            document["answers"].setdefault("said", {})["ibstat"] = "\n".join(NAMES)
            document["answers"].setdefault("line", {})["/sys/class/dmi/id/product_serial"] = "alice"
            document["answers"]["said"].update({f"ping -c 1 {one}": one for one in NAMES})
        elif "rows" in document:
            document["rows"][0]["evidence"] = " ".join(NAMES)
            document["notes"] = dict.fromkeys(NAMES, "x")
    documents["report.json"]["outcomes"][0]["evidence"] = ", ".join(NAMES)
    documents["machine-lustre-mds3.json"] = {"host": "lustre-mds3", "answers": {}}
    hidden = hide_names(Capsule(documents))
    text = json.dumps(dict(hidden.documents))
    for one in NAMES:
        assert one not in text
    for one in ("alice", "mallory", "acme", "lustre-mds3"):
        assert one not in text
    # Four hexadecimal digits also stand somewhere within those that are made up.
    assert not re.search(r"(?<![0-9a-f])c903(?![0-9a-f])", text)
    assert rejudge_capsule(Capsule({**hidden.documents})) == []
