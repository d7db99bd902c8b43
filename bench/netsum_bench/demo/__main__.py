"""The command of the demo: python -m netsum_bench.demo."""

import sys

from netsum_bench.demo.command import main

sys.exit(main())
