"""Read a YAML file as plain text values, each with its place.

YAML reads `24.10` as a number and `no` as false. Here a scalar stays the text that was written, and
the model that takes it says which type it wants. Tags, aliases and duplicate keys are refused. The
line and column of every value are kept, so that a refusal can point at it.
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

Path = tuple["str | int", ...]  # of a value: the keys and list positions that lead to it

MAX_BYTES = 1 << 20
MAX_DEPTH = 64  # nested collections
MAX_EVENTS = 100_000  # values, beginnings and ends of collections
MAX_PROBLEMS = 50  # that are reported for one file
SHOWN = 80  # characters of a refused value that a message repeats
BRACKETS = re.compile(r"[\[\]{}]")
MAX_OPEN = 1024  # brackets open at once; counted before libyaml sees the text
WORDS = {  # for pydantic's types of errors, where YAML has other words than Python
    "tuple_type": "must be a list, e.g. [a, b]",
    "dict_type": "must be a mapping, e.g. {name: value}",
    "string_type": "must be text",
}
NULLS = ("", "~", "null", "Null", "NULL")  # plain scalars that YAML reads as null


class Mark(NamedTuple):
    """The place where something is written; lines and columns count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass
class Document:
    """A file's content as dicts, lists and text, with the place of each value and key.

    One that was merged from several files has marks in each of them.
    """

    file: str
    value: Any = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def nearest(self, path: Path) -> Path:
        """Return PATH if it was written; else the nearest collection around it that was."""
        while path and path not in self.marks:
            path = path[:-1]
        return path

    def mark(self, path: Path) -> Mark:
        """Return the place of PATH, or of the nearest collection around it that has one."""
        return self.marks.get(self.nearest(path), Mark(self.file, 1, 1))

    def problem(self, path: Path, what: str, *, at_key: bool = False) -> Problem:
        """Return WHAT as a Problem at the value PATH, or at its key."""
        mark = self.mark(path)
        if at_key:
            mark = self.keys.get(path, mark)
        return Problem(*mark, format_path(path), what)


def format_path(path: Path) -> str:
    """Return PATH as text: `base.platforms[0]` for ("base", "platforms", 0)."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif text:
            text += f".{part}"
        else:
            text = part
    return text


def read_yaml_text(path: pathlib.Path, limit: int) -> str:
    """Return the text of an ordinary file of at most LIMIT bytes, with its line ends as they are.

    Raise ValueError, which says why, for any other.
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
    """Return TEXT, which FILE holds, as a Document.

    Raise ProblemsError for syntax errors, duplicate keys, tags, aliases, and what is too large or
    nested too deeply.
    """
    import yaml

    document = Document(file)
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise ProblemsError([Problem(file, 1, 1, "", f"the file is larger than {MAX_BYTES} bytes")])
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # Both are looked for before libyaml reads the text, which would take it very long.
        if directive := _find_directive(text):
            what = "a line that begins with % is a directive of YAML: none is needed, so remove it"
            raise ProblemsError([Problem(file, directive, 1, "", what)])
        if steep := _find_too_deep(text):
            raise ProblemsError([Problem(file, steep, 1, "", f"nested more than {MAX_DEPTH} deep")])

        events = _check_events(yaml.parse(text, Loader=loader), document)
        document.problems += itertools.islice(_find_refused(document, events), MAX_PROBLEMS)
        if not document.problems:
            document.value = _Composer(document, events).value()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = f"not YAML: {error.problem or error.context}"
        raise ProblemsError([Problem(file, line, column, "", what)]) from None
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        what = f"not YAML: {error}".replace("\n", " ")
        raise ProblemsError([Problem(file, 1, 1, "", what)]) from None
    except RecursionError:
        raise ProblemsError([Problem(file, 1, 1, "", "nested too deeply")]) from None

    if document.problems:
        raise ProblemsError(document.problems)
    return document


def _find_directive(text: str) -> int:
    """Return the number of the first line that begins with %; 0 for none.

    libyaml takes seconds for thousands of them.
    """
    found = re.search(r"^%", text, re.MULTILINE)
    if not found:
        return 0
    return text.count("\n", 0, found.start()) + 1


def _find_too_deep(text: str) -> int:
    """Return the line in which more than MAX_OPEN brackets are open at once; 0 for none.

    libyaml takes minutes over them. Brackets in quotes and comments are counted, too: nobody writes
    so many of those on purpose.
    """
    depth = 0
    for match in BRACKETS.finditer(text):
        if match[0] in "[{":
            depth += 1
        else:
            depth = max(0, depth - 1)
        if depth > MAX_OPEN:
            return text.count("\n", 0, match.start()) + 1
    return 0


def _check_events(events: Iterator[yaml.Event], document: Document) -> list[yaml.Event]:
    """Return all EVENTS. Raise ProblemsError for too many of them, or too deep a nesting."""
    import yaml

    out = []
    depth = 0
    for event in events:
        out.append(event)
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1

        what = ""
        if depth > MAX_DEPTH:
            what = f"nested more than {MAX_DEPTH} deep"
        elif len(out) > MAX_EVENTS:
            what = f"the file has more than {MAX_EVENTS} parts"
        if what:
            raise ProblemsError([Problem(*_place_of(document, event), "", what)])
    return out


