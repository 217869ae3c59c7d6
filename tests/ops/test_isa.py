"""The instruction set is chosen when the library is loaded: each choice needs a new process."""

import os
import subprocess
import sys

from pyengine import ops


def import_ops_with(isa):
    return subprocess.run(
        [sys.executable, "-c", "from pyengine import ops; print(ops.isa_name())"],
        env={**os.environ, "PYENGINE_ISA": isa},
        capture_output=True,
        text=True,
    )


def test_any_machine_has_the_portable_kernels():
    assert import_ops_with("portable").stdout == "portable\n"


def test_the_name_is_one_of_three():
    assert ops.isa_name() in {"portable", "avx2", "avx512"}


def test_an_unknown_instruction_set_is_an_import_error_that_names_the_choices():
    result = import_ops_with("sse9")
    assert result.returncode != 0
    assert (
        "ImportError: PYENGINE_ISA=sse9 is not available: expected portable, avx2 or avx512"
        in result.stderr
    )
