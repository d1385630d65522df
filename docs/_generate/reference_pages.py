"""The reference pages that are made from the code: verbs, keys, checks, exit codes, messages.

`write_pages(FOLDER)` writes them all; docs/conf.py calls it before each build. It imports only
hpcstack and what hpcstack needs, so that tests/unit/test_reference.py runs without Sphinx.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from hpcstack.cli import GROUPS, group
from hpcstack.core.errors import HpcstackError
from hpcstack.recipe.model import Stack
from hpcstack.recipe.schema import REPLACE, make_file_schema
from hpcstack.site.load import Site, make_defaults
from hpcstack.suite.gates import REACHED, WITHIN, read_gates
from hpcstack_smoke.collectives import line
from hpcstack_smoke.gpu import judge
from hpcstack_smoke.node.gpu import AZURE
from hpcstack_smoke.node.nvlink import LINKS
from hpcstack_smoke.select import BURN, CHECKS, FAMILIES, TIERS, Check
from hpcstack_smoke.select import GROUPS as TEST_GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/hpcstack"
MADE = "<!-- Made from the code by docs/_generate/reference_pages.py. Do not edit. -->\n"

# -- Markdown


def plain(text: str) -> str:
    """TEXT of the code as Markdown that shows it literally; `code` in it stays code."""
    text = " ".join(text.split())
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(
        part if number % 2 else re.sub(r"([\\*_<>\[\]])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def cell(text: str) -> str:
    """TEXT for a cell of a table."""
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("\n", " ")


def code(text: str) -> str:
    """TEXT as inline code; nothing for nothing."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in lines) + "\n"


def block(text: str, language: str = "text") -> str:
    """TEXT as a fenced block."""
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


