"""What a failed run leaves: no secret is in it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hpcstack_smoke.bundle import clean_environment, summarize_nccl_logs, write_bundle
from hpcstack_smoke.hidden import HIDDEN
from hpcstack_smoke.result import write_document as write_document

SOCKETS = Path(__file__).parents[2] / "plants/sockets.log"


def test_secrets_are_not_kept() -> None:
    text = clean_environment(
        {
            "HF_TOKEN": "abc",
            "AWS_SECRET_ACCESS_KEY": "def",
            "PIP_INDEX_URL": "https://u:p@host/x",
            "PATH": "/bin",
        }
    )
    assert (
        text
        == f"AWS_SECRET_ACCESS_KEY={HIDDEN}\nHF_TOKEN={HIDDEN}\nPATH=/bin\nPIP_INDEX_URL=https://***@host/x\n"
    )


@given(
    st.text(min_size=8),
    st.sampled_from(["MY_TOKEN", "db_password", "X_API_KEY", "AUTHORIZATION", "Cookie"]),
)
def test_no_secrets_value_is_shown(value: str, name: str) -> None:
    assert clean_environment({name: value}) == f"{name}={HIDDEN}\n"


def test_nccls_logs_are_summed_up(tmp_path: Path) -> None:
    (tmp_path / "nccl-1.node1.4190").write_text(
        SOCKETS.read_text() + "node1:1:1 [0] NCCL WARN Connection refused\n"
    )
    text = summarize_nccl_logs(str(tmp_path), "node1.example")
    assert summarize_nccl_logs(str(tmp_path), "node2") == ""  # each node tells of its own
    assert "network Socket" in text
    assert "'Socket': 1" in text
    assert "NCCL WARN Connection refused" in text


def test_the_bundle_is_written_whatever_is_missing(tmp_path: Path) -> None:
    write_document(str(tmp_path), "rank-0-1.json", {"rows": []})
    folder = Path(write_bundle(str(tmp_path), "n1"))
    assert folder == tmp_path / "bundle/n1"
    assert (folder / "environment.txt").exists()
    assert (folder / "limits.txt").read_text()
