"""People are told once of what changed and of what is wrong; users once of what is retired."""

from __future__ import annotations

import getpass
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcstack.core.sharing import ALONE
from hpcstack.releases.changes import retire_version
from hpcstack.releases.ledger import Dates
from hpcstack.sync.declaration import Declared
from hpcstack.sync.plan import NamePlan, SyncStep, VersionPlan
from hpcstack.sync.result import Deed, NameResult, SyncResult
from hpcstack.sync.tell import begin_telling, read_told, tell_everybody
from support.modules import Place

SCRIPT = """\
#!/bin/sh
[ ! -e "$(dirname "$0")/down" ] || { echo no route to mail >&2; exit 75; }
{ echo "To: $1"; echo "Subject: $2"; cat; } >>"$(dirname "$0")/mail"
"""


class Mail:
    """A site whose mail goes into a file."""

    def __init__(self, top: Path, **usage: Any) -> None:
        self.top, self.script = top, top / "mail.sh"
        top.mkdir(exist_ok=True)
        self.script.write_text(SCRIPT)
        self.script.chmod(0o755)
        command = [str(self.script), "{user}", "{subject}"]
        self.place = Place(top / "site", usage={"mail": command, **usage}, name="here")
        self.place.publish()
        self.declared = {"pytorch": Declared(tell=("ops", "ann@example.org"))}

    def run(self, *plans: VersionPlan, notes: tuple[Any, ...] = ()) -> list[str]:
        """What could not be sent at the end of a run that found PLANS."""
        telling = begin_telling(self.top / "told", self.declared, self.place.publisher)
        found = NameResult("pytorch", Path("p.yaml"), NamePlan("pytorch", plans, notes=notes))
        result = SyncResult("here", Path("f"), "now", "", dry_run=False, names=[found])
        return tell_everybody(telling, self.declared, result, self.place.publisher)

    def read(self) -> str:
        path = self.top / "mail"
        text = path.read_text() if path.exists() else ""
        path.write_text("")
        return text

    def retire(self, verb: str, refuse: str = "2999-01-31") -> None:
        dates = Dates("2026-01-01", refuse, "pytorch/25.10", "old")
        self.place.publisher.change(
            "pytorch",
            verb,
            lambda old, event: retire_version(old, "24.11", dates, "2026-01-01", event),
        )


@pytest.fixture
def mail(tmp_path: Path) -> Mail:
    return Mail(tmp_path)


def test_what_was_before_is_no_news(mail: Mail) -> None:
    assert mail.run() == []
    assert mail.read() == ""


def test_each_is_told_once_of_what_changed(mail: Mail) -> None:
    mail.run()
    mail.place.publish(content=b"another")
    assert mail.run() == []
    said = mail.read()
    assert said.count("Subject: pytorch at here: 1 change\n") == 2
    assert "publish pytorch/24.11-r2 by" in said
    assert "24.11-r1 -> 24.11-r2" in said
    assert "To: ann@example.org" in said
    assert mail.run() == []
    assert mail.read() == ""


def test_who_was_told_is_not_for_everybody(mail: Mail) -> None:
    """It names users."""
    mail.run()
    assert (mail.top / "told/pytorch.json").stat().st_mode & 0o077 == 0


def test_a_run_that_is_killed_loses_no_message(mail: Mail) -> None:
    """It had begun, and published, and told nobody."""
    begin_telling(mail.top / "told", mail.declared, mail.place.publisher)
    mail.place.publish(content=b"another")
    mail.run()
    assert mail.read().count("To: ") == 2


def test_what_is_wrong_is_told_once_and_its_end_too(mail: Mail) -> None:
    bad = VersionPlan("24.11", "failed", "x is FAIL")
    mail.run(bad)
    assert "pytorch/24.11: x is FAIL" in mail.read()
    mail.run(bad)
    assert mail.read() == ""
    mail.run(replace(bad, note="y is FAIL"))
    assert "y is FAIL" in mail.read()
    mail.run(replace(bad, status="done"))
    assert "all is as declared again" in mail.read()
    mail.run(notes=(("held", "somebody retired it"),))
    assert "somebody retired it" in mail.read()


