"""All tests of this folder again, on the instruction sets that this processor has but wouldn't use.

An instruction set is chosen for a process, so each takes a new one.
"""

import os
import subprocess
import sys
from pathlib import Path

from pyengine import ops

FROM_SLOWEST = ["portable", "avx2", "avx512"]


def test_the_ops_pass_their_tests_on_the_other_instruction_sets_too():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/ops"]
    for isa in FROM_SLOWEST[: FROM_SLOWEST.index(ops.isa_name())]:
        result = subprocess.run(
            [*command, f"--ignore={Path(__file__).relative_to(root)}"],
            cwd=root,
            env={**os.environ, "PYENGINE_ISA": isa},
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, f"with {isa}:\n{result.stdout}"
