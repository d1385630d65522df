"""Put other words in place of those by which somebody could be named, in a text of a run.

What may stay is listed, and nothing else stays: words that the suite itself writes or compares,
numbers, versions, places of devices. So what no one has thought of is replaced. A replacement has
the form of what it stands for, as far as a check looks at that: the class of an address, an
identifier that is all zeros, the length of a number. The same word has the same replacement
throughout, since checks compare nodes with each other. Replacements are made with a key that is
thrown away: nobody can try out names.

A name that is also a word of the suite stays, and so does a number of up to six digits that nothing
around it calls an identifier.
"""

from __future__ import annotations

import ast
import hashlib
import hmac
import ipaddress
import re
import secrets
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcstack.core import data
from hpcstack.core.data import read_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

WORD = re.compile(r"[^\s,;\"'`()\[\]{}=|<>*]+")
EDGES = "".join(":.!?#&%\\")  # at the ends of a word, they are the sentence's
# Forms that name nobody
HARMLESS = re.compile(
    r"""
    [+-]?\d{1,6} (\.\d{1,20})? (e[+-]?\d{1,3})?                     # a number, and a unit:
        (%|[kKMGT]?i?[bB](ps|/s|/sec)?|[kMGT]?Hz|[mun]?s|min|h|d|m?W|C|X|x|G|M|K|GT/s)?
    | [+-]?\d{1,10}\.\d{1,20}                                       # a number with many digits
    | v?(?!\d{4}\.\d{4}\.)\d{1,5}(\.\d{1,5}){1,2} | [0-9A-F]{2}(\.[0-9A-F]{2}){4}     # versions: of a driver, a VBIOS
    | \d{4}-\d\d-\d\d (T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:\d\d)?)?  # a date
    | \d\d?:\d\d(:\d\d(\.\d{1,9})?)?                              # a time
    | (PCI:)?[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2})?(\.[0-9A-Fa-f])?  # a place on PCI
    | 0x0*[0-9A-Fa-f]{0,8}                                           # a mask, a status
    | x\d{1,2}                                                       # lanes
    | (GPU|NIC|CPU|NUMA|NV|rank|node|link|port|cuda:)\d{1,3}         # a device by its number
    | (mlx[45]|bnxt_re|irdma|efa|cxi|hfi1|hsn|ib|eth|nvidia|nvme|nvidia-nvswitch|card)_?\d{1,3}(np\d)?
    | rdmap\d{1,3}s\d{1,3}
    | [a-z]+(_[a-z0-9]+){1,4}_\d{1,12}_(bus|alg)bw_GB_s              # what was measured
    | [\W_]+
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What stands behind these is an identifier, whatever it looks like: in a line, and in a word.
SAID = re.compile(
    r"""
    (?<!\w)[A-Za-z_ ]{0,40}(serial|uuid|guid|part\ number|board\ id|asset|s/n)[A-Za-z_ ]{0,40}[:=]\s{0,9}
        (?P<line>[^\\\n]+)
    | (?<![A-Za-z])(([er]?uid|gid|user|account|project|job|asset|serial|s/n)(id)?s?\s?[_:=@(\ ]\s?|user/)
        (?P<word>[^\s,;:()/.@]*\d[^\s,;:()/.@]*)
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Such a key of a document
IDENTIFYING = re.compile(
    r"\w*(serial|uuid|guid|uid|gid|asset)\w*|users?|account|project", re.IGNORECASE
)
# An address of version 4, also with a port or a range behind it; but not the version of a VBIOS
ADDRESS = re.compile(
    r"(?<![\w.])(?![0-9A-F]{2}(?:\.[0-9A-F]{2}){4}(?![\w.]))"
    r"\d{1,3}(?:\.\d{1,3}){2}(?:\.\d{1,3}(?!\d)(?:-\d{1,3}(?!\d))?|\.\[[\d,-]{1,80}\])"
)
UUID = re.compile(r"(?:(GPU|MIG)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
# Of Ethernet, or of InfiniBand, which has 20 bytes
HARDWARE = re.compile(
    r"[0-9a-f]{2}(?:[:_-][0-9a-f]{2}){5,19}|[0-9a-f]{4}(?:\.[0-9a-f]{4}){2}", re.IGNORECASE
)
GUID = re.compile(r"[0-9a-f]{4}(?::[0-9a-f]{4}){3}", re.IGNORECASE)
HEX = re.compile(r"(0x)?[0-9a-f]{7,}", re.IGNORECASE)
FORMS = (UUID, HARDWARE, GUID, HEX)
GPU_NAME = re.compile(r"(GPU|MIG)-\S+")
# Words that nvidia-smi and the kernel's drivers use, and no check asks for
OF_TOOLS = frozenset(
    {
        *(
            "NVSMI",
            "Serial",
            "Number",
            "Attached",
            "Clocks",
            "Reasons",
            "Capping",
            "Affinity",
            "Legend",
        ),
        *("Release", "Nvlink", "Minion", "x86_64", "aarch64", "SDR", "DDR", "QDR", "FDR", "EDR"),
        *("HDR", "NDR", "XDR", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER", "Libfabric+GDR"),
        *("NVIDIA", "NVRM", "Xid", "SXid", "GPU", "PIX", "PXB", "PHB", "SYS", "NODE", "kernel"),
    }
)
SYSTEM = frozenset({"proc", "sys", "dev", "usr", "etc", "lib", "lib64", "run"})
JOINTS = ("/", "@", ":", ".")  # of a word that is made of several, the outer ones first
# Networks for documentation, and for measurements: RFC 5737, RFC 2544
NOBODYS = tuple(
    ipaddress.IPv4Network(one)
    for one in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15")
)


@cache
def list_own_words() -> frozenset[str]:
    """Return the words that the suite, what judges and what reports write or compare.

    That is what stands in their texts and names, not what is said about them. Of the facts it is the
    names of GPUs, and what is known of the messages of drivers.
    """
    package = Path(__file__).resolve().parents[1]
    sources = list(data.read_smoke_files().values())
    for folder in ("suite", "report"):
        sources += [path.read_text(encoding="utf-8") for path in (package / folder).glob("*.py")]
    texts = [text for source in sources for text in _list_texts(ast.parse(source))]
    texts += [name for one in read_facts("gpus")["architectures"] for name in one["gpus"]]
    for one in read_facts("signatures-machine")["signatures"]:
        texts += [one["pattern"], one["cause"]]
    words: set[str] = set()
    for text in texts:
        words.update(word.strip(EDGES) for word in WORD.findall(text))
        words.update(re.findall(r"[A-Za-z_]+", text))
    folders = {part for word in words if word.startswith("/") for part in word.split("/")}
    return frozenset(words | folders) | OF_TOOLS


def _list_texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts in TREE, a program, without those that describe it; and names of its fields."""
    described = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(one.body[0].value)
        for one in ast.walk(tree)
        if isinstance(one, described) and one.body and isinstance(one.body[0], ast.Expr)
    }
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and id(one) not in docs:
            yield one.value
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            yield one.target.id


class Replacements:
    """What stands in place of names; HOSTS, {name: other name}, are known before."""

    def __init__(self, hosts: Mapping[str, str]) -> None:
        self.key = secrets.token_bytes(32)
        self.own_words = list_own_words()
        self.addresses: dict[str, str] = {}
        names: dict[str, str] = {}
        for host, other in hosts.items():
            names[host] = names[host.partition(".")[0]] = other
        longest_first = sorted(names, key=len, reverse=True)
        self.hosts = names
        self.any_host = re.compile(
            "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in longest_first) or r"(?!)"
        )

    def change(self, text: str) -> str:
        """Return TEXT with other words in place of all that are not known to name nobody."""
        text = self.any_host.sub(lambda found: self.hosts[found[0]], text)
        out = []
        end = 0
        for found in SAID.finditer(text):
            start, after = found.span(found.lastgroup or 0)
            out.append(self._change_unsaid(text[end:start]))
            out.append(self._identify(text[start:after]))
            end = after
        return "".join([*out, self._change_unsaid(text[end:])])

    def change_all(self, value: Any) -> Any:
        """Return VALUE, a document, with each text in it changed, keys included."""
        return self._walk(value, self.change, lambda number: number)

    def _walk(
        self, value: Any, change: Callable[[str], str], renumber: Callable[[float], float]
    ) -> Any:
        """Return VALUE with CHANGE made to each text in it, and RENUMBER to each number."""
        if isinstance(value, str):
            return change(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return renumber(value)
        if isinstance(value, list):
            return [self._walk(one, change, renumber) for one in value]
        if not isinstance(value, dict):
            return value
        out = {}
        for key, one in value.items():
            identifies = IDENTIFYING.fullmatch(key) is not None
            how = (self._identify, self._renumber) if identifies else (change, renumber)
            # A key that the suite has itself is none of a host's, whatever a host is called.
            out[key if key in self.own_words else self.change(key)] = self._walk(one, *how)
        return out

    def _renumber(self, number: float) -> float:
        return int(self._replace(f"{abs(int(number)):07}"))

    def _identify(self, value: str) -> str:
        """Return what stands in place of the identifier VALUE; a word that says there is none stays."""
        if value.strip("[] \t/") in ("N/A", "None", "Unknown", "NA"):
            return value
        return WORD.sub(lambda found: self._replace(found[0]), value)

    def _change_unsaid(self, text: str) -> str:
        """Return TEXT changed, in which nothing says that it identifies."""
        out = []
        end = 0
        for found in ADDRESS.finditer(text):
            out.append(self._change_words(text[end : found.start()]))
            out.append(self._replace_ipv4(found[0]))
            end = found.end()
        return "".join([*out, self._change_words(text[end:])])

    def _change_words(self, text: str) -> str:
        return WORD.sub(lambda found: self._change_word(found[0]), text)

    def _change_word(self, word: str) -> str:
        core = word.strip(EDGES)
        if not core:
            return word
        if word.startswith("::"):
            core = word.rstrip(EDGES)
        begin = word.index(core)
        return word[:begin] + self._change_core(core) + word[begin + len(core) :]

    def _change_core(self, word: str) -> str:
        if self._may_stay(word):
            return word
        if word.startswith("/"):
            return self._change_path(word)
        if any(form.fullmatch(word) for form in (*FORMS, GPU_NAME)):
            return self._replace(word)
        if _parse_ipv6(word) is not None:
            return self._replace(word)
        for joint in JOINTS:
            parts = word.split(joint)
            if len(parts) > 1:
                return joint.join(map(self._change_core, parts))
        return self._replace(word)

    def _may_stay(self, word: str) -> bool:
        if not word or word in self.own_words:
            return True
        if HARMLESS.fullmatch(word):
            return True
        # an option, or a name that the suite has made, as of a measurement: of its own words
        is_made = word.startswith("-") or "_" in word
        parts = [part for part in re.split(r"[-_+]", word) if part]
        return is_made and all(part in self.own_words for part in parts)

    def _change_path(self, path: str) -> str:
        """Return what stands in place of PATH: the system's own folders are asked for by checks."""
        parts = path.split("/")
        if parts[1] not in SYSTEM:
            return f"/hidden-{self._draw(path, 8)}"
        return "/".join(map(self._change_core, parts))

    def _replace(self, word: str) -> str:
        """Return what stands in place of WORD, of the same form."""
        if not word.strip("0:.-x_") and "0" in word:
            return word  # all zeros: there is none
        if ADDRESS.fullmatch(word):
            return self._replace_ipv4(word)
        address = _parse_ipv6(word)
        if address is not None:
            return self._replace_ipv6(word, address)
        unit = GPU_NAME.fullmatch(word)
        if unit:
            return f"{unit[1]}-{self._replace(word[4:])}"
        if not any(form.fullmatch(word) for form in FORMS):
            return f"x{self._draw(word, 8)}"
        digits = iter(self._draw(word, len(word)))
        is_number = word.isdigit()
        start = 2 if word[:2].lower() == "0x" else 0
        return word[:start] + "".join(
            _fit(next(digits), is_number=is_number) if one.isalnum() else one
            for one in word[start:]
        )

    def _replace_ipv4(self, word: str) -> str:
        """Return an address that is nobody's in place of WORD, another one for each."""
        if word.startswith("127.") or word == "0.0.0.0":
            return word
        if word not in self.addresses:
            number = len(self.addresses)
            for network in NOBODYS:
                if number < network.num_addresses - 2:
                    break
                number -= network.num_addresses - 2
            self.addresses[word] = str(network[1 + number % (network.num_addresses - 2)])
        return self.addresses[word]

    def _replace_ipv6(self, word: str, address: ipaddress.IPv6Address) -> str:
        """Return an address for documentation in place of WORD; what is this machine's own stays."""
        if address.is_loopback or address.is_unspecified:
            return word
        if address.ipv4_mapped is not None:
            other = ipaddress.IPv6Address(f"::ffff:{self._replace_ipv4(str(address.ipv4_mapped))}")
        else:
            number = int(self._draw(str(address), 16), 16)
            network = "fe80::" if address.is_link_local else "2001:db8::"
            other = ipaddress.IPv6Address(int(ipaddress.IPv6Address(network)) + number)
        is_exploded = len(word) == 39  # as /sys writes a GID
        return other.exploded if is_exploded else str(other)

    def _draw(self, word: str, count: int) -> str:
        """Return COUNT hexadecimal digits that stand for WORD."""
        digits = ""
        while len(digits) < count:
            text = f"{len(digits)} {word.lower()}".encode()
            digits += hmac.new(self.key, text, hashlib.sha256).hexdigest()
        return digits[:count]


def _parse_ipv6(word: str) -> ipaddress.IPv6Address | None:
    """Return the address of version 6 that WORD is, or None."""
    if word.count(":") < 2:
        return None
    try:
        return ipaddress.IPv6Address(word)
    except ValueError:
        return None


def _fit(digit: str, *, is_number: bool) -> str:
    """Return the hexadecimal DIGIT, or a decimal one in its place."""
    return str(int(digit, 16) % 10) if is_number else digit
