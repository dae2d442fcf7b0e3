"""Which module may import which, and the few rules that a parser can check.

entry points -> train, rollout, experience -> envs -> bpe -> types
                train, rollout -> models -> mesh, types
"""

import ast
from pathlib import Path

import pytest

import evoharness_jax

PACKAGE = Path(evoharness_jax.__file__).parent
TESTS = Path(__file__).parent
CONFIGS = TESTS.parent / "configs"

BELOW_ENTRY = {"envs", "bpe", "models", "mesh", "types"}
# A part may import itself and these. A part that is not listed may import all: an
# entry point, `bench`, or the package's own __init__.
MAY_IMPORT = {
    "types": set(),
    "mesh": {"types"},
    "bpe": {"types"},
    "models": {"mesh", "types"},
    "envs": {"bpe", "types"},
    "train": BELOW_ENTRY,
    "rollout": BELOW_ENTRY,
    "experience": BELOW_ENTRY,
    "checkpoint": BELOW_ENTRY | {"train", "rollout", "experience"},
    "metrics": BELOW_ENTRY | {"train", "rollout", "experience"},
}
# Prints for a person or a script; everything else logs.
NO_PRINT = set(MAY_IMPORT)
# The parts that never see a config: plain arguments or a small frozen dataclass.
NO_CONFIG = set(MAY_IMPORT) - {"checkpoint", "metrics"}
# Host modules that turn arrays into words and back, and need no device for it.
WITHOUT_JAX = ("bpe/lexicon.py", "bpe/views.py")
# The simulator's process: its translator raises anything, and one game ends of it.
MAY_CATCH_ALL = {"envs/alfworld/worker.py"}
MAX_LINES = 500


def part_of(module: str) -> str:
    """Name the part a dotted module belongs to: its first name below the package."""
    return (module.split(".") + [""])[1]


def imports(tree: ast.AST, module: str, is_package: bool) -> list[tuple[int, str]]:
    """List (line, dotted name) for every import in a tree, at whatever depth.

    `from a import b` counts as `a.b`: b may be a module, and its part is right
    either way.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = node.level - is_package
                parents = module.split(".")[: -up or None]
                base = ".".join([*parents, *filter(None, [base])])
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def catches_everything(node: ast.AST) -> bool:
    """Say whether a node is a bare except, or one of Exception or BaseException."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(
        kind is None
        or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def is_print(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    )


def violations(package: Path) -> list[str]:
    """List every broken rule in a package as `file:line: what`."""
    broken = []
    parts = {path.stem for path in package.iterdir()}
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        text = path.read_text(encoding="utf-8")
        names = [package.name, *Path(file).with_suffix("").parts]
        is_package = names[-1] == "__init__"
        module = ".".join(names[: -1 if is_package else None])
        part = part_of(module)
        tree = ast.parse(text, filename=str(path))

        for line, name in imports(tree, module, is_package):
            top = name.split(".")[0]
            wanted = part_of(name)
            if top == package.name:
                if wanted in parts - MAY_IMPORT.get(part, parts) - {part}:
                    broken.append(f"{file}:{line}: {part} imports {wanted}")
            elif top == "ml_collections" and part in NO_CONFIG:
                broken.append(f"{file}:{line}: {part} imports ml_collections")
            elif top in ("jax", "flax") and file in WITHOUT_JAX:
                broken.append(f"{file}:{line}: words need no {top}")
        for node in ast.walk(tree):
            if catches_everything(node) and file not in MAY_CATCH_ALL:
                broken.append(f"{file}:{node.lineno}: catches every exception")
            if is_print(node) and part in NO_PRINT:
                broken.append(f"{file}:{node.lineno}: prints")
    return broken


def test_package_keeps_its_layers():
    assert violations(PACKAGE) == []


@pytest.mark.parametrize("folder", [PACKAGE, CONFIGS, TESTS], ids=lambda f: f.name)
def test_no_file_holds_two_ideas(folder):
    lines = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8").count("\n")
        for path in folder.rglob("*.py")
    }
    assert {file: n for file, n in lines.items() if n > MAX_LINES} == {}


BROKEN = {
    "bpe/belief.py": ("from pkg.models import qwen3", "bpe imports models"),
    "bpe/lexicon.py": ("def f():\n    import jax.numpy", "words need no jax"),
    "envs/domain.py": ("from ..rollout.loop import play", "envs imports rollout"),
    "envs/alfworld/game.py": ("from ... import train", "envs imports train"),
    "models/__init__.py": ("from ..bpe import x", "models imports bpe"),
    "train/sft.py": ("import pkg.rollout.loop", "train imports rollout"),
    "rollout/loop.py": ("import pkg.metrics", "rollout imports metrics"),
    "experience/bank.py": ("import ml_collections.config_dict", "ml_collections"),
    "mesh.py": ("print('here')", "prints"),
    "metrics.py": ("from .evaluate import run", "metrics imports evaluate"),
    "types.py": ("try:\n    f()\nexcept (KeyError, Exception):\n    g()", "catches"),
    "evaluate.py": ("try:\n    f()\nexcept:\n    g()", "catches every exception"),
}
FINE = {
    "__init__.py": "",
    "bpe/workspace.py": "import jax\nfrom pkg.bpe import belief\nimport pkg.types",
    "bpe/views.py": "import numpy\nfrom . import lexicon\nfrom ..types import NONE",
    "models/qwen3.py": "import pkg\nfrom pkg import __version__\nfrom pkg import mesh",
    "rollout/policies.py": "from pkg.envs import domain\nfrom pkg.models import tokens",
    "envs/alfworld/worker.py": "try:\n    f()\nexcept Exception:\n    g()",
    "train_rl.py": "import ml_collections\nfrom pkg import metrics, train\nprint(1)",
    "bench/env.py": "from pkg.train import sft\nprint(1)",
    "train/losses.py": "try:\n    f()\nexcept (KeyError, OSError):\n    g()",
}


def test_each_rule_finds_its_breach_and_nothing_else(tmp_path):
    package = tmp_path / "pkg"
    sources = {file: text for file, (text, _) in BROKEN.items()} | FINE
    for file, text in sources.items():
        path = package / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    found = violations(package)
    assert sorted(line.split(":")[0] for line in found) == sorted(BROKEN)
    for file, (_, message) in BROKEN.items():
        assert any(line.startswith(file) and message in line for line in found), file
