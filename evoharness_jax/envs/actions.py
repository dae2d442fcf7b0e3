"""The response grammar: `<think>...</think>` (optional), then `<action>...</action>`.

    go to fridge 1            an environment action
    track [apple]             a meta-action: verb, then its argument in brackets
    track apple               the same; without brackets the rest of the line counts

What counts as malformed: no action block, an empty one, or more than one. Of several
blocks the first is read; the environment still gets it, a meta-action is refused.
"""

import re
from typing import NamedTuple

from evoharness_jax.types import ENV, META_VERBS

BLOCK = re.compile(r"<action>(.*?)</action>", re.IGNORECASE | re.DOTALL)
THOUGHT = re.compile(r"<think>(.*?)</think>", re.IGNORECASE | re.DOTALL)
META = re.compile(
    rf"({'|'.join(META_VERBS)})(?=[\s\[]|$)(.*)", re.IGNORECASE | re.DOTALL
)


class Action(NamedTuple):
    text: str  # the action as written, stripped of quotes and outer spaces
    verb: int  # ENV or a meta-verb
    argument: str  # of a meta-action, "" for none
    thought: str
    well_formed: bool


def parse(response: str, tools: bool = True) -> Action:
    """Read a response.

    Args:
        tools: False where the four verbs do not exist (modes `env_only` and
            `always_on`); they are then environment actions, which it refuses.
    """
    blocks = BLOCK.findall(response)
    if not blocks:
        return Action("", ENV, "", response.strip(), False)
    text = blocks[0].strip().strip("'\"`").strip()
    before = response[: BLOCK.search(response).start()]
    inner = THOUGHT.search(before)
    thought = (inner.group(1) if inner else before).strip()
    well_formed = bool(text) and len(blocks) == 1
    meta = META.fullmatch(text) if tools else None
    if not meta:
        return Action(text, ENV, "", thought, well_formed)
    verb = 1 + META_VERBS.index(meta.group(1).lower())
    return Action(text, verb, _argument(meta.group(2)), thought, well_formed)


def _argument(rest: str) -> str:
    rest = rest.strip()
    if not rest.startswith("["):
        return rest
    end = rest.rfind("]")
    return rest[1 : end if end > 0 else len(rest)].strip()


def write(action: str, thought: str = "") -> str:
    """Return the response that `parse` reads as this thought and action."""
    think = f"<think>{thought}</think>" if thought else ""
    return f"{think}<action>{action}</action>"
