"""Records: JSON files that another person's hpcstack wrote, or one of another version. One strict
reader for all kinds.

A record says of which format it is, by a family and a number: "hpcstack/artifact/v1". Within a
number that is known every field is held against what it may be, and one that is not declared is
refused. A record of a newer number is read as far as its fields are known, so that its users can go
on loading and launching; it is not changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from hpcstack.core.characters import CONTROL
from hpcstack.core.errors import StoreError

MOST_TEXT = 2000  # characters of a field


def _without_controls(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError("it holds a control character")
    return text


Plain = Annotated[str, AfterValidator(_without_controls)]
Text = Annotated[str, StringConstraints(max_length=MOST_TEXT), AfterValidator(_without_controls)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-z]{1,64}$")]


class Record(BaseModel):
    """A kind of record, or a part of one."""

    model_config = ConfigDict(extra="forbid", strict=True)


Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class Format(Generic[Kind]):
    """How a kind of record is written: its FAMILY, the NUMBER that this hpcstack writes, and what
    may stand in it.
    """

    family: str
    number: int
    kind: type[Kind]

    @property
    def name(self) -> str:
        """What a record of it has as its `format`."""
        return f"{self.family}/v{self.number}"

    def read(self, document: Any, where: str, remedy: str, *, to_change: bool = False) -> Kind:
        """The record that the file WHERE holds. StoreError, with REMEDY, where it is damaged or
        says more than such a record can; where it is of a newer hpcstack and is to be changed, too.
        """
        newer = self.number_of(document, where, remedy) > self.number
        if newer and to_change:
            self.check_changeable(document, where)
        if newer:
            document = known_part(self.kind, document)
        try:
            return self.kind.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise StoreError(f"{where} is damaged: {place}: {first['msg']}"[:500], remedy) from None

    def check_changeable(self, document: Any, where: str) -> None:
        """StoreError where DOCUMENT, a record in the file WHERE, is of a newer hpcstack."""
        number = self.number_of(document, where, "")
        if number > self.number:
            raise StoreError(
                (
                    f"{where} was written by a newer hpcstack (format {number}; this one writes "
                    f"{self.number})"
                ),
                (
                    "change it with that version: what is published can be loaded and launched "
                    "with this one"
                ),
            )

    def number_of(self, document: Any, where: str, remedy: str) -> int:
        """The number of DOCUMENT's format. StoreError where it has none of this family."""
        said = document.get("format") if isinstance(document, dict) else None
        match = (
            re.fullmatch(re.escape(self.family) + r"/v([0-9]{1,4})", said)
            if isinstance(said, str)
            else None
        )
        if not match:
            raise StoreError(
                f"{where} is damaged, or of another hpcstack: its format is {said!r}"[:300], remedy
            )
        return int(match[1])


def known_part(kind: type[Record], document: Any) -> Any:
    """Of a newer format's DOCUMENT what KIND has fields for, also in the records within it."""
    if not isinstance(document, dict):
        return document  # and is refused as what it is
    return {
        name: _known_value(field.annotation, document[name])
        for name, field in kind.model_fields.items()
        if name in document
    }


def _known_value(annotation: Any, value: Any) -> Any:
    """The same of VALUE, which is declared as ANNOTATION: a record, a list of records, or a dict
    with such values.
    """
    if inner := _record_in((annotation,)):
        return known_part(inner, value)
    inner = _record_in(get_args(annotation))
    if inner and isinstance(value, list):
        return [known_part(inner, one) for one in value]
    if inner and isinstance(value, dict):
        return {name: known_part(inner, one) for name, one in value.items()}
    return value


def _record_in(annotations: tuple[Any, ...]) -> type[Record] | None:
    return next(
        (one for one in annotations if isinstance(one, type) and issubclass(one, Record)), None
    )
