"""The reader of a game's grammar: the words of its data release, as data.

A `game.tw-pddl` carries its own sentences: per action a command template and a
feedback rule, per rule a list of alternatives, each with a condition on the facts:

    "#name#"               say the rule `name`
    "{r.name}"             a name of what the action is about
    "[{o.name | query}]"   the answers to a conjunctive query, listed in words

Only rules that a known action can reach are read, and what is not understood is a
ValueError at compile time, never a wrong sentence. `text` says what is read here.
"""

import functools
import json
import re
from typing import Any, NamedTuple

# What the parameters of actions are; variables of queries carry their own type.
PARAMETERS = {
    "a": "agent",
    "l": "location",
    "lstart": "location",
    "lend": "location",
    "r": "receptacle",
    "o": "object",
    "co": "object",
    "ko": "object",
}
# Columns of the facts that conditions and lists may ask about.
PREDICATES = {
    "atlocation": ("agent", "location"),
    "holds": ("agent", "object"),
    "holdsany": ("agent",),
    "receptacleatlocation": ("receptacle", "location"),
    "openable": ("receptacle",),
    "opened": ("receptacle",),
    "inreceptacle": ("object", "receptacle"),
    "not_inreceptacle": ("object", "receptacle"),
    "objectatlocation": ("object", "location"),
    "inreceptacleobject": ("object", "object"),
    "isreceptacleobject": ("object",),
    "sliceable": ("object",),
    "toggleable": ("object",),
    "isclean": ("object",),
    "ishot": ("object",),
    "iscool": ("object",),
    "issliced": ("object",),
    "istoggled": ("object",),
    "not_istoggled": ("object",),
}
FLAGS = ("isclean", "ishot", "iscool", "issliced", "istoggled")  # columns of `flags`
LISTING = ("list_empty", "list_separator", "list_last_separator")
TASK = "Your task is to: "

