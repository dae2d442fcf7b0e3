"""launch/tpu_vm.sh: the commands that it would run, and its part on the workers.

A stand-in for gcloud runs what would go over ssh on this machine, in one home folder a
worker; there, stand-ins for Python and uv say what they were called with.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import launching
from launching import ROOT, call

POD = {"TPU_NAME": "my-pod", "TPU_ZONE": "us-west4-a", "TMPDIR": "/tmp"}
RUN = ["train_rl", "--config=configs/alfworld_rl.py:model=qwen3-8b"]
AT = "gcloud compute tpus tpu-vm ssh my-pod --zone=us-west4-a"
WORKER = "bash evoharness_jax/code/launch/worker.sh"
ARCHIVE = f"/tmp/evoharness_jax-{os.getuid()}-my-pod.tar.gz"
UNPACK = (
    "rm -rf evoharness_jax/code.new && mkdir -p evoharness_jax/code.new && "
    "tar -xzf evoharness_jax.tar.gz -C evoharness_jax/code.new && "
    "bash evoharness_jax/code.new/launch/worker.sh setup"
)


@pytest.mark.parametrize(
    "words, lines",
    [
        (
            "create --type=v5litepod-16",
            "gcloud compute tpus queued-resources create my-pod --node-id=my-pod "
            "--zone=us-west4-a --accelerator-type=v5litepod-16 "
            "--runtime-version=v2-alpha-tpuv5-lite",
        ),
        (
            "create --type v6e-16 --spot --project my-project",
            "gcloud compute tpus queued-resources create my-pod --node-id=my-pod "
            "--zone=us-west4-a --project=my-project --accelerator-type=v6e-16 --spot "
            "--runtime-version=v2-alpha-tpuv6e",
        ),
        (
            "create --type=v5p-16 --version=my-image --direct",
            "gcloud compute tpus tpu-vm create my-pod --zone=us-west4-a "
            "--accelerator-type=v5p-16 --version=my-image",
        ),
        (
            "setup",
            f"git -C {ROOT} archive --format=tar.gz --output={ARCHIVE} HEAD\n"
            f"gcloud compute tpus tpu-vm scp {ARCHIVE} my-pod:evoharness_jax.tar.gz "
            "--zone=us-west4-a --worker=all\n"
            f"{AT} --worker=all --command='{UNPACK}'\n"
            f"rm {ARCHIVE}",
        ),
        (
            "setup --git=https://example.org/our.git --ref=main --bucket=my-bucket",
            f"{AT} --worker=all --command='rm -rf evoharness_jax/code.new && "
            "git clone --quiet --depth=1 --branch=main -- https://example.org/our.git "
            "evoharness_jax/code.new && "
            "bash evoharness_jax/code.new/launch/worker.sh setup my-bucket'",
        ),
        (
            "run --user=trainer -- train_sft --config=c.py --workdir=/mnt/bucket/sft",
            f"{AT} --worker=all --command='{WORKER} state'\n"
            f"{AT} --worker=all --command='{WORKER} start -- train_sft --config=c.py "
            "--workdir=/mnt/bucket/sft --config.distributed.init=auto'",
        ),
        (
            "run -- evaluate --config=c.py --workdir=/d --config.distributed.init=none",
            f"{AT} --worker=all --command='{WORKER} state'\n"
            f"{AT} --worker=all --command='{WORKER} start -- evaluate --config=c.py "
            "--workdir=/d --config.distributed.init=none'",
        ),
        ("logs", f"{AT} --worker=0 --command='{WORKER} log 100 --follow'"),
        (
            "logs --worker=all --lines=5 --no-follow",
            f"{AT} --worker=all --command='{WORKER} log 5 --named'",
        ),
        ("stop", f"{AT} --worker=all --command='{WORKER} stop 600'"),
        ("stop --wait=0", f"{AT} --worker=all --command='{WORKER} stop 0'"),
        (
            "delete",
            "gcloud compute tpus queued-resources delete my-pod --zone=us-west4-a "
            "--force --quiet",
        ),
        (
            "delete --direct",
            "gcloud compute tpus tpu-vm delete my-pod --zone=us-west4-a --quiet",
        ),
    ],
)
def test_dry_run_prints_the_commands(words, lines):
    command, *options = words.split()
    code, out, error = call(command, "--dry-run", *options, **POD)
    assert code == 0, error
    if "--user" in words:
        lines = lines.replace("ssh my-pod", "ssh trainer@my-pod")
    assert out == lines + "\n"


def test_a_flag_wins_over_the_environment():
    _, out, _ = call("stop", "--dry-run", "--name=other", "--zone", "eu-b", **POD)
    assert "tpu-vm ssh other --zone=eu-b " in out


@pytest.mark.parametrize(
    "odd",
    [
        "a b",
        "it's",
        '"quoted"',
        "$HOME `id` $(id)",
        "a;b&c|d>e",
        "back\\slash",
        "two\nlines",
        "tab\there",
        "é*?[x]!",
        "",
    ],
)
def test_odd_arguments_arrive_as_they_are(odd):
    job = [*RUN, f"--workdir=/mnt/{odd}", odd]
    words = ["run", "--dry-run", f"--env=ODD={odd}", "--", *job]
    code, out, error = call(*words, **POD)
    assert code == 0, error
    assert len(out.splitlines()) == 2
    # What our shell makes of the line, and the worker's of the command in it.
    for_gcloud = _shell(out.splitlines()[1])
    for_worker = _shell(for_gcloud[-1].removeprefix("--command="))
    assert for_worker[2:] == [
        *("start", f"ODD={odd}", "--"),
        *(*job, "--config.distributed.init=auto"),
    ]


def _shell(line: str) -> list[str]:
    script = f"printf '%s\\0' {line}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize(
    "words, complaint",
    [
        ([], "name a command: create, setup, run, logs, stop or delete; see --help"),
        (["start"], "unknown command: start; see --help"),
        (["stop", "--name="], "--name needs a value"),
        (["stop", "--name"], "--name needs a value"),
        (["stop", "--name=My_Pod"], "--name: 'My_Pod' is not one, such as my-pod"),
        (["stop", "--name=-x"], "--name: '-x' is not one, such as my-pod"),
        (["stop", "--force"], "stop has no option --force; see --help"),
        (["run", "--spot"], "run has no option --spot; see --help"),
        (["stop", "--dry-run=1"], "--dry-run takes no value: --dry-run=1"),
        (["stop", "now"], "what is now? options begin with --, the job comes after"),
        (["stop", "--wait=long"], "--wait must be a number: long"),
        (["logs", "--worker=first"], "--worker must be a number or all: first"),
        (["logs", "--lines=all"], "--lines must be a number: all"),
        (["stop", "--", "train_rl"], "stop takes no job after --"),
        (["create"], "--type is missing (or TPU_TYPE), such as v5litepod-16"),
        (["create", "--type=v5e:4x4"], "--type: 'v5e:4x4' is not one, such as v5lit"),
        (
            ["create", "--type=v9-16"],
            "--version is missing (or TPU_VERSION): no image is known for v9-16",
        ),
        (["setup", "--ref=main"], "--ref goes with --git=URL"),
        (["setup", "--bucket=gs://b"], "--bucket: the bucket's name alone, not gs://b"),
        (["run"], "name what to run after --: collect, train_sft, train_rl or evaluat"),
        (["run", "--", "report"], "no entry point report; there are collect, train_s"),
        (["run", "--", "train_rl"], "--config=FILE is missing after train_rl"),
        (["run", "--", *RUN], "--workdir=DIR is missing after train_rl"),
        (
            ["run", "--", *RUN, "--workdir=gs://b/rl"],
            "--workdir: gs://b/rl is no path from the root; a bucket that setup",
        ),
        (["run", "--env=A", "--", *RUN], "--env=NAME=VALUE, not A"),
    ],
)
def test_bad_input_is_named(words, complaint):
    code, out, error = call(*words, **POD)
    assert (code, out) == (2, "")
    assert complaint in error


@pytest.mark.parametrize("option", ["name", "zone"])
def test_what_is_missing_is_named(option):
    variable = f"TPU_{option.upper()}"
    code, _, error = call("stop", "--dry-run", **{**POD, variable: ""})
    assert code == 2
    assert error.startswith(f"--{option} is missing (or {variable}), such as ")


def test_help_is_the_header():
    for words in (["--help"], ["run", "--help"]):
        code, out, _ = call(*words)
        assert code == 0
        assert out.startswith("A TPU pod from your own machine")
        assert "launch/tpu_vm.sh delete [--direct] [--yes]" in out


def test_every_command_of_the_readme_is_one():
    commands, exports = launching.readme_commands()
    assert {words[0] for words in commands} == {
        *("create", "setup", "run", "logs", "stop", "delete")
    }
    for command, *rest in commands:
        code, out, error = call(command, "--dry-run", *rest, **exports)
        assert code == 0, (command, rest, error)
        assert out.startswith(("gcloud ", "git ")), out


def test_every_job_of_the_readme_is_one():
    commands, exports = launching.readme_commands()
    chips = int(exports["TPU_TYPE"].removeprefix("v5litepod-"))
    jobs = [words[words.index("--") + 1 :] for words in commands if "--" in words]
    assert {entry for entry, *_ in jobs} == {"train_sft", "train_rl", "evaluate"}
    for entry, *words in jobs:
        config, workdir = launching.parse(words)
        assert workdir.startswith("/mnt/bucket/runs/")
        if entry != "evaluate":
            assert config.data.rows % (chips // config.mesh.tp) == 0


def test_scripts_are_clean():
    beside_python = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    scripts = sorted(map(str, (ROOT / "launch").glob("**/*.sh")))
    done = subprocess.run(
        ["shellcheck", "--external-sources", *scripts],
        cwd=ROOT,
        env=os.environ | {"PATH": beside_python},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


# On the workers.

STUBS = {
    "gcloud": """
        echo "$*" >>"$CLOUD/calls"
        for word in "$@"; do
          case $word in
            --worker=*) worker=${word#*=} ;;
            --command=*) command=${word#*=} ;;
          esac
        done
        workers=$worker
        if [[ $worker == all ]]; then workers="0 1 2"; fi
        for i in $workers; do
          home=$CLOUD/worker-$i
          mkdir -p "$home"
          case $4 in
            scp) cp "$5" "$home/${6#*:}" ;;
            ssh) (cd "$home" && HOME=$home WORKER=$i bash -c "$command") \\
                   >"$home/out" 2>"$home/err" & ;;
          esac
        done
        status=0
        for job in $(jobs -p); do wait "$job" || status=$?; done
        if [[ $4 == ssh ]]; then
          for i in $workers; do
            cat "$CLOUD/worker-$i/out"
            cat "$CLOUD/worker-$i/err" >&2
          done
        fi
        exit $status
    """,
    "hostname": 'echo "host-$WORKER"',
    "sleep": "exec /bin/sleep 0.5",
    "sudo": 'echo "sudo $*" >>"$CLOUD/calls"',
    "gcsfuse": 'echo "gcsfuse $*" >>"$CLOUD/calls"',
    "mountpoint": "exit 1",
}
# Named before uv is fetched, so that nothing is.
UV = """
    echo "uv $*" >>"$CLOUD/calls"
    if [[ $1 == venv ]]; then
      mkdir -p "$4/bin"
      cp "$CLOUD/python" "$4/bin/python"
    fi
