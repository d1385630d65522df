"""Records: JSON files that another user's hpcstack wrote, or another version of it.

One strict reader serves all kinds. A record names its format by a family and a number:
"hpcstack/artifact/v1". In a record of a known number every field is validated, and one that is not
declared is refused. A record of a newer number is read as far as its fields are known, so that
users can go on loading and launching what it describes; it is never changed.

Tested in tests/hostile/test_shared_folders.py and tests/unit/store/test_store.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError

from hpcstack.core.characters import CONTROL
from hpcstack.core.errors import StoreError

MOST_TEXT = 2000  # characters of a field


def _refuse_controls(text: str) -> str:
    if CONTROL.search(text):
        raise ValueError("it holds a control character")
    return text


Plain = Annotated[str, AfterValidator(_refuse_controls)]
Text = Annotated[str, StringConstraints(max_length=MOST_TEXT), AfterValidator(_refuse_controls)]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Key = Annotated[str, StringConstraints(pattern=r"^[0-9a-z]{1,64}$")]


class Record(BaseModel):
    """A kind of record, or a part of one; pydantic refuses fields that it does not declare."""

    model_config = ConfigDict(extra="forbid", strict=True)


Kind = TypeVar("Kind", bound=Record)


@dataclass(frozen=True)
class Format(Generic[Kind]):
    """How a kind of record is written.

    FAMILY and NUMBER are its format as this hpcstack writes it, KIND is the model of its fields.
    """

    family: str
    number: int
    kind: type[Kind]

    @property
    def name(self) -> str:
        """The format's name, as a record holds it in its field `format`."""
        return f"{self.family}/v{self.number}"

    def read(self, document: Any, where: str, remedy: str, *, to_change: bool = False) -> Kind:
        """Return the record DOCUMENT, which the file WHERE holds.

        Raise StoreError, with REMEDY, where it is damaged or has fields that it must not have; and
        where it is to be changed, but was written by a newer hpcstack.
        """
        newer = self.number_of(document, where, remedy) > self.number
        if newer and to_change:
            self.check_changeable(document, where)
        if newer:
            document = take_known_part(self.kind, document)
        try:
            return self.kind.model_validate(document)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise StoreError(f"{where} is damaged: {place}: {first['msg']}"[:500], remedy) from None

    def check_changeable(self, document: Any, where: str) -> None:
        """Raise StoreError where DOCUMENT, from the file WHERE, was written by a newer hpcstack."""
        number = self.number_of(document, where, "")
        if number > self.number:
            raise StoreError(
                f"{where} was written by a newer hpcstack "
                f"(format {number}; this one writes {self.number})",
                "change it with that version: what is published can be loaded and launched "
                "with this one",
                page="upgrade",
            )

    def number_of(self, document: Any, where: str, remedy: str) -> int:
        """Return the number of DOCUMENT's format.

        Raise StoreError, with REMEDY, where it has no format of this family.
        """
        said = document.get("format") if isinstance(document, dict) else None
        match = None
        if isinstance(said, str):
            match = re.fullmatch(re.escape(self.family) + r"/v([0-9]{1,4})", said)
        if not match:
            raise StoreError(
                f"{where} is damaged, or of another hpcstack: its format is {said!r}"[:300], remedy
            )
        return int(match[1])


def take_known_part(kind: type[Record], document: Any) -> Any:
    """Return the part of a newer format's DOCUMENT that KIND has fields for, records within it too.

    What is not a record at all is returned as it is, to be refused by the model.
    """
    if not isinstance(document, dict):
        return document
    return {
        name: _known_value(field.annotation, document[name])
        for name, field in kind.model_fields.items()
        if name in document
    }


def _known_value(annotation: Any, value: Any) -> Any:
    """Return the known part of VALUE, which is declared as ANNOTATION.

    Known are a record, a list of records, and a dict whose values are records.
    """
    if inner := _find_record((annotation,)):
        return take_known_part(inner, value)
    inner = _find_record(get_args(annotation))
    if inner and isinstance(value, list):
        return [take_known_part(inner, one) for one in value]
    if inner and isinstance(value, dict):
        return {name: take_known_part(inner, one) for name, one in value.items()}
    return value


def _find_record(annotations: tuple[Any, ...]) -> type[Record] | None:
    """Return the first of ANNOTATIONS that is a kind of record; None for none."""
    for one in annotations:
        if isinstance(one, type) and issubclass(one, Record):
            return one
    return None
