"""Builds and runs the C++ unit tests under the sanitizers, and checks that CMake, which an IDE
reads, builds what setup.py builds."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyengine import _build

ROOT = Path(__file__).resolve().parents[2]
UNIT_TESTS = sorted((ROOT / "tests/cpp").glob("test_*.cpp"))
PLAIN_COMPILER = [
    *shlex.split(os.environ.get("CXX", "c++")),
    *("-std=c++20", "-g", "-Wall", "-Wextra", "-Werror"),
]
COMPILER = [*PLAIN_COMPILER, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
PYTHON_SOURCES = {"module.cpp", "batch_inputs.cpp"}  # of csrc/core
THREAD_POOL = ROOT / "csrc/cpu/thread_pool.cpp"


def run(*command: object, **options: object) -> str:
    """The command's output; when it fails, the test fails and shows all that it said."""
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, f"{shlex.join(done.args)}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def core_objects(tmp_path_factory):
    """csrc/core without what knows Python, and the thread pool, compiled once for all tests."""
    folder = tmp_path_factory.mktemp("core")
    sources = [ROOT / source for source in _build.core_sources(str(ROOT))]
    sources = [source for source in sources if source.name not in PYTHON_SOURCES] + [THREAD_POOL]
    objects = [folder / source.with_suffix(".o").name for source in sources]

    def compile_one(source, target):
        run(*COMPILER, "-c", source, "-o", target)

    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(compile_one, sources, objects))
    return objects


@pytest.mark.parametrize("source", UNIT_TESTS, ids=lambda source: source.stem)
def test_the_cpp_unit_tests_pass_under_the_sanitizers(source, core_objects, tmp_path):
    program = tmp_path / source.stem
    run(*COMPILER, "-I", ROOT / "csrc", source, *core_objects, "-o", program)
    assert run(program).endswith(" passed, 0 failed\n")


def test_the_thread_pool_has_no_data_race(tmp_path):
    program = tmp_path / "test_thread_pool"
    source = ROOT / "tests/cpp/test_thread_pool.cpp"
    run(
        *(*PLAIN_COMPILER, "-O1", "-fsanitize=thread", "-I", ROOT / "csrc"),
        *(source, THREAD_POOL, "-o", program),
    )
    options = "halt_on_error=1 die_after_fork=0"
    assert run(program, env={"TSAN_OPTIONS": options}).endswith(" passed, 0 failed\n")


def test_there_are_cpp_unit_tests():
    assert ROOT / "tests/cpp/test_block_allocator.cpp" in UNIT_TESTS


def test_cmake_compiles_the_sources_that_setup_py_compiles_with_its_flags(tmp_path):
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    cmake = shutil.which("cmake", path=tools)
    assert cmake is not None, "cmake is among the requirements of the tests: install pyengine[test]"
    run(
        *(cmake, "-S", ROOT, "-B", tmp_path, "-G", "Ninja"),
        f"-DPython_EXECUTABLE={sys.executable}",
        env={**os.environ, "PATH": tools},
    )
    commands = {
        Path(entry["file"]).relative_to(ROOT).as_posix(): shlex.split(entry["command"])
        for entry in json.loads((tmp_path / "compile_commands.json").read_text())
        if "_ops_emulated" not in entry["output"]  # which setup.py doesn't build
    }
    sources = _build.core_sources(str(ROOT)) + _build.ops_sources(str(ROOT))
    assert sorted(source for source in commands if source.startswith("csrc/")) == sorted(sources)
    for source in sources:
        assert set(_build.CXX_FLAGS) <= set(commands[source])
    for name, value in _build.OPS_DEFINES:
        assert f"-D{name}={value}" in commands["csrc/ops.cpp"]
