"""The JobSet manifests: against the schemas, against our configs, and by arithmetic."""

import copy
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

import launching
from launching import ROOT

GKE = ROOT / "launch" / "gke"
MANIFESTS = sorted(GKE.glob("*.yaml"))
KUBERNETES = "1.37"
HOST_CHIPS = {"tpu-v5-lite-podslice": 4}  # ct5lp-hightpu-4t, in slices of several hosts
# What the API takes, which the published models leave open.
ACTIONS = {
    "FailJobSet",
    "RestartJobSet",
    "RestartJobSetAndIgnoreMaxRestarts",
    "RestartJob",
    "RestartJobAndIgnoreMaxRestarts",
}


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def check(manifest: dict) -> None:
    """Raise where a manifest is no JobSet, or its job no Job; extra names included."""
    read = JobsetV1alpha2JobSet.from_dict(copy.deepcopy(manifest)).to_dict()
    lost = list(_missing(manifest, read, "jobset"))
    assert not lost, lost
    for rule in manifest["spec"]["failurePolicy"].get("rules", []):
        assert rule["action"] in ACTIONS
    for replicated in manifest["spec"]["replicatedJobs"]:
        head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "job"}}
        job = head | replicated["template"]
        kubernetes_validate.validate(job, KUBERNETES, strict=True)


def _missing(whole, read, where):
    """Yield what the models dropped because the API does not know it."""
    if isinstance(whole, dict):
        for key, value in whole.items():
            if key in read:
                yield from _missing(value, read[key], f"{where}.{key}")
            else:
                yield f"{where}.{key}"
    elif isinstance(whole, list):
        for number, value in enumerate(whole):
            yield from _missing(value, read[number], f"{where}[{number}]")
    elif whole != read:
        yield f"{where}: {whole!r} read as {read!r}"


@pytest.fixture(params=MANIFESTS, ids=lambda path: path.stem)
def manifest(request):
    return load(request.param)


