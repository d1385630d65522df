"""A YAML file as plain text values with the place of each: no guessed types, no tags, no aliases,
no duplicates.

YAML reads `24.10` as a number and `no` as false; here a scalar is the text that was written, and
the model that takes it says what type it wants. Every value's line and column is kept, so that a
refusal can point at it.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from hpcstack.core.errors import Problem, ProblemsError, did_you_mean

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator

    import yaml
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Path = tuple["str | int", ...]

MAX_BYTES = 1 << 20
MAX_DEPTH, MAX_EVENTS, MAX_PROBLEMS = (
    64,
    100_000,
    50,
)  # nested collections, parts of a file, refusals that are told
SHOWN = 80  # characters of a refused value that a message repeats
BRACKETS = re.compile(r"[\[\]{}]")
MAX_OPEN = 1024
WORDS = {  # for pydantic's types of errors, where YAML has other words than Python
    "tuple_type": "a list is wanted, e.g. [a, b]",
    "dict_type": "a mapping is wanted, e.g. {name: value}",
    "string_type": "text is wanted",
}
NULLS = ("", "~", "null", "Null", "NULL")


class Mark(NamedTuple):
    """Where something is written; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Document:
    """A file's content as dicts, lists and text, and where each value and key stands.

    A document that was merged of several files has marks in each of them.
    """

    file: str
    value: Any = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def nearest(self, path: Path) -> Path:
        """PATH, or the nearest thing around it that was written."""
        while path and path not in self.marks:
            path = path[:-1]
        return path

    def mark(self, path: Path) -> Mark:
        """The place of PATH, or of the nearest thing around it that has one."""
        return self.marks.get(self.nearest(path), Mark(self.file, 1, 1))

    def problem(self, path: Path, what: str, *, at_key: bool = False) -> Problem:
        mark = self.keys.get(path, self.mark(path)) if at_key else self.mark(path)
        return Problem(*mark, format_path(path), what)