_ACTION = re.compile(r'action\s+([\w/-]+)\s*\{((?:"""(?:.|\n)*?"""|"[^"]*"|[^"}])*)\}')
_FIELD = re.compile(r'(\w+)\s*::\s*("""(?:.|\n)*?"""|"[^"]*")\s*;')
_GOAL = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*")([^"\n]*)(")')
_SENTENCE = re.compile(r"[\w ,.'()!?:-]+", re.ASCII)
_PART = re.compile(
    r"\[\{(?P<item>[^|{}]+?)\s*\|\s*(?P<query>[^|{}]+)\}\]"
    r"|\{(?P<say>[^|{}]+)\}"
    r"|#(?P<rule>[^#]+)#"
    r'|(?P<literal>[^;|"<>\[\]#{}\t]+)'
)
_SAID = re.compile(r"(\w+)(?:\.(name|indefinite))?(?:\s+or\s+\1\.id)?")
_ATOM = re.compile(r"\s*(\w+)\(([^()]*)\)\s*")


class Grammar(NamedTuple):
    """The sentences of one data release. Parts: text, or a list tagged by its kind."""

    templates: dict[str, str]  # action -> "take {o} from {r}"
    feedback: dict[str, list]  # action -> parts
    rules: dict[str, list]  # rule -> [[condition, parts], ...]
    types: dict[str, str]  # variable -> what it stands for
    listing: list[str]  # what to say for no item, between items, before the last


def split_goal(grammar: str) -> tuple[str, str]:
    """Take the goal sentence out of a grammar text: (grammar without it, sentence).

    Raises ValueError where there is not exactly one, or it is not a plain sentence.
    """
    found = _GOAL.findall(grammar)
    if len(found) != 1:
        raise ValueError(f"grammar: {len(found)} goal sentences, wanted one")
    sentence = found[0][1]
    if not _SENTENCE.fullmatch(sentence) or "//" in sentence:
        raise ValueError(f"grammar: unreadable goal sentence {sentence[:80]!r}")
    return _GOAL.sub(r"\1\3", grammar), sentence


@functools.lru_cache(maxsize=16)
def parse(grammar: str, actions: tuple[str, ...]) -> Grammar:
    """Read a grammar text (without its goal) as far as `actions` need it.

    Raises ValueError for an action that has no template, and for a sentence, a
    condition or a fact that this module does not know.
    """
    templates, feedback, raw, said = {}, {}, {}, {}
    for name, body in _ACTION.findall(grammar):
        fields = {key: text for key, text in _FIELD.findall(body)}
        name = name.lower()
        if "template" in fields and "feedback" in fields:
            templates[name] = fields["template"].strip('"')
            said[name] = fields["feedback"].strip('"')
        raw.update(_rules(fields.get("grammar", '"""{}"""')))
    for _, text in _FIELD.findall(_ACTION.sub("", grammar)):
        raw = {**_rules(text), **raw}
    if missing := [name for name in actions if name not in templates]:
        raise ValueError(f"grammar: no words for the action {missing[0]!r}")
    types = dict(PARAMETERS)
    feedback = {name: _parts(said[name], types) for name in actions}
    templates = {name: _template(templates[name], types) for name in actions}
    rules: dict[str, list] = {"task": [["", [["goal"]]]]}
    wanted = [["rule", name] for name in ("intro", *LISTING)]
    wanted += [part for parts in feedback.values() for part in _flat(parts)]
    while wanted:
        part = wanted.pop()
        if part[0] != "rule" or part[1] in rules:
            continue
        if part[1] not in raw:
            raise ValueError(f"grammar: no rule {part[1]!r}")
        rules[part[1]] = [
            [_query(rule.get("condition", ""), types), _parts(rule["rhs"], types)]
            for rule in raw[part[1]]
        ]
        wanted += [p for _, parts in rules[part[1]] for p in _flat(parts)]
    _inline(rules)
    listing = [rules[name][0][1] for name in LISTING]
    if any(len(parts) != 1 or parts[0][0] != "text" for parts in listing):
        raise ValueError("grammar: a list is not joined by plain words")
    return Grammar(templates, feedback, rules, types, [p[0][1] for p in listing])


def pack(grammar: Grammar) -> str:
    """Write a grammar as one line of JSON."""
    return json.dumps(grammar)


@functools.lru_cache(maxsize=16)
def unpack(text: str) -> Grammar:
    """Read what `pack` wrote; equal texts give one shared object."""
    return Grammar(*json.loads(text))


def _inline(rules: dict[str, list]) -> None:
    """Put what a rule always says in place of the rule, inside of lists."""
    for alternatives in rules.values():
        for _, parts in alternatives:
            for part in parts:
                if part[0] == "list" and part[1][0][0] == "rule":
                    inner = rules[part[1][0][1]]
                    if len(part[1]) == len(inner) == 1 and not inner[0][0]:
                        part[1] = inner[0][1]


def _rules(block: str) -> dict[str, list]:
    """Read a triple-quoted JSON block; lines that start with # are remarks."""
    lines = block.strip('"').split("\n")
    kept = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    try:
        return json.loads(kept)
    except ValueError as error:
        raise ValueError(f"grammar: a block is not JSON: {error}") from None


def _flat(parts: list) -> list:
    return [
        p for part in parts for p in (_flat(part[1]) if part[0] == "list" else [part])
    ]


def _parts(text: str, types: dict[str, str]) -> list:
    """Cut a right-hand side into parts. White space before it is not said."""
    text, parts, at = text.lstrip(), [], 0
    while at < len(text):
        match = _PART.match(text, at)
        if not match:
            raise ValueError(f"grammar: cannot read {text[at : at + 60]!r}")
        at = match.end()
        if match["query"]:
            query = _query(match["query"], types)
            item = match["item"]
            inner = _parts(item, types) if item[0] == "#" else _expression(item, types)
            parts.append(["list", inner, query])
        elif match["say"]:
            parts += _expression(match["say"], types)
        elif match["rule"]:
            parts.append(["rule", match["rule"]])
        else:
            parts.append(["text", match["literal"].replace("\\n", "\n")])
    return _joined(parts)


def _expression(text: str, types: dict[str, str]) -> list:
    """Read `o.indefinite + ' ' + o.name`: names, the article "a", and quoted text."""
    parts = []
    for piece in text.strip().split(" + "):
        said = _SAID.fullmatch(piece.strip())
        if said and said[1] in types:
            article = said[2] == "indefinite"
            parts.append(["text", "a"] if article else ["name", said[1]])
        elif len(piece) > 1 and piece[0] == piece[-1] == "'":
            parts.append(["text", piece[1:-1]])
        else:
            raise ValueError(f"grammar: cannot read the expression {text!r}")
    return _joined(parts)


def _joined(parts: list) -> list:
    """Join neighbouring texts into one."""
    out: list[list] = []
    for part in parts:
        if part[0] == "text" and out and out[-1][0] == "text":
            out[-1] = ["text", out[-1][1] + part[1]]
        else:
            out.append(part)
    return out


def _query(text: str, types: dict[str, str]) -> list:
    """Read `holds(a:agent, o:object) & ...` into [[predicate, [variables]], ...]."""
    query: list[Any] = []
    for atom in text.split("&") if text.strip() else []:
        match = _ATOM.fullmatch(atom)
        if not match or match[1] not in PREDICATES:
            raise ValueError(f"grammar: unknown condition {atom.strip()!r}")
        pairs = [arg.strip().partition(":") for arg in match[2].split(",")]
        columns = tuple(kind for _, _, kind in pairs)
        if columns != PREDICATES[match[1]]:
            raise ValueError(f"grammar: unknown condition {atom.strip()!r}")
        for variable, _, kind in pairs:
            if types.setdefault(variable, kind) != kind:
                raise ValueError(f"grammar: {variable!r} is of two types")
        query.append([match[1], [variable for variable, _, _ in pairs]])
    return query


def _template(text: str, types: dict[str, str]) -> str:
    """Turn a command template into a format string over the action's parameters."""
    out = []
    for part in _parts(text, types):
        if part[0] == "list" and len(part[1]) == 1:
            part = part[1][0]  # the parameters are bound, so the list is its item
        if part[0] not in ("text", "name") or (
            part[0] == "name" and part[1] not in PARAMETERS
        ):
            raise ValueError(f"grammar: cannot read the template {text!r}")
        out.append(part[1] if part[0] == "text" else f"{{{part[1]}}}")
    return "".join(out)