def paragraphs(text: str) -> str:
    """A docstring as Markdown: its paragraphs, escaped."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text or "").replace("\b", ""))
    return "\n\n".join(plain(part) for part in parts if part.strip()) + "\n"


# -- verbs


def list_commands() -> Iterator[tuple[str, str, click.Command]]:
    """(group's title, full name, command) of each verb and each of its own verbs."""
    context = click.Context(group, info_name="hpcstack")
    for title, verbs in GROUPS.items():
        for verb in verbs:
            command = group.get_command(context, verb)
            assert command is not None, verb
            yield title, verb, command
            if isinstance(command, click.Group):
                for name, below in command.commands.items():
                    yield title, f"{verb} {name}", below


def _context(name: str, command: click.Command) -> click.Context:
    context = click.Context(group, info_name="hpcstack")
    for word in name.split():
        context = click.Context(command, info_name=word, parent=context)
    return context


def visible_options(command: click.Command) -> list[click.Option]:
    """The options of COMMAND that its help shows, without --help itself."""
    return [one for one in command.params if isinstance(one, click.Option) and not one.hidden]


def _default(option: click.Option, context: click.Context) -> str:
    """The default of OPTION in words; empty where it is nothing."""
    default = option.get_default(context, call=False)
    if callable(default) or default in (None, False, "", (), [], {}):
        return ""
    if type(default).__name__ == "Sentinel" or repr(default).startswith("Sentinel"):
        return ""
    if default is True:
        return "yes"
    if isinstance(default, (tuple, list)):
        return " ".join(map(str, default))
    return str(default)


def _option_row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(option.opts)
    if option.secondary_opts:
        names += f" / {', '.join(option.secondary_opts)}"
    takes = "" if option.is_flag or option.count else f" {option.make_metavar(context)}"
    about = plain(option.help or "")
    if option.multiple:
        about += " May be given several times."
    return code(names + takes), _default(option, context), about.strip()


def _command_text(name: str, command: click.Command, depth: int) -> str:
    context = _context(name, command)
    pieces = " ".join(command.collect_usage_pieces(context))
    out = [f"{'#' * depth} {name}\n", block(f"hpcstack {name} {pieces}".rstrip())]
    out.append(paragraphs(command.help or ""))
    rows = [_option_row(one, context) for one in visible_options(command)]
    if rows:
        out.append(table(("option", "default", "what it does"), rows))
    return "\n".join(out)


def verbs_page() -> str:
    """Each verb with its usage, help and options."""
    out = [
        MADE,
        "# Verbs\n",
        "`hpcstack VERB --help` prints the same. Options of `hpcstack` itself come before the "
        "verb:\n",
    ]
    context = click.Context(group, info_name="hpcstack")
    rows = [_option_row(one, context) for one in visible_options(group)]
    out.append(table(("option", "default", "what it does"), rows))
    titled = ""
    for title, name, command in list_commands():
        if title != titled:
            out.append(f"## {title}\n")
            titled = title
        out.append(_command_text(name, command, 4 if " " in name else 3))
    return "\n".join(out)


# -- keys of site.yaml and of recipes


@dataclass(frozen=True)
class Key:
    """One key: its path, as `registries.NAME.mirror` or `run[].name`, and what may stand there."""

    path: str
    kind: str
    default: str
    about: str
    section: bool  # whether it is a mapping whose keys are described themselves


def list_keys(schema: dict[str, Any]) -> list[Key]:
    """Every key of SCHEMA, in its order."""
    definitions = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    out: list[Key] = []
    for name, node in schema["properties"].items():
        out += _walk(node, name, definitions, name in required)
    return out


def _resolved(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """NODE with what its `$ref` names under it."""
    if "$ref" not in node:
        return node
    name = node["$ref"].rpartition("/")[2]
    beside = {key: value for key, value in node.items() if key != "$ref"}
    return {"named": name, **definitions[name], **beside}


def _ways(node: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """What may stand at NODE: its alternatives, without null and without {replace: ...}."""
    out: list[dict[str, Any]] = []
    for one in node.get("anyOf", [node]):
        found = _resolved(one, definitions)
        if found.get("type") == "null" or found.get("description") == REPLACE:
            continue
        out += _ways(found, definitions) if "anyOf" in found else [found]
    return out


def _walk(
    node: dict[str, Any], path: str, definitions: dict[str, Any], required: bool
) -> Iterator[Key]:
    node = _resolved(node, definitions)
    ways = _ways(node, definitions)
    section = any("properties" in way for way in ways)
    default = "required" if required else "" if section else _shown_default(node)
    about = node.get("description", "")
    if section and not about:
        about = (
            next(way["description"] for way in ways if "properties" in way)
            if any("description" in way for way in ways)
            else ""
        )
    kinds = dict.fromkeys(_kind(way, definitions) for way in ways)
    yield Key(path, " or ".join(kinds), default, about, section)
    for way in ways:
        yield from _below(way, path, definitions)


def _below(way: dict[str, Any], path: str, definitions: dict[str, Any]) -> Iterator[Key]:
    """The keys of the mapping WAY, of the mappings in the list WAY, or of its named mappings."""
    if way.get("named") == "Fragment":
        return
    for name, node in way.get("properties", {}).items():
        yield from _walk(node, f"{path}.{name}", definitions, name in way.get("required", ()))
    for inner, step in ((_named(way), ".NAME"), (way.get("items"), "[]")):
        if not isinstance(inner, dict):
            continue
        for one in _ways(_resolved(inner, definitions), definitions):
            yield from _below(one, path + step, definitions)


def _named(way: dict[str, Any]) -> Any:
    """What stands at the keys of WAY that are chosen freely, or by a pattern."""
    patterns = list(way.get("patternProperties", {}).values())
    return patterns[0] if patterns else way.get("additionalProperties")


WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
}
BOUNDS = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than"}


def _kind(way: dict[str, Any], definitions: dict[str, Any]) -> str:
    """The type of WAY in words."""
    if "const" in way:
        return code(str(way["const"]))
    if "enum" in way:
        return " or ".join(code(str(one) or '""') for one in way["enum"])
    if isinstance(way.get("type"), list):
        return "true or false" if "boolean" in way["type"] else "mapping"
    if "properties" in way:
        return "mapping"
    if way.get("type") == "array":
        inner = _ways(_resolved(way.get("items", {}), definitions), definitions)
        return f"list of {' or '.join(dict.fromkeys(_kind(one, definitions) for one in inner))}"
    if way.get("type") == "object":
        inner = _named(way)
        if not isinstance(inner, dict) or not inner:
            return "mapping"
        ways = _ways(_resolved(inner, definitions), definitions)
        kinds = dict.fromkeys(_kind(one, definitions) for one in ways)
        return f"mapping of NAME to {' or '.join(kinds)}"
    word = {"path": "path", "date": "date"}.get(way.get("format", ""), "")
    word = word or WORDS.get(way.get("type", ""), "anything")
    limits = [f"{said} {way[name]}" for name, said in BOUNDS.items() if name in way]
    return f"{word}, {' and '.join(limits)}" if limits else word


def _shown_default(node: dict[str, Any]) -> str:
    default = node.get("default")
    if default is None:
        return ""
    return code(default or '""' if isinstance(default, str) else json.dumps(default))


def site_schema() -> dict[str, Any]:
    """The schema of site.yaml, with the defaults of the built-in layer."""
    schema = Site.model_json_schema(by_alias=True)
    for name, value in make_defaults({"HOME": "~"}).items():
        schema["properties"][name]["default"] = value
    schema["required"] = []
    schema["properties"]["force"] = {
        "type": "object",
        "description": "keys of this file that nothing later overrides; "
        "only in /etc/hpcstack/site.yaml",
    }
    return schema


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe's file. What a stack must have, a file may inherit."""
    return {**make_file_schema(), "required": Stack.model_json_schema(by_alias=True)["required"]}


@dataclass(frozen=True)
class Example:
    """A YAML file: its text, and the nodes that know where in it they stand."""

    text: str
    node: yaml.Node

    @classmethod
    def read(cls, path: Path) -> Example:
        text = path.read_text()
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        assert node is not None, path
        return cls(text, node)


def find_example(examples: Iterable[Example], path: str) -> str:
    """What the first of EXAMPLES that has PATH says there, on one line; empty where none has."""
    steps = path.replace("[]", ".[]").split(".")
    for example in examples:
        for found in _at(example.node, steps):
            shown = _on_one_line(found, example.text)
            if shown and len(shown) <= 70:
                return shown
    return ""


def _at(node: yaml.Node, steps: Sequence[str]) -> Iterator[yaml.Node]:
    """The nodes at STEPS below NODE; the step NAME is any key, [] any entry."""
    if not steps:
        yield node
        return
    below: list[yaml.Node] = []
    if steps[0] == "[]" and isinstance(node, yaml.SequenceNode):
        below = node.value
    elif isinstance(node, yaml.MappingNode):
        below = [value for key, value in node.value if steps[0] in ("NAME", key.value)]
    for one in below:
        yield from _at(one, steps[1:])


def _on_one_line(node: yaml.Node, text: str) -> str:
    """NODE as its file writes it, without line breaks; empty where it is empty or a script."""
    if isinstance(node, yaml.ScalarNode):
        return "" if node.style in ("|", ">") else text[node.start_mark.index : node.end_mark.index]
    if isinstance(node, yaml.SequenceNode):
        parts = [_on_one_line(one, text) for one in node.value]
        return f"[{', '.join(parts)}]" if all(parts) and parts else ""
    pairs = [
        (_on_one_line(key, text), _on_one_line(value, text) or "{}") for key, value in node.value
    ]
    return f"{{{', '.join(f'{key}: {value}' for key, value in pairs)}}}" if pairs else ""


def recipe_examples() -> list[Example]:
    """The example of the reference, then every recipe."""
    paths = [
        ROOT / "docs/reference/example-recipe.yaml",
        *sorted((ROOT / "recipes").glob("*.yaml")),
    ]
    return [Example.read(path) for path in paths]


def site_examples() -> list[Example]:
    """The example of the reference."""
    return [Example.read(ROOT / "docs/reference/example-site.yaml")]


def _keys_page(
    title: str, about: str, schema: dict[str, Any], examples: list[Example], example: str
) -> str:
    out = [MADE, f"# {title}\n", about, "## A file with nearly every key\n"]
    out.append(block((ROOT / "docs/reference" / example).read_text(), "yaml"))
    groups: dict[str, list[Key]] = {}
    for key in list_keys(schema):
        first = re.split(r"[.\[]", key.path)[0]
        groups.setdefault(first, []).append(key)
    single = [keys[0] for keys in groups.values() if len(keys) == 1]
    out.append("## Single keys\n")
    out.append(_key_table(single, examples))
    for first, keys in groups.items():
        if len(keys) == 1:
            continue
        out.append(f"## {first}\n")
        out.append(_key_table(keys, examples))
    return "\n".join(out)


def _sentence(text: str) -> str:
    text = text.strip()
    first = text.partition(" ")[0]
    text = text[:1].upper() + text[1:] if first.isalpha() else text
    return text + ("" if text.endswith((".", ":", "?")) else ".")


def _key_table(keys: Iterable[Key], examples: list[Example]) -> str:
    rows = [
        (
            code(key.path),
            key.kind,
            key.default,
            plain(key.about),
            "" if key.section else code(find_example(examples, key.path)),
        )
        for key in keys
    ]
    return table(("key", "type", "default", "what it says", "example"), rows)


def site_page() -> str:
    about = (
        "Where and how: one cluster. Files are merged key by key, the weakest first: built-in,\n"
        "`/etc/hpcstack/site.yaml`, `~/.config/hpcstack/site.yaml`, `$HPCSTACK_SITE`, `--site "
        "FILE`.\n`hpcstack show --site` prints the effective values and the file that each came "
        "from;\n`hpcstack schema --site` prints the JSON Schema.\n\n"
        "In a path, `NAME` stands for a key that you choose, and `[]` for each entry of a list.\n"
    )
    return _keys_page(
        "Keys of site.yaml", about, site_schema(), site_examples(), "example-site.yaml"
    )


def recipe_page() -> str:
    about = (
        "What: one stack, or one file for many (`matrix`). `hpcstack show STACK` prints the "
        "effective values\nand the file and line that each came from; `hpcstack schema` prints "
        "the JSON Schema.\n\n"
        "In a path, `NAME` stands for a key that you choose, and `[]` for each entry of a list.\n"
        "Wherever a list may stand, `{replace: [...]}` drops what is inherited. What is required "
        "may come\nfrom the file itself, from what it extends, or from its matrix.\n"
    )
    return _keys_page(
        "Keys of a recipe", about, recipe_schema(), recipe_examples(), "example-recipe.yaml"
    )


# -- checks of the suite

SCOPES = {
    "node": "the agent of each node",
    "ranks": "every rank of one torchrun",
    "restart": "a torchrun of its own",
    "tasks": "a plain process for each rank",
    "mpi": "every rank of an MPI step",
    "after": "the agent of each node, after all other checks",
    "host": "the host that judges the run, once",
}
NEEDS = {
    "-": "nothing: it runs everywhere",
    "gpu": "real GPUs on the nodes",
    "no-gpu": "nodes without real GPUs",
    "fabric": "an InfiniBand or RoCE fabric",
    "named": "more than site.yaml says: a recipe requires it only by its own code",
}
# Figures that are in the suite's own code: (where, what is demanded, source) of each row.


def _rows_of(
    figures: dict[str, float], unit: str, verdict: str, source: str
) -> list[tuple[str, str, str]]:
    return [(gpu, f"{value:g} {unit}; {verdict}", source) for gpu, value in figures.items()]


LINKS_SOURCE = "node/nvlink.py names the source of each"
SUITE_GATES = {
    "node.matmul": _rows_of(
        judge.RATES, "TFLOP/s in bf16", f"WARN below {judge.SHARE * 100:.0f} %", judge.MAMF
    ),
    "node.hbm": [
        *_rows_of(
            judge.COPIED, "TB/s", f"WARN below {judge.SEEN_SHARE * 100:.0f} %", judge.MEASURED
        ),
        *_rows_of(
            judge.MEMORY, "TB/s", f"WARN below {judge.SHEET_SHARE * 100:.0f} %", judge.DATASHEET
        ),
    ],
    "node.copies": _rows_of(judge.HOST_GATES, "GB/s each way", "FAIL below it", AZURE),
    "node.p2p": _rows_of(
        judge.PEER_GATES, f"GB/s, on boards of {judge.SWITCHED}", "FAIL below it", AZURE
    ),
    "node.nvlink": [
        (gpu, f"{count} links" + (f" of {rate:g} GB/s each" if rate else ""), LINKS_SOURCE)
        for gpu, (count, rate) in LINKS.items()
    ],
    "nccl.ring": [
        (
            "any, by the kind of its fabric",
            f"{line.LINE_SHARE * 100:.0f} % of what ports and NVLink let through ({line.OTHERS_SHARE * 100:.0f} % on "
            f"fabrics other than {', '.join(filter(None, line.SOURCED))})",
            "the rate in site.yaml or of the ports; nccl src/graph/topo.h; nccl-tests #290",
        )
    ],
}


def what_it_measures(check: Check) -> str:
    """The docstring of the function that runs CHECK; read without importing it: it may want torch."""
    module, _, name = check.where.partition(":")
    path = ROOT / "src/hpcstack_smoke" / f"{module.replace('.', '/')}.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node) or ""
    return ""


def list_gates(check: Check) -> list[tuple[str, str, str]]:
    """(where, what is demanded, source) of each gate of CHECK."""
    facts = read_gates()
    out = []
    for gate in facts["gates"]:
        if gate["code"] != WITHIN.get(check.code, check.code) or gate["kind"] == REACHED:
            continue
        if check.code in WITHIN and gate.get("nodes", 1) != 1:
            continue
        nodes = f"{gate['nodes']} node{'s' * (gate['nodes'] != 1)}" if "nodes" in gate else ""
        where = f"{', '.join(gate.get('gpu', []))}: {gate.get('gpus', 'all')} GPUs a node"
        where += f", {nodes}" if nodes and check.code not in WITHIN else ""
        size = f"{gate['min_bytes'] / 2**30:g} GiB"
        hard = "FAIL below it" if gate["kind"] == "gate" else "WARN below 95 %"
        demand = f"{gate['collective']} of {size} or more: {gate['busbw']} GB/s; {hard}"
        out.append((where, demand, facts["sources"][gate["source"]]))
    out += SUITE_GATES.get(check.code, [])
    return out


def _check_text(check: Check) -> str:
    out = [f"### {check.code}\n", plain(_sentence(check.about)) + "\n"]
    if measured := what_it_measures(check):
        out.append(paragraphs(measured))
    needs = NEEDS.get(check.needs, check.needs)
    scope = SCOPES.get(check.scope, check.scope)
    out.append(f"- From tier: {check.tier}\n- Run by: {scope}\n- Needs: {needs}\n")
    rows = [tuple(map(plain, gate)) for gate in list_gates(check)]
    if rows:
        out.append(table(("GPU", "gate", "source"), rows))
    return "\n".join(out)


def checks_page() -> str:
    """Each check of the suite."""
    grouped = {one: f"`{one}` is {', '.join(names)}" for one, names in TEST_GROUPS.items()}
    tiers = ", ".join(f"`{tier}`" for tier in TIERS)
    out = [
        MADE,
        "# Checks of the suite\n",
        f"The suite has {len(CHECKS)} checks in {len(FAMILIES)} families. A check runs from its "
        f"tier on ({tiers}), and at\nany tier where `--only`, or a recipe's `tests`, names its "
        f"own code. The tier `{BURN}` stands apart.\nGroups: {'; '.join(grouped.values())}.\n",
        "A check without a gate is held against your site's `baselines` and the history of its "
        "own runs.\n",
        table(
            ("check", "tier", "what it is about"),
            [(code(one.code), one.tier, plain(one.about)) for one in CHECKS],
        ),
    ]
    for family in FAMILIES:
        out.append(f"## {family}\n")
        out += [_check_text(check) for check in CHECKS if check.family == family]
    return "\n".join(out)


# -- exit codes


def list_errors() -> list[type[HpcstackError]]:
    """Every error that has an exit code of its own, in the order of the codes."""
    for path in sorted(SOURCE.rglob("*.py")):
        if re.search(r"^ +exit_code = \d+$", path.read_text(), re.MULTILINE):
            module = path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".")
            importlib.import_module(module)
    found = [HpcstackError]
    for one in found:
        found += one.__subclasses__()
    own = [one for one in found if "exit_code" in vars(one) and one is not HpcstackError]
    return sorted(own, key=lambda one: one.exit_code)


def list_other_exits() -> list[tuple[int, str]]:
    """(exit code, the exceptions that it is for) of what cli.main() ends with by itself."""
    main = next(
        node
        for node in ast.parse((SOURCE / "cli/__init__.py").read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name == "main"
    )
    out = []
    for handler in (node for node in ast.walk(main) if isinstance(node, ast.ExceptHandler)):
        for call in (node for node in ast.walk(handler) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "sys.exit" and isinstance(call.args[0], ast.Constant):
                number = call.args[0].value
                assert isinstance(number, int) and handler.type is not None
                out.append((number, ast.unparse(handler.type)))
    return out


def _first_sentence(text: str) -> str:
    first = re.split(r"(?<=\.)\s", text)[0]
    return " ".join(first.split())


EXCEPTIONS = {
    "click.ClickException": "The command line is wrong.",
    "(KeyboardInterrupt, click.Abort)": "Interrupted by Ctrl-C.",
    "OSError": "The system refused a file: no space, no permission.",
    "Exception": "A bug in hpcstack. Report it with the lines that it printed.",
}


def exits_page() -> str:
    """Each exit code."""
    rows = [(0, "Done.")]
    rows += [
        (one.exit_code, plain(_first_sentence(inspect.getdoc(one) or one.__name__)))
        for one in list_errors()
    ]
    rows += [(number, EXCEPTIONS.get(what, code(what))) for number, what in list_other_exits()]
    merged: dict[int, list[str]] = {}
    for number, text in sorted(rows, key=lambda row: row[0]):
        merged.setdefault(number, []).append(text)
    launch = importlib.import_module("hpcstack.launch.failure").OWN_FAILURE
    return "\n".join(
        [
            MADE,
            "# Exit codes\n",
            "Exit codes are a contract: scripts may depend on them.\n",
            table(
                ("exit code", "what it means"),
                [(str(number), " ".join(texts)) for number, texts in merged.items()],
            ),
            "## launch, shell and python\n",
            "They end with the status of the job step, which is that of the first rank that "
            "failed. Otherwise:\n",
            table(
                ("exit code", "what it means"),
                [
                    ("2", "The command line, the recipe or site.yaml is wrong."),
                    ("124", "`--watchdog` ended the step, because it wrote nothing for too long."),
                    (str(launch), "hpcstack itself failed before the command ran."),
                    ("130", "Interrupted by Ctrl-C."),
                    ("143", "Slurm ended the step: cancelled, preempted or out of time."),
                ],
            ),
        ]
    )


# -- messages that `explain` knows


def read_signature_rows() -> list[dict[str, Any]]:
    """The rows of facts/signatures*.yaml."""
    out: list[dict[str, Any]] = []
    for path in sorted((ROOT / "facts").glob("signatures*.yaml")):
        out += yaml.safe_load(path.read_text())["signatures"]
    return out


def read_example_lines() -> dict[str, str]:
    """{name: a line as programs print it}, as the tests keep them."""
    out: dict[str, str] = {}
    for path in sorted((ROOT / "tests/data").glob("log-lines*.yaml")):
        out |= yaml.safe_load(path.read_text())
    return out


def messages_page() -> str:
    """Each message that `explain` knows."""
    rows, lines = read_signature_rows(), read_example_lines()
    families: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        families.setdefault(row["family"], []).append(row)
    out = [
        MADE,
        "# Messages that explain knows\n",
        f"`hpcstack explain` looks for {len(rows)} messages in a log and names the cause and the "
        "remedy of each.\nHere is each one with a line in which it was seen.\n",
    ]
    for family, members in families.items():
        out.append(f"## {family}\n")
        for row in members:
            shown = str(lines.get(row["id"], row["pattern"]))
            out.append(f"### {row['id']}\n\n{block(shown)}")
            out.append(f"{plain(row['cause'])}\n")
            out.append(f"**Remedy.** {plain(row['remedy'])}\n")
            if page := row.get("page"):
                out.append(f"How-to: [{page}](../../how-to/{page}.md)\n")
            out.append(f"Source: {_source(row['source'])}\n")
    return "\n".join(out)


def _source(text: str) -> str:
    return f"<{text}>" if re.fullmatch(r"https?://[^\s<>]+", text) else plain(text)


PAGES: dict[str, Callable[[], str]] = {
    "verbs.md": verbs_page,
    "site.md": site_page,
    "recipe.md": recipe_page,
    "checks.md": checks_page,
    "exit-codes.md": exits_page,
    "messages.md": messages_page,
}


def write_pages(folder: Path) -> list[Path]:
    """Write every page into FOLDER. A page that has not changed keeps its time, so that Sphinx does
    not read it again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    out = []
    for name, make in PAGES.items():
        path, text = folder / name, make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
        out.append(path)
    return out