def test_a_message_has_no_line_of_others(mail: Mail) -> None:
    """A mail program takes a line that begins with ~ as a command."""
    mail.run()
    mail.run(VersionPlan("24.11", "failed", "x is FAIL\n~! touch /tmp/x\n\x1b[2J"))
    said = mail.read()
    assert "x is FAIL ~! touch /tmp/x" in said
    assert not any(line.startswith("~") or "\x1b" in line for line in said.splitlines())


def test_a_failure_is_told_once_whatever_job_it_was(mail: Mail) -> None:
    step = SyncStep("build", "pytorch-24.11", "not built", "24.11")

    def run(said: str) -> str:
        telling = begin_telling(mail.top / "told", mail.declared, mail.place.publisher)
        plan = NamePlan("pytorch", (VersionPlan("24.11", "todo", "", (step,)),))
        found = NameResult("pytorch", Path("p.yaml"), plan, [Deed(step, said, "", 4)])
        result = SyncResult("here", Path("f"), "now", "", dry_run=False, names=[found])
        tell_everybody(telling, mail.declared, result, mail.place.publisher)
        return mail.read()

    assert "build: job 12 failed" in run("job 12 failed")
    assert run("job 13 failed") == ""


def test_a_ledger_that_cannot_be_read_ends_nothing(mail: Mail) -> None:
    mail.run()
    state = mail.place.site.module_root / "state/pytorch/current/ledger.json"
    state.write_text("{")
    assert "nobody was told" in mail.run(VersionPlan("24.11", "failed", "x"))[0]
    mail.declared = {"pytorch": Declared(tell=("somebody-new",))}
    mail.run()


def test_a_failed_retirement_is_told(mail: Mail) -> None:
    step = SyncStep("retire", "pytorch/24.10", "over", "24.10")
    telling = begin_telling(mail.top / "told", mail.declared, mail.place.publisher)
    found = NameResult(
        "pytorch", Path("p.yaml"), NamePlan("pytorch", ()), [Deed(step, "refused", "", 1)]
    )
    result = SyncResult("here", Path("f"), "now", "", dry_run=False, names=[found])
    tell_everybody(telling, mail.declared, result, mail.place.publisher)
    assert "retire pytorch/24.10: refused" in mail.read()


def test_what_was_not_sent_is_sent_later(mail: Mail) -> None:
    mail.run()
    mail.place.publish(content=b"another")
    (mail.top / "down").touch()
    assert "ended with 75: no route to mail" in mail.run()[0]
    (mail.top / "down").unlink()
    mail.run()
    assert mail.read().count("To: ") == 2


def test_a_torn_file_tells_nothing_twice(mail: Mail) -> None:
    mail.run()
    (mail.top / "told/pytorch.json").write_text('{"events": ')
    assert read_told(mail.top / "told", "pytorch", ALONE).events == {}
    mail.place.publish(content=b"another")
    mail.run()
    assert mail.read() == ""


def test_without_a_command_it_says_so(tmp_path: Path) -> None:
    mail = Mail(tmp_path)
    mail.place = Place(tmp_path / "other")
    mail.place.publish()
    mail.run()
    mail.place.publish(content=b"another")
    assert "usage.mail of site.yaml names no command" in mail.run()[0]


def test_users_are_written_to_once(tmp_path: Path) -> None:
    me, now = getpass.getuser(), int(time.time())
    log = tmp_path / "usage.log"
    lines = [
        f"x hpcstack-usage: v1 what=load release=pytorch/24.11-r1 user={who} job=- at={now - 60}\n"
        for who in (me, "nobody-of-this-name")
    ]
    log.write_text("".join(lines))
    mail = Mail(tmp_path, files=[str(log)])
    mail.declared = {"pytorch": Declared.model_validate({"retire": {"notify": True}})}

    mail.retire("retire")  # by hand: whoever did so decides who is told
    assert mail.run() == []
    assert mail.read() == ""

    mail.retire("sync retire", "2999-02-28")
    assert mail.run() == []
    said = mail.read()
    assert said.count("To: ") == 1
    assert f"To: {me}\nSubject: pytorch/24.11 will be retired on 2999-02-28" in said
    assert "Use pytorch/25.10 instead" in said
    assert mail.run() == []
    assert mail.read() == ""

    mail.retire("sync retire", "2999-03-31")
    mail.run()
    assert "2999-03-31" in mail.read(), "another day is news"
