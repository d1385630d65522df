"""A YAML file as plain text values with the place of each: no guessed types, no tags, no aliases, no duplicates.

YAML reads `24.10` as a number and `no` as false; here a scalar is the text that was written, and the model that
takes it says what type it wants. Every value's line and column is kept, so that a refusal can point at it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcstack.errors import Problem, ProblemsError, did_you_mean

if TYPE_CHECKING:
    import yaml
    from pydantic import BaseModel, ValidationError

Path = tuple["str | int", ...]
Mark = tuple[int, int]

MAX_BYTES = 1 << 20
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\x85\u2028\u2029]")


@dataclass
class Document:
    """A file's content as dicts, lists and text, and where each value and key stands (line, column from 1)."""

    file: str
    value: Any = None
    marks: dict[Path, Mark] = field(default_factory=dict)
    keys: dict[Path, Mark] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def mark(self, path: Path) -> Mark:
        """The place of PATH, or of the nearest thing around it that has one."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, (1, 1))

    def problem(self, path: Path, what: str, *, at_key: bool = False) -> Problem:
        line, column = self.keys.get(path, self.mark(path)) if at_key else self.mark(path)
        return Problem(self.file, line, column, dotted(path), what)


def dotted(path: Path) -> str:
    """`base.platforms[0]` for ("base", "platforms", 0)."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse(text: str, file: str) -> Document:
    """TEXT as a Document. Syntax errors, duplicate keys, tags and aliases raise ProblemsError."""
    import yaml

    document = Document(file)
    if len(text.encode()) > MAX_BYTES:
        raise ProblemsError([Problem(file, 1, 1, "", f"the file is larger than {MAX_BYTES} bytes")])
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                document.problems.append(_at(document, event, "aliases and anchors are not taken; write it out"))
            elif getattr(event, "tag", None):
                document.problems.append(_at(document, event, f"the tag {getattr(event, 'tag', '')} is not taken"))
        if document.problems:
            raise ProblemsError(document.problems)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise ProblemsError([Problem(file, line, column, "", f"not YAML: {error.problem or error.context}")]) from None
    except yaml.YAMLError as error:
        raise ProblemsError([Problem(file, 1, 1, "", f"not YAML: {error}".replace("\n", " "))]) from None
    except RecursionError:
        raise ProblemsError([Problem(file, 1, 1, "", "nested too deeply")]) from None
    document.value = _value(document, node, ()) if node is not None else None
    if document.problems:
        raise ProblemsError(document.problems)
    return document


def _at(document: Document, event: Any, what: str) -> Problem:
    return Problem(document.file, event.start_mark.line + 1, event.start_mark.column + 1, "", what)


def _value(document: Document, node: yaml.Node, path: Path) -> Any:
    import yaml

    document.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        return _mapping(document, node, path)
    if isinstance(node, yaml.SequenceNode):
        return [_value(document, item, (*path, index)) for index, item in enumerate(node.value)]
    if node.tag == "tag:yaml.org,2002:null" and getattr(node, "style", None) is None:
        return None
    return node.value


def _mapping(document: Document, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
    import yaml

    out: dict[str, Any] = {}
    for key, item in node.value:
        place = Problem(document.file, key.start_mark.line + 1, key.start_mark.column + 1, dotted(path), "")
        if not isinstance(key, yaml.ScalarNode):
            document.problems.append(Problem(place.file, place.line, place.column, place.where, "a key must be text"))
            continue
        if key.value in out:
            what = f"the key {key.value!r} is there twice"
            document.problems.append(Problem(place.file, place.line, place.column, place.where, what))
        document.keys[(*path, key.value)] = (place.line, place.column)
        out[key.value] = _value(document, item, (*path, key.value))
    return out


def problems_of(error: ValidationError, document: Document, model: type[BaseModel]) -> Iterator[Problem]:
    """Pydantic's errors as Problems, with the nearest right key where one is unknown."""
    for entry in error.errors():
        path = tuple(part for part in entry["loc"] if not str(part).startswith("function-"))
        known = _known_keys(model, path[:-1])
        if entry["type"] == "extra_forbidden":
            what = f"unknown key {path[-1]!r}{did_you_mean(str(path[-1]), known)}; known: {', '.join(known)}"
            yield document.problem(path, what, at_key=True)
        elif entry["type"] == "missing":
            yield document.problem(path[:-1], f"the key {path[-1]!r} is missing")
        else:
            yield document.problem(path, _plain(entry["msg"], entry.get("input")))


def _plain(message: str, given: object) -> str:
    ours = message.startswith("Value error, ")
    message = message.removeprefix("Value error, ") if ours else message[:1].lower() + message[1:]
    return f"{message} (it is {given!r})" if isinstance(given, str) and repr(given) not in message else message


def _known_keys(model: type[BaseModel], path: Path) -> list[str]:
    """The keys that MODEL takes at PATH, by walking its fields."""
    from pydantic import BaseModel

    current: Any = model
    for part in path:
        if isinstance(current, type) and issubclass(current, BaseModel):
            info = next((f for n, f in current.model_fields.items() if (f.alias or n) == part), None)
            current = _model_in(info.annotation) if info else None
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
