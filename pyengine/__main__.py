"""`python -m pyengine`: the same as the command `pyengine`."""

import sys

from pyengine.cli import main

sys.exit(main())