def format_path(path: Path) -> str:
    """`base.platforms[0]` for ("base", "platforms", 0)."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def read_yaml_text(path: pathlib.Path, limit: int) -> str:
    """The text of an ordinary file of at most LIMIT bytes, with its line ends.

    ValueError says why it is refused.
    """
    try:
        if not path.is_file():
            raise ValueError("no such file" if not path.exists() else "not an ordinary file")
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except (OSError, RuntimeError) as error:  # RuntimeError: a symlink that leads to itself
        raise ValueError(f"cannot be read: {getattr(error, 'strerror', '') or error}") from None
    if len(content) > limit:
        raise ValueError(f"larger than {limit} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error.reason}") from None


def parse_yaml(text: str, file: str) -> Document:
    """TEXT as a Document. Syntax errors, duplicate keys, tags and aliases raise ProblemsError."""
    import yaml

    document = Document(file)
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise ProblemsError([Problem(file, 1, 1, "", f"the file is larger than {MAX_BYTES} bytes")])
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        if directive := _directive(text):
            what = (
                "a line that begins with % is a directive of YAML's: none is needed, and none is "
                "read"
            )
            raise ProblemsError([Problem(file, directive, 1, "", what)])
        if steep := _too_steep(text):
            raise ProblemsError([Problem(file, steep, 1, "", f"nested more than {MAX_DEPTH} deep")])
        events = _events(yaml.parse(text, Loader=loader), document)
        document.problems += itertools.islice(_refused(document, events), MAX_PROBLEMS)
        if not document.problems:
            document.value = _Composer(document, events).value()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ProblemsError(
            [Problem(file, line, column, "", f"not YAML: {error.problem or error.context}")]
        ) from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ProblemsError(
            [Problem(file, 1, 1, "", f"not YAML: {error}".replace("\n", " "))]
        ) from None
    except RecursionError:
        raise ProblemsError([Problem(file, 1, 1, "", "nested too deeply")]) from None
    if document.problems:
        raise ProblemsError(document.problems)
    return document


def _directive(text: str) -> int:
    """The number of the first line that begins with %, 0 for none. libyaml takes seconds for
    thousands of them.
    """
    found = re.search(r"^%", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) + 1 if found else 0


def _too_steep(text: str) -> int:
    """The line in which more than MAX_DEPTH brackets are opened at once, 0 for none: libyaml takes
    minutes over them.

    Brackets in quotes and comments are counted too: nobody writes so many of those on purpose
    either.
    """
    depth = 0
    for match in BRACKETS.finditer(text):
        depth = depth + 1 if match[0] in "[{" else max(0, depth - 1)
        if depth > MAX_OPEN:
            return text.count("\n", 0, match.start()) + 1
    return 0


def _events(events: Iterator[yaml.Event], document: Document) -> list[yaml.Event]:
    """All EVENTS, as far as they are few and flat enough; ProblemsError else."""
    import yaml

    out, depth = [], 0
    for event in events:
        out.append(event)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        if depth > MAX_DEPTH:
            raise ProblemsError(
                [Problem(*_place(document, event), "", f"nested more than {MAX_DEPTH} deep")]
            )
        if len(out) > MAX_EVENTS:
            raise ProblemsError(
                [
                    Problem(
                        *_place(document, event), "", f"the file has more than {MAX_EVENTS} parts"
                    )
                ]
            )
    return out


def _refused(document: Document, events: list[yaml.Event]) -> Iterator[Problem]:
    """Aliases, anchors, tags, and a second document."""
    import yaml

    documents = 0
    for event in events:
        documents += isinstance(event, yaml.DocumentStartEvent)
        what = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            what = "aliases and anchors are not taken; write it out"
        elif getattr(event, "tag", None):
            what = f"the tag {getattr(event, 'tag', '')} is not taken"
        elif isinstance(event, yaml.DocumentStartEvent) and documents > 1:
            what = "a second document begins here; one file is one document"
        if what:
            yield Problem(*_place(document, event), "", what)


def _place(document: Document, event: Any) -> Mark:
    return Mark(document.file, event.start_mark.line + 1, event.start_mark.column + 1)


class _Composer:
    """Values out of events, with the place of each."""

    def __init__(self, document: Document, events: list[yaml.Event]) -> None:
        import yaml

        skipped = (
            yaml.StreamStartEvent,
            yaml.StreamEndEvent,
            yaml.DocumentStartEvent,
            yaml.DocumentEndEvent,
        )
        self.document = document
        self.events = iter([event for event in events if not isinstance(event, skipped)])
        self.yaml = yaml

    def value(self) -> Any:
        event = next(self.events, None)
        return self._value(event, ()) if event is not None else None

    def _value(self, event: Any, path: Path) -> Any:
        self.document.marks[path] = _place(self.document, event)
        if isinstance(event, self.yaml.MappingStartEvent):
            return self._mapping(path)
        if isinstance(event, self.yaml.SequenceStartEvent):
            return self._sequence(path)
        return (
            None if event.value in NULLS and not event.style and event.implicit[0] else event.value
        )

    def _sequence(self, path: Path) -> list[Any]:
        out: list[Any] = []
        while not isinstance(event := next(self.events), self.yaml.SequenceEndEvent):
            out.append(self._value(event, (*path, len(out))))
        return out

    def _mapping(self, path: Path) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not isinstance(event := next(self.events), self.yaml.MappingEndEvent):
            place = _place(self.document, event)
            if not isinstance(event, self.yaml.ScalarEvent):
                self.document.problems.append(
                    Problem(*place, format_path(path), "a key must be text")
                )
                self._value(event, (*path, ""))
                self._value(next(self.events), (*path, ""))
                continue
            if event.value in out:
                what = f"the key {event.value!r} is given twice"
                self.document.problems.append(Problem(*place, format_path(path), what))
            here = (*path, event.value)
            self.document.keys[here] = place
            out[event.value] = self._value(next(self.events), here)
        return out


def problems_of(
    error: ValidationError, document: Document, model: type[BaseModel], *, whole: bool = True
) -> Iterator[Problem]:
    """Pydantic's errors as Problems, with the nearest right key where one is unknown.

    Of a document that is not WHOLE nothing is missing.
    """
    for entry in itertools.islice(error.errors(), MAX_PROBLEMS):
        path = tuple(part for part in entry["loc"] if not str(part).startswith("function-"))
        known = _known_keys(model, path[:-1])
        if entry["type"] == "extra_forbidden":
            what = (
                f"unknown key {path[-1]!r}{did_you_mean(str(path[-1]), known)}; known: "
                f"{', '.join(known)}"
            )
            yield document.problem(path, what, at_key=True)
        elif entry["type"] == "missing":
            if whole:
                yield document.problem(path[:-1], f"the key {path[-1]!r} is missing")
        else:
            yield document.problem(document.nearest(path), _describe(entry))


class WrongKeyError(ValueError):
    """What a model's validator raises for a value below the model's own: at PATH, keys from there."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{format_path(path)}: {what}")
        self.path, self.what = path, what


def wrong_key(entry: ErrorDetails) -> WrongKeyError | None:
    """The WrongKeyError that became ENTRY, one of a ValidationError's errors; None where another
    error did.
    """
    error = entry.get("ctx", {}).get("error")
    return error if isinstance(error, WrongKeyError) else None


def _describe(entry: ErrorDetails) -> str:
    """What is wrong, in the words of whoever found it: a validator of ours, or pydantic; and what
    is there instead.
    """
    ours = entry.get("ctx", {}).get("error")
    if entry["type"] == "value_error" and isinstance(ours, ValueError):
        message = str(ours)
    else:
        pydantics = entry["msg"][:1].lower() + entry["msg"][1:]
        message = WORDS.get(entry["type"], pydantics)

    given = entry.get("input")
    if not isinstance(given, str) or repr(given) in message:
        return message
    shown = repr(given) if len(given) <= SHOWN else f"{given[:SHOWN]!r}..."
    return f"{message} (it is {shown})"


def _known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that MODEL takes at PATH, by walking its fields."""
    from pydantic import BaseModel

    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            info = next(
                (f for n, f in current.model_fields.items() if (f.alias or n) == part), None
            )
            current = (
                _model_in(info.annotation) if info else current
            )  # no field: a key of a mapping, a place in a list
    if isinstance(current, type) and issubclass(current, BaseModel):
        return [info.alias or name for name, info in current.model_fields.items()]
    return []


def _model_in(annotation: Any) -> Any:
    from typing import get_args

    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := _model_in(argument):
            return found
    return None
