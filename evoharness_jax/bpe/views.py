"""Views: arrays and words -> the text that the policy reads. Host code, no JAX.

Every view is short by design: its tokens are what a call costs.
"""

import numpy as np

from evoharness_jax.bpe.lexicon import BankText, Lexicon
from evoharness_jax.types import (
    AGENT,
    AT,
    BLOCKED,
    COMMIT,
    DONE,
    DROPPED,
    HELD,
    IN,
    META_VERBS,
    NONE,
    NOTE,
    NULL,
    ON,
    OPEN,
    PLACE,
    QUERY_UNEXPLORED,
    RECALL,
    TRACK,
)

RELATIONS = {IN: "in", ON: "on", AT: "at"}
MARKS = {OPEN: "[ ]", DONE: "[x]", BLOCKED: "[!]", DROPPED: "[-]"}
# One line for each rule that a turn can break, by tag (workspace.TAGS).
REFUSALS = {
    1: "refused: not a command here",
    2: "refused: write exactly one <action>...</action>",
    3: "refused: this tool is switched off",
    4: "refused: no tool calls are left, act on the environment",
    5: "refused: this tool needs words in [ ]",
}


def node(lexicon: Lexicon, belief, index: int) -> str:
    """Word what is believed of one name: where it is, its state, when last seen."""
    facts = []
    place, relation = int(belief.place[index]), int(belief.relation[index])
    if relation == HELD:
        facts.append("in hand")
    elif place != NONE:
        facts.append(f"{RELATIONS[relation]} {lexicon.names[place]}")
    for column, (true, false) in enumerate(lexicon.attributes):
        value = int(belief.attr[index, column])
        # A false attribute is worth a word only where it has one ("closed").
        word = true if value == 1 else false if value == 0 else ""
        if word:
            facts.append(word)
    if belief.role[index] == PLACE:
        if belief.explored[index]:
            there = np.flatnonzero((belief.place == index) & belief.known)
            inside = sum(name != AGENT for name in there)  # it looks in, from outside
            facts.append(f"holds {inside}" if inside else "empty")
        else:
            facts.append("unexplored")
    return f"{lexicon.names[index]}: {', '.join(facts) or 'seen, place unknown'}"


def plan(lexicon: Lexicon, progress) -> str:
    """Word the plan on one line; "" where there is none."""
    return "; ".join(_subgoals(lexicon, progress))


def _subgoals(lexicon: Lexicon, progress) -> list[str]:
    marks = []
    for row in range(int(progress.size)):
        words = lexicon.texts[int(progress.text[row])]
        claimed = progress.status[row] == DONE and progress.evidence[row] == NONE
        mark = "[?]" if claimed else MARKS[int(progress.status[row])]
        marks.append(f"{mark} {words}")
    return marks


def hints(bank: BankText, slots) -> str:
    """Word recalled entries, best first; "" where there are none."""
    return "; ".join(bank.texts[int(s)] for s in slots if s != NONE)


def reply(lexicon: Lexicon, bank: BankText, episode) -> str:
    """Word the answer to the last turn; "" after an accepted environment action."""
    last = episode.reply
    verb, tag = int(last.verb), int(last.tag)
    if verb == NULL:
        return ""
    if tag:
        return REFUSALS[tag]
    if verb == TRACK:
        return _tracked(lexicon, episode)
    if verb == RECALL:
        return f"recalled: {hints(bank, last.slots) or 'nothing fits'}"
    if verb == NOTE:
        return f"noted: {int(episode.workspace.evidence.num_notes)} kept"
    return "plan updated" if verb == COMMIT else ""


def _tracked(lexicon: Lexicon, episode) -> str:
    last, belief = episode.reply, episode.workspace.belief
    nodes = [int(n) for n in last.nodes if n != NONE]
    if int(last.query) == QUERY_UNEXPLORED:
        found = ", ".join(lexicon.names[n] for n in nodes)
    else:
        found = "; ".join(node(lexicon, belief, n) for n in nodes)
    left = f" (+{int(last.left)} more)" if last.left else ""
    what = "unexplored: " if int(last.query) == QUERY_UNEXPLORED else "tracked: "
    return what + (found or "nothing known") + left


def history(lexicon: Lexicon, episode, last: int) -> str:
    """Word the last actions with their outcomes, oldest first."""
    turn = int(episode.turn)
    words = []
    for t in range(max(0, turn - last), turn):
        index = int(episode.actions[t])
        action = lexicon.texts[index] if index != NONE else "(none)"
        words.append(action if not episode.tags[t] else f"{action} (refused)")
    return "; ".join(words)


def standing(lexicon: Lexicon, bank: BankText, episode, always_on=False) -> list[str]:
    """Return the lines of workspace that stand in a prompt without being asked for.

    Inline: the plan, the hints of the last recall, the reply to the last turn.
    Always on: the plan, the hints, the overview of Belief.
    """
    workspace = episode.workspace
    lines = []
    if words := plan(lexicon, workspace.progress):
        lines.append(f"plan: {words}")
    recalled_now = episode.reply.slots[0] != NONE  # then the reply says them
    if (words := hints(bank, workspace.hints)) and not recalled_now:
        lines.append(f"hints: {words}")
    if always_on and (words := known(lexicon, workspace.belief)):
        lines.append(f"known: {words}")
    if words := reply(lexicon, bank, episode):
        lines.append(words)
    return lines


def known(lexicon: Lexicon, belief, most: int = 12) -> str:
    """Word the most recently seen things that have a place, then what is unexplored."""
    placed = np.flatnonzero(belief.known & (belief.place >= 0))
    recent = sorted(placed, key=lambda i: (-int(belief.last_seen[i]), int(i)))[:most]
    things = [node(lexicon, belief, int(i)) for i in recent]
    hidden = belief.known & (belief.role == PLACE) & ~belief.explored
    names = [lexicon.names[i] for i in np.flatnonzero(hidden)]
    more = f" (+{len(names) - most} more)" if len(names) > most else ""
    if names:
        things.append(f"unexplored: {', '.join(names[:most])}{more}")
    return "; ".join(things)


def show(lexicon: Lexicon, workspace) -> str:
    """Return the whole workspace as readable lines, for people and notebooks."""
    belief, progress = workspace.belief, workspace.progress
    here = int(belief.place[AGENT])
    lines = [f"belief  (clock {int(belief.clock)})"]
    lines.append(
        f"  you: {'at ' + lexicon.names[here] if here >= 0 else 'place unknown'}"
    )
    for index in np.flatnonzero(np.asarray(belief.known)):
        if index != AGENT:
            seen = int(belief.last_seen[index])
            words = node(lexicon, belief, int(index))
            lines.append(f"  {words}, seen at {seen}")
    lines.append(f"progress  ({int(progress.size)} subgoals)")
    lines += [f"  {part}" for part in _subgoals(lexicon, progress)]
    kept = int(workspace.evidence.num_notes)
    lines.append(f"experience  ({kept} notes)")
    lines += [f"  {lexicon.texts[int(i)]}" for i in workspace.evidence.notes[:kept]]
    counts = (
        f"{verb} {int(workspace.executed[i])}/{int(workspace.attempted[i])}"
        for i, verb in enumerate(META_VERBS)
    )
    lines.append(f"calls  {', '.join(counts)}  dropped {int(workspace.dropped)}")
    return "\n".join(lines)
