"""What logging 60 alpha curves costs, and how long a dashboard of 1000 updates takes to open.

    python tests/benchmarks/dashboard.py [--blocks 30] [--updates-of 2.5]

Logging is timed on the callbacks of a run with a trainer and a module that do nothing else; `--updates-of` are the seconds of
an update that it is held against (those of the main job on two CPU cores). The dashboard is opened in headless Chromium, from
the call to the last curve drawn; without Chromium that part is left out.
"""

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path += [str(TESTS), str(TESTS / "training")]

from browser import CHROMIUM, browser, tensorboard  # noqa: E402
from stand_in import a_thousand_updates  # noqa: E402
from test_browser import LINES  # noqa: E402

from bitune_pl.training.dashboard.overview import LAYOUT  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--updates-of", type=float, default=2.5, metavar="SECONDS")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        start, used = time.perf_counter(), time.process_time()
        trainer, *_ = a_thousand_updates(folder, args.blocks)
        wall, used = time.perf_counter() - start, time.process_time() - used
        trainer.loggers[0].experiment.add_custom_scalars(LAYOUT)
        trainer.loggers[0].finalize("success")
        size = sum(file.stat().st_size for file in folder.iterdir()) / 1e6
        print(f"logging an update: {wall:.2f} ms, {used:.2f} ms of CPU time; events of 1000 updates: {size:.1f} MB")
        print(f"share of an update of {args.updates_of} s: {wall / args.updates_of / 10:.2f} % (below 2 % wanted)")
        if CHROMIUM:
            print(f"opened and drawn in {opened(folder, args.blocks):.1f} s")
    finally:
        shutil.rmtree(folder)


def opened(folder: Path, blocks: int) -> float:
    with browser() as page, tensorboard(folder) as address:
        start = time.perf_counter()
        page.open(f"{address}#custom_scalars&_smoothingWeight=0")
        page.until(f"{LINES} return lines.slice(0, 2).map((of) => of.length)", [blocks, blocks])
        return time.perf_counter() - start


if __name__ == "__main__":
    main()