"""
PYTHON = """
    if [[ $* == *broken* ]]; then echo "error: broken"; exit 1; fi
    trap 'echo saved; exit 0' TERM
    echo "$PWD $*, ODD is ${ODD:-unset}"
    exec 3<> <(:)
    while :; do read -rt 0.2 -u 3 || true; done  # waits, and starts no process
"""


def _script(path: Path, lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{lines}\n")
    path.chmod(0o755)


@pytest.fixture
def pod(tmp_path):
    """Three workers on this machine; yields a function that calls the script."""
    for name, lines in STUBS.items():
        _script(tmp_path / "bin" / name, lines)
    for tool in ("g++", "make", "cmake"):
        _script(tmp_path / "bin" / tool, "exit 1")
    _script(tmp_path / "python", PYTHON)
    homes = [tmp_path / f"worker-{i}" / "evoharness_jax" for i in range(3)]
    for home in homes:
        _script(home / "uv" / "uv", UV)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    where = POD | {"TMPDIR": str(tmp_path), "CLOUD": str(tmp_path), "PATH": path}

    def ask(*words, **more):
        return call(*words, **(where | more))

    ask.homes, ask.calls = homes, tmp_path / "calls"
    yield ask
    for home in homes:
        pid = home / "job" / "pid"
        if pid.exists() and _alive(int(pid.read_text())):
            os.kill(int(pid.read_text()), signal.SIGKILL)


def _alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "zombie" not in status.read_text()


@pytest.fixture
def ready(pod):
    code, out, error = pod("setup")
    assert code == 0, error
    assert out.splitlines() == ["host-0: ready", "host-1: ready", "host-2: ready"]
    for home in pod.homes:  # HEAD is what was copied; what lies here is what is tested
        shutil.copy(ROOT / "launch" / "worker.sh", home / "code" / "launch")
    return pod


def test_setup_copies_head_and_installs_it(ready):
    head = subprocess.run(
        ["git", "-C", ROOT, "show", "HEAD:setup.py"], capture_output=True, text=True
    )
    for home in ready.homes:
        assert (home / "code" / "setup.py").read_text() == head.stdout
        assert not (home / "code.new").exists()
        assert (home / "venv" / "bin" / "python").exists()
    installed = [line for line in ready.calls.read_text().splitlines() if "pip" in line]
    assert sorted(installed) == [
        f"uv pip install --python {home}/venv/bin/python --editable {home}/code[tpu]"
        for home in ready.homes
    ]
    # The second time there is an environment, and old code leaves nothing behind.
    (ready.homes[0] / "code" / "stale.py").touch()
    assert ready("setup")[0] == 0
    assert not (ready.homes[0] / "code" / "stale.py").exists()
    assert ready.calls.read_text().count("uv venv") == 3


def test_setup_mounts_the_bucket(pod):
    assert pod("setup", "--bucket=my-bucket")[0] == 0
    calls = pod.calls.read_text()
    mount = "gcsfuse --implicit-dirs --rename-dir-limit=200000 my-bucket /mnt/bucket\n"
    assert calls.count(mount) == 3
    assert "sudo mkdir -p /mnt/bucket\n" in calls


def test_a_job_runs_everywhere_until_it_is_stopped(ready):
    job = [*RUN, "--workdir=/mnt/bucket/a b"]
    code, out, error = ready("run", "--env=ODD=it's odd", "--", *job)
    assert code == 0, error
    pids = [int((home / "job" / "pid").read_text()) for home in ready.homes]
    assert all(map(_alive, pids))
    # Each leads a session, so that a terminal's end is none of its business.
    assert [os.getsid(pid) for pid in pids] == pids
    for number, (home, pid) in enumerate(zip(ready.homes, pids)):
        assert f"host-{number}: started {pid}, log {home}/job/" in out

    code, out, _ = ready("logs", "--no-follow", "--worker=1")
    assert code == 0
    assert out == (
        f"{ready.homes[1]}/code -u -m evoharness_jax.train_rl {RUN[1]} "
        "--workdir=/mnt/bucket/a b --config.distributed.init=auto, ODD is it's odd\n"
    )
    _, out, _ = ready("logs", "--no-follow", "--worker=all")
    assert [line.split(":")[0] for line in out.splitlines()] == [
        *("host-0", "host-1", "host-2")
    ]

    code, out, error = ready("run", "--", *job)
    assert code == 1
    assert f"host-2: running {pids[2]}" in out
    assert error.strip() == (
        "a job is running. To stop it: "
        "launch/tpu_vm.sh stop --name=my-pod --zone=us-west4-a"
    )
    code, _, error = ready("setup")
    assert code != 0
    assert "host-0: a job is running, its code stays as it is" in error

    code, out, error = ready("stop")
    assert code == 0, error
    assert out.splitlines() == ["host-0: ended", "host-1: ended", "host-2: ended"]
    assert not any(map(_alive, pids))
    assert ready("logs", "--no-follow")[1].endswith("saved\n")
    assert ready("stop")[1].splitlines() == [f"host-{i}: idle" for i in range(3)]


def test_no_worker_starts_where_one_is_busy(ready):
    job = [*RUN, "--workdir=/mnt/bucket/rl"]
    assert ready("run", "--", *job)[0] == 0
    os.kill(int((ready.homes[0] / "job" / "pid").read_text()), signal.SIGKILL)
    code, out, _ = ready("run", "--", *job)
    assert code == 1
    assert "host-0: idle\nhost-1: running " in out
    assert ready.calls.read_text().count(" start -- ") == 1


def test_a_killed_job_leaves_nothing_in_the_way(ready):
    job = [*RUN, "--workdir=/mnt/bucket/rl"]
    assert ready("run", "--", *job)[0] == 0
    for home in ready.homes:
        os.kill(int((home / "job" / "pid").read_text()), signal.SIGKILL)
    assert ready("run", "--", *job)[0] == 0


def test_a_job_that_cannot_start_says_why(ready):
    code, _, error = ready("run", "--", *RUN, "--workdir=/broken")
    assert code == 1
    assert "error: broken" in error
    assert "host-0: it ended at once: " in error


def test_a_worker_without_an_installation_says_so(pod):
    for home in pod.homes:
        (home / "code" / "launch").mkdir(parents=True)
        worker = (ROOT / "launch" / "worker.sh").read_text()
        _script(home / "code" / "launch" / "worker.sh", worker)
    code, _, error = pod("run", "--", *RUN, "--workdir=/d")
    assert code == 1
    assert "host-0: nothing is installed here: run setup first" in error
    code, _, error = pod("logs", "--no-follow")
    assert code == 1
    assert "host-0: no job has been started here" in error


def test_delete_asks(pod):
    code, _, error = pod("delete", stdin="n\n")
    assert code == 1
    assert "my-pod in us-west4-a, and all on its disks, would be gone." in error
    assert "nothing deleted" in error
    assert pod("delete")[0] == 1  # nobody there to answer
    assert not pod.calls.exists()
    assert pod("delete", stdin="y\n")[0] == 0
    assert pod("delete", "--yes")[0] == 0
    deleted = pod.calls.read_text().splitlines()
    assert len(deleted) == 2
    assert shlex.split(deleted[0])[:4] == [
        *("compute", "tpus", "queued-resources", "delete")
    ]
