"""`constraints.txt` pins the whole environment: nothing missing, nothing left over, and so it is installed."""

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
# What builds the environment rather than being part of it; hatchling's own parts only exist in its build environment.
BUILDERS = {"pip", "hatchling", "editables", "pathspec", "pluggy", "tomlkit", "trove-classifiers", "packaging"}
# torch names these for its CUDA build, each at one version, and no other build has them.
TORCH_ALONE = re.compile(r"nvidia-|cuda-|triton")


def pins():
    """Every line of the file, as name and version."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def closure(requirements):
    """What these requirements bring into this environment, themselves included, as name and installed version."""
    found, waiting = {}, [(Requirement(line), "") for line in requirements]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        for wanted in {"", *requirement.extras} - {given for known, given in seen if known == name}:
            seen.add((name, wanted))
            distribution = importlib.metadata.distribution(name)
            found[name] = Version(distribution.version).public
            waiting += [(Requirement(line), wanted) for line in distribution.requires or ()]
    return {name: version for name, version in found.items() if not TORCH_ALONE.match(name)}


@pytest.mark.parametrize("extra", ["", "lab", "site", "test"])
def test_every_installed_package_has_the_pinned_version(extra):
    installed = closure([*PROJECT["project"]["dependencies"], *EXTRAS.get(extra, [])])
    assert installed.items() <= pins().items()


def test_nothing_is_pinned_that_nobody_needs(require):
    found = importlib.util.find_spec("deepspeed")
    require(found, "DeepSpeed", 'DS_BUILD_OPS=0 pip install -c constraints.txt --no-build-isolation "deepspeed"')
    needed = closure([*PROJECT["project"]["dependencies"], *(line for lines in EXTRAS.values() for line in lines)])
    assert set(pins()) - set(needed) - BUILDERS - {"setuptools"} == set()


def test_deepspeed_has_the_pinned_version(require):
    found = importlib.util.find_spec("deepspeed")
    require(found, "DeepSpeed", 'DS_BUILD_OPS=0 pip install -c constraints.txt --no-build-isolation "deepspeed"')
    assert closure(EXTRAS["deepspeed"]).items() <= pins().items()


def test_the_pins_keep_the_lower_bounds_of_the_project():
    lines = [*PROJECT["project"]["dependencies"], *(line for lines in EXTRAS.values() for line in lines)]
    for requirement in map(Requirement, [*lines, *PROJECT["build-system"]["requires"]]):
        assert pins()[canonicalize_name(requirement.name)] in requirement.specifier
        assert {part.operator for part in requirement.specifier} == {">="}, (
            "a lower bound, and no guess about the future"
        )


def test_each_package_is_pinned_once_and_in_order():
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    names = [line.split("==")[0] for line in lines]
    assert names == sorted(set(names))
    # furo stands on sphinx-basic-ng, of which there are betas only
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9.]+(b\d+)?", line) for line in lines)
