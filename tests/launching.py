"""What the tests of launch/ share: its script, and jobs read as they will be."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from absl import flags
from ml_collections import ConfigDict, config_flags

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "launch" / "tpu_vm.sh"
README = ROOT / "launch" / "README.md"
DISTRIBUTED = "--config.distributed.init=auto"


def call(*words, stdin="", **environment):
    """Run launch/tpu_vm.sh; return its exit status, output and complaint."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TPU_")}
    done = subprocess.run(
        ["bash", str(SCRIPT), *map(str, words)],
        capture_output=True,
        text=True,
        input=stdin,
        env=clean | environment,
    )
    return done.returncode, done.stdout, done.stderr


def parse(words: list[str]) -> tuple[ConfigDict, str]:
    """Read a job's flags as its entry point will; return its config and workdir."""
    if str(ROOT) not in sys.path:  # config files import each other
        sys.path.insert(0, str(ROOT))
    words = [word.replace("=configs/", f"={ROOT}/configs/") for word in words]
    config, workdir = _parse([word for word in words if word != DISTRIBUTED])
    if "distributed" in config:
        config, workdir = _parse(words)
    return config, workdir


def _parse(words):
    argv, values = ["job", *words], flags.FlagValues()
    found = config_flags.DEFINE_config_file(
        "config", lock_config=True, flag_values=values, sys_argv=argv
    )
    workdir = flags.DEFINE_string("workdir", None, "", flag_values=values)
    rest = values(argv)
    assert rest == ["job"], rest
    return found.value, workdir.value


def readme_commands() -> tuple[list[list[str]], dict[str, str]]:
    """Return the lines of launch/README.md that call the script, and its exports."""
    text = README.read_text(encoding="utf-8").replace("\\\n", "")
    lines = re.findall(r"^ {4}((?:launch/|export ).*)$", text, re.MULTILINE)
    commands, exports = [], {}
    for line in lines:
        for part in line.split("&&"):
            words = shlex.split(part, comments=True)
            if words[:1] == ["launch/tpu_vm.sh"]:
                redirected = [word for word in words if word.startswith(">")]
                commands.append([w for w in words[1:] if w not in redirected])
            elif words[:1] == ["export"]:
                exports |= dict(word.split("=", 1) for word in words[1:])
    return commands, exports