def _find_refused(document: Document, events: list[yaml.Event]) -> Iterator[Problem]:
    """Yield a Problem for each alias, anchor and tag, and for a second document."""
    import yaml

    documents = 0
    for event in events:
        documents += isinstance(event, yaml.DocumentStartEvent)
        what = ""
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            what = "aliases and anchors are not supported: write the value out"
        elif getattr(event, "tag", None):
            what = f"the tag {getattr(event, 'tag', '')} is not supported: remove it"
        elif isinstance(event, yaml.DocumentStartEvent) and documents > 1:
            what = "a second document begins here; one file is one document"
        if what:
            yield Problem(*_place_of(document, event), "", what)


def _place_of(document: Document, event: Any) -> Mark:
    """Return where EVENT begins; libyaml counts lines and columns from 0."""
    return Mark(document.file, event.start_mark.line + 1, event.start_mark.column + 1)


class _Composer:
    """Builds values from events, and notes the place of each in the document."""

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
        """Return the whole document's value; None where the file is empty."""
        event = next(self.events, None)
        if event is None:
            return None
        return self._compose(event, ())

    def _compose(self, event: Any, path: Path) -> Any:
        self.document.marks[path] = _place_of(self.document, event)
        if isinstance(event, self.yaml.MappingStartEvent):
            return self._compose_mapping(path)
        if isinstance(event, self.yaml.SequenceStartEvent):
            return self._compose_sequence(path)
        # Only a plain scalar without a tag can be null: "null" in quotes is text.
        if event.value in NULLS and not event.style and event.implicit[0]:
            return None
        return event.value

    def _compose_sequence(self, path: Path) -> list[Any]:
        out: list[Any] = []
        while True:
            event = next(self.events)
            if isinstance(event, self.yaml.SequenceEndEvent):
                return out
            out.append(self._compose(event, (*path, len(out))))

    def _compose_mapping(self, path: Path) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while True:
            event = next(self.events)
            if isinstance(event, self.yaml.MappingEndEvent):
                return out

            place = _place_of(self.document, event)
            if not isinstance(event, self.yaml.ScalarEvent):
                what = "a key must be text"
                self.document.problems.append(Problem(*place, format_path(path), what))
                # Read past this key and its value, to find what else is wrong.
                self._compose(event, (*path, ""))
                self._compose(next(self.events), (*path, ""))
                continue

            if event.value in out:
                what = f"the key {event.value!r} is given twice"
                self.document.problems.append(Problem(*place, format_path(path), what))
            here = (*path, event.value)
            self.document.keys[here] = place
            out[event.value] = self._compose(next(self.events), here)


def list_problems(
    error: ValidationError, document: Document, model: type[BaseModel], *, whole: bool = True
) -> Iterator[Problem]:
    """Yield the errors of pydantic as Problems; for an unknown key, with the nearest right one.

    A document that is not WHOLE may lack keys: what it extends may have them.
    """
    for entry in itertools.islice(error.errors(), MAX_PROBLEMS):
        # pydantic adds the names of validators to an error's place; they are not in the file.
        path = tuple(part for part in entry["loc"] if not str(part).startswith("function-"))
        known = _list_known_keys(model, path[:-1])
        if entry["type"] == "extra_forbidden":
            near = _find_meant(model, path, known)
            what = f"unknown key {path[-1]!r}{near}; known: {', '.join(known)}"
            yield document.problem(path, what, at_key=True)
        elif entry["type"] == "missing":
            if whole:
                yield document.problem(path[:-1], f"the key {path[-1]!r} is missing")
        else:
            yield document.problem(document.nearest(path), _describe(entry))


class WrongKeyError(ValueError):
    """Raised by a model's validator for a value within the model's own, at PATH from there."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{format_path(path)}: {what}")
        self.path = path
        self.what = what


def find_wrong_key(entry: ErrorDetails) -> WrongKeyError | None:
    """Return the WrongKeyError that caused ENTRY, one of the errors of a ValidationError.

    None where another error caused it.
    """
    error = entry.get("ctx", {}).get("error")
    if isinstance(error, WrongKeyError):
        return error
    return None


def _describe(entry: ErrorDetails) -> str:
    """Return what is wrong, and what was given instead.

    The words are those of our own validator, or else pydantic's, or what WORDS has for them.
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


def _find_meant(model: type[BaseModel], path: Path, known: list[str]) -> str:
    """Return a hint at the key that the unknown one at PATH was meant to be; empty for none.

    A model's ELSEWHERE has what other programs call its keys.
    """
    key = str(path[-1])
    elsewhere = getattr(_find_model_at(model, path[:-1]), "ELSEWHERE", {})
    if key in elsewhere:
        return f" (here that is {elsewhere[key]})"
    return did_you_mean(key, known)


def _list_known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """Return the keys that MODEL takes at PATH."""
    found = _find_model_at(model, path)
    if found is None:
        return []
    return [field.alias or name for name, field in found.model_fields.items()]


def _find_model_at(model: type[BaseModel], path: Path) -> type[BaseModel] | None:
    """Return the model at PATH below MODEL, found by walking its fields; None where there is none."""
    from pydantic import BaseModel

    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            fields = {field.alias or name: field for name, field in current.model_fields.items()}
            # What is no field is a key of a mapping or a place in a list: the model stays the same.
            if part in fields:
                current = _find_model(fields[part].annotation)
    if isinstance(current, type) and issubclass(current, BaseModel):
        return current
    return None


def _find_model(annotation: Any) -> Any:
    """Return the first model in ANNOTATION, such as M in `tuple[M, ...] | None`; None for none."""
    from typing import get_args

    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in get_args(annotation):
        if found := _find_model(argument):
            return found
    return None
