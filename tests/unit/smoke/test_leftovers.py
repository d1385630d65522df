"""What is read of a run's folder while others write into it."""

from __future__ import annotations

from pathlib import Path

from hpcstack_smoke.leftovers import (
    bring_notes,
    find_last_change,
    has_failed,
    is_being_ended,
    list_attempted,
    read_documents,
)
from hpcstack_smoke.result import write_document


def leave(folder: Path, name: str, *statuses: str, running: str = "") -> None:
    rows = [{"code": f"node.c{n}", "status": status} for n, status in enumerate(statuses)]
    write_document(str(folder), name, {"rows": rows, "running": running})


def test_a_file_that_is_half_there_is_left_out(tmp_path: Path) -> None:
    leave(tmp_path, "rank-0-1.json", "PASS")
    (tmp_path / "rank-1-1.json").write_text('{"rows": [')
    assert len(read_documents(str(tmp_path), "rank-*.json")) == 1


def test_a_folder_whose_name_is_a_pattern_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    leave(folder, "node-n1.json", "PASS")
    assert len(read_documents(str(folder), "node-*.json")) == 1


def test_notes_of_the_ranks_of_a_node_come_into_the_folder_of_the_run(tmp_path: Path) -> None:
    scratch, output = tmp_path / "scratch", tmp_path / "run"
    scratch.mkdir()
    output.mkdir()
    leave(output, "rank-1-1.json")
    leave(output, "rank-2-1.json", running="begun")
    leave(scratch, "rank-1-1.json", "PASS", running="ddp.fp32")
    (scratch / "rank-2-1.json").write_text('{"rows": [')
    bring_notes(str(scratch), str(output))
    found = read_documents(str(output), "rank-*.json")
    assert sorted(one["running"] for one in found) == ["begun", "ddp.fp32"]
    assert not (scratch / "rank-1-1.json").exists()


def test_one_failure_of_any_node_rank_or_task_counts(tmp_path: Path) -> None:
    for name in ("node-n1.json", "rank-0-1.json", "task-jax.psum-0.json"):
        folder = tmp_path / name
        folder.mkdir()
        leave(folder, name, "PASS", "SKIP", "WARN")
        assert not has_failed(str(folder)), name
        leave(folder, name, "PASS", "ERROR")
        assert has_failed(str(folder)), name


def test_ranks_that_were_ended_have_failed(tmp_path: Path) -> None:
    leave(tmp_path, "ended-n2-1.json")
    assert has_failed(str(tmp_path))


def test_a_round_that_is_being_ended_is_told_from_others(tmp_path: Path) -> None:
    leave(tmp_path, "ended-n2-1.json")
    assert is_being_ended(str(tmp_path), 1)
    assert not is_being_ended(str(tmp_path), 2)


def test_what_was_attempted_includes_what_still_runs(tmp_path: Path) -> None:
    leave(tmp_path, "rank-0-1.json", "PASS", running="ddp.fp32")
    leave(tmp_path, "rank-1-1.json", "PASS", "FAIL")
    leave(tmp_path, "rank-0-2.json", running="ddp.buckets")
    assert list_attempted(str(tmp_path), 1) == ["ddp.fp32", "node.c0", "node.c1"]


def test_a_folder_that_is_gone_has_not_changed(tmp_path: Path) -> None:
    assert find_last_change(str(tmp_path)) > 0
    assert find_last_change(str(tmp_path / "gone")) == 0
