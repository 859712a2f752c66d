"""``python -m bench``: run the sections, print the report, keep the raw numbers."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench import report
from bench.harness import MismatchError, Section
from bench.plan import Plan
from bench.sections import SECTIONS
from bench.sizes import BY_NAME

ROOT = Path(__file__).resolve().parents[1]
KEEP = ROOT / ".bench"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured (missed bars are for the reader), 1 when outputs were not equal."""
    options = _parse(arguments)
    sizes = "quick" if options.quick else options.sizes
    KEEP.mkdir(exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="data-", dir=options.dir or KEEP))
    plan = Plan(BY_NAME[sizes], options.repeat or (3 if sizes == "quick" else 5), base, not options.no_kafka)
    sections: list[Section] = []
    try:
        for name in options.only or SECTIONS:
            sections += SECTIONS[name](plan)
    except MismatchError as error:
        print(f"bench: outputs are not equal: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    about = report.environment(sizes, plan.repeat)
    raw = json.dumps(report.as_json(sections, about), indent=2)
    kept = KEEP / f"{time.strftime('%Y%m%dT%H%M%S')}-{sizes}.json"
    kept.write_text(raw + "\n")
    text = report.as_markdown(sections, about)
    if options.report is not None:
        options.report.write_text(text)
    print(raw if options.json else text, end="" if not options.json else "\n")
    print(f"bench: raw numbers in {kept.relative_to(ROOT)}", file=sys.stderr)
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = ", ".join(SECTIONS)
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Stratalog beside rocksdict, lmdb, SQLite, diskcache and Kafka's tool.",
    )
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"which to run: {names} (all)")
    parser.add_argument("--only", metavar="A,B", default="", help="the same, with commas")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, to see that it works; figures mean little"
    )
    parser.add_argument("--sizes", choices=sorted(BY_NAME), default="full", help=argparse.SUPPRESS)
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of everything (5; 3 with --quick)")
    parser.add_argument("--no-kafka", action="store_true", help="leave out Kafka's tool, which needs a JDK")
    parser.add_argument("--json", action="store_true", help="print the raw numbers instead of tables")
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="also write the tables to a Markdown file"
    )
    parser.add_argument("--dir", type=Path, help="where the stores go, all on this filesystem (.bench)")
    options = parser.parse_args(arguments)
    options.only = [*options.section, *filter(None, options.only.split(","))]
    for name in options.only:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; there are {names}")
    if options.repeat is not None and options.repeat < 1:
        parser.error("--repeat must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
