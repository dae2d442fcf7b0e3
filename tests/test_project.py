"""What surrounds the package: its version, licence, wheel and scripts."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import evoharness_jax

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = [*sorted((ROOT / "launch").glob("**/*.sh")), ROOT / ".ci" / "run"]
# Of the licence's words, with every run of blanks made one.
APACHE_2 = "0ffddef9e48f8a09aed5caf2d44f7ba1c1be2d9b8e0a6f693b1635b2d5566645"


def test_version_is_the_installed_one():
    assert evoharness_jax.__version__ == metadata.version("evoharness_jax")


def test_import_starts_nothing():
    code = (
        "import sys, threading, evoharness_jax;"
        "print('jax' in sys.modules, threading.active_count())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False 1\n", "")


def test_licence_is_apache_2():
    words = " ".join((ROOT / "LICENSE").read_text(encoding="utf-8").split())
    assert words.startswith("Apache License Version 2.0, January 2004")
    assert hashlib.sha256(words.encode()).hexdigest() == APACHE_2


def test_wheel_holds_every_file_of_the_package(tmp_path):
    source = tmp_path / "source"
    litter = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "evoharness_jax", source / "evoharness_jax", ignore=litter)
    for name in ("setup.py", "pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import setuptools.build_meta as b; b.build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("evoharness_jax-*.whl")
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    files = (path for path in (source / "evoharness_jax").rglob("*") if path.is_file())
    assert packed == {path.relative_to(source).as_posix() for path in files}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses_and_is_executable(script):
    subprocess.run(["bash", "-n", script], check=True)
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text(encoding="utf-8")


@pytest.mark.parametrize("tool", ["g++", "make", "cmake"])
def test_missing_compiler_is_named_with_the_line_that_installs_it(tool, tmp_path):
    """PATH holds the other tools alone, so the script cannot get any further."""
    for name in {"g++", "make", "cmake"} - {tool}:
        (tmp_path / name).symlink_to(shutil.which("true"))
    done = subprocess.run(
        [shutil.which("bash"), ROOT / "launch" / "test.sh"],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"missing: {tool}\n" in done.stderr
    assert done.stderr.endswith(f"apt-get install -y {tool}\n")


@pytest.mark.parametrize(
    "reason, ci, passes",
    [
        ("needs a TPU", "true", True),
        ("the moon is full", "true", False),
        ("the moon is full", "", True),
    ],
)
def test_ci_accepts_only_the_excused_skips(reason, ci, passes, tmp_path):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(
        f"import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip({reason!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if passes else 1), done.stdout
    assert ("CI does not accept" in done.stdout) is not passes
