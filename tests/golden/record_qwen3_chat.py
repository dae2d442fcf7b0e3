"""Record what the chat template of a published Qwen3 renders, as text and as ids.

    python tests/golden/record_qwen3_chat.py FOLDER > tests/golden/qwen3_chat.json

FOLDER holds the tokenizer files of a published Qwen3 (tokenizer.json, and
tokenizer_config.json with its chat template). transformers renders and encodes.
"""

import json
import sys

from transformers import AutoTokenizer

SYSTEM = "You are an agent in a home. Answer with <action>...</action>."
OPENING = (
    "goal: put a clean mug in coffeemachine.\nstart: You are in a room. You see a desk"
)
CHATS = [
    [(SYSTEM, OPENING)],
    [("", "Où est le café ? 北京 😀\n\n  two  spaces, 12345 ")],
    [
        (SYSTEM, f"{OPENING}.\ncan: go to desk 1, inventory"),
        ("<action>go to desk 1</action>", "now: On the desk 1, you see a mug 2."),
        ("<action>note [mugs: desk]</action>", "noted\n"),
    ],
]


def messages(chat: list[tuple[str, str]]) -> list[dict[str, str]]:
    """Spread (system or answer, what the user says) pairs over turns."""
    turns = []
    for i, (before, said) in enumerate(chat):
        role = "assistant" if i else "system"
        turns += [{"role": role, "content": before}] if before else []
        turns.append({"role": "user", "content": said})
    return turns


def main() -> None:
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], local_files_only=True)
    recorded = []
    for chat in map(messages, CHATS):
        for thinking in (True, False):
            text = tokenizer.apply_chat_template(
                chat,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
            ids = tokenizer.encode(text, add_special_tokens=False)
            one = {"messages": chat, "thinking": thinking, "text": text, "ids": ids}
            recorded.append(json.dumps(one, ensure_ascii=False))
    print("[\n" + ",\n".join(recorded) + "\n]")


if __name__ == "__main__":
    main()
