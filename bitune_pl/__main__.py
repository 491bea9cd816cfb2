"""`python -m bitune_pl` is `bitune`."""

import sys

from bitune_pl.cli import main

sys.exit(main())