def parts(manifest):
    """Return a manifest's replicated job, its Job, its pod, and the container."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    return replicated, job, pod, container


def test_there_are_manifests_for_both_stages_and_for_two_slices():
    found = {
        (parts(load(path))[3]["args"][0], parts(load(path))[0]["replicas"])
        for path in MANIFESTS
    }
    assert found == {("train_sft", 1), ("train_sft", 2), ("train_rl", 1)}


def test_a_manifest_is_what_the_apis_take(manifest):
    assert manifest["apiVersion"] == "jobset.x-k8s.io/v1alpha2"
    check(manifest)


@pytest.mark.parametrize(
    "path, name, value",
    [
        ("spec", "maxRestarts", 3),
        ("spec failurePolicy", "maxRestart", 3),
        ("spec failurePolicy", "maxRestarts", "often"),
        ("spec failurePolicy rules 0", "action", "Restart"),
        ("spec replicatedJobs 0", "count", 2),
        ("spec replicatedJobs 0 template spec", "paralelism", 4),
        ("spec replicatedJobs 0 template spec", "completions", "all"),
        ("spec replicatedJobs 0 template spec template spec", "gracePeriod", 60),
        ("spec replicatedJobs 0 template spec template spec", "containers", None),
    ],
)
def test_the_check_finds_mistakes(path, name, value):
    manifest = load(MANIFESTS[0])
    place = manifest
    for step in path.split():
        place = place[int(step) if step.isdigit() else step]
    place[name] = value
    with pytest.raises(
        (AssertionError, ValueError, kubernetes_validate.ValidationError)
    ):
        check(manifest)


def test_pods_are_as_many_as_the_slice_has_hosts(manifest):
    _, job, pod, container = parts(manifest)
    select = pod["nodeSelector"]
    shape = select["cloud.google.com/gke-tpu-topology"].split("x")
    a_host = HOST_CHIPS[select["cloud.google.com/gke-tpu-accelerator"]]
    limits = container["resources"]
    assert limits["limits"] == limits["requests"] == {"google.com/tpu": a_host}
    assert job["parallelism"] * a_host == math.prod(map(int, shape))
    assert job["completions"] == job["parallelism"]
    assert job["completionMode"] == "Indexed"


def test_what_is_lost_is_started_again(manifest):
    _, job, pod, container = parts(manifest)
    policy = manifest["spec"]["failurePolicy"]
    assert policy["maxRestarts"] >= 1
    assert job["backoffLimit"] == 0
    # A job's failure policy needs pods that do not restart by themselves.
    assert pod["restartPolicy"] == "Never"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob"
    assert [c["type"] for c in rule["onPodConditions"]] == ["DisruptionTarget"]
    assert policy["rules"][0]["onJobFailureReasons"] == ["PodFailurePolicy"]
    assert pod["terminationGracePeriodSeconds"] >= 300
    # The image's entry point passes SIGTERM on; a command would replace it.
    assert "command" not in container


def test_a_slice_is_a_node_pool(manifest):
    key = "alpha.jobset.sigs.k8s.io/exclusive-topology"
    assert manifest["metadata"]["annotations"] == {key: "cloud.google.com/gke-nodepool"}


def test_the_bucket_is_mounted_where_the_job_looks(manifest):
    _, job, pod, container = parts(manifest)
    (volume,), (mount,) = pod["volumes"], container["volumeMounts"]
    assert mount["name"] == volume["name"]
    assert volume["csi"]["driver"] == "gcsfuse.csi.storage.gke.io"
    assert job["template"]["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
    assert pod["serviceAccountName"] == "evoharness"
    assert "hostNetwork" not in pod  # which the driver takes only with more settings
    paths = re.findall(r"=(/[^ ,]+)", " ".join(container["args"]))
    assert len(paths) >= 3
    assert all(path.startswith(mount["mountPath"] + "/") for path in paths)


def test_a_job_is_one_that_its_entry_point_takes(manifest):
    replicated, job, _, container = parts(manifest)
    entry, *words = container["args"]
    assert (ROOT / "evoharness_jax" / f"{entry}.py").exists()
    assert launching.DISTRIBUTED in words
    config, workdir = launching.parse(words)
    assert workdir
    assert config.model.name == "qwen3-8b"
    chips = replicated["replicas"] * job["parallelism"] * 4
    fsdp = chips // config.mesh.tp if config.mesh.fsdp == -1 else config.mesh.fsdp
    assert fsdp * config.mesh.tp == chips
    assert config.data.rows % fsdp == 0


def test_what_is_to_be_filled_in_stands_once(manifest):
    path = next(p for p in MANIFESTS if load(p) == manifest)
    lines = path.read_text(encoding="utf-8").split("apiVersion", 1)[1]
    assert lines.count("IMAGE") == lines.count("BUCKET") == 1


# The image.


def test_the_image_has_what_it_copies_and_starts_the_entry_point():
    lines = (GKE / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    copied = []
    for words in re.findall(r"^COPY (?!--from)(.+)$", lines, re.MULTILINE):
        *sources, _ = words.split()
        copied += sources
        for source in sources:
            assert (ROOT / source).exists(), source
    assert {"evoharness_jax", "configs", "launch", "setup.py"} <= set(copied)
    assert 'ENTRYPOINT ["bash", "launch/gke/job.sh"]' in lines
    (minor,) = set(re.findall(r"^FROM python:3\.(\d+)-slim", lines, re.MULTILINE))
    assert int(minor) >= 11


JOB = """
import signal, sys, time
def end(*_):
    print("saved", flush=True)
    sys.exit({status})
signal.signal(signal.SIGTERM, end)
print("begun", flush=True)
time.sleep({seconds})
"""


def start(folder, status=0, seconds=60):
    """Start job.sh in a folder where an entry point is a few lines of ours."""
    package = folder / "evoharness_jax"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train_rl.py").write_text(JOB.format(status=status, seconds=seconds))
    running = subprocess.Popen(
        ["bash", str(GKE / "job.sh"), "train_rl", "--config=c.py"],
        cwd=folder,
        env=os.environ
        | {
            "PYTHONPATH": "",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline() == "begun\n"
    return running


def test_a_job_that_ends_by_itself_is_done(tmp_path):
    assert start(tmp_path, seconds=0).wait(30) == 0


@pytest.mark.parametrize("status, wanted", [(0, 143), (3, 3)])
def test_a_job_that_was_told_to_end_is_not_done(status, wanted, tmp_path):
    running = start(tmp_path, status)
    running.send_signal(signal.SIGTERM)
    assert running.wait(30) == wanted
    assert running.stdout.read() == "saved\n"


def test_a_job_that_fails_says_so(tmp_path):
    running = start(tmp_path)
    # The job alone, as where its host runs out of memory.
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    begun = time.monotonic()
    assert running.wait(30) == 137
    assert time.monotonic() - begun < 20
