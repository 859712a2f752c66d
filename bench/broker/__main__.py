"""``python -m bench.broker``: start both servers, measure, print the report and write RESULTS_BROKER.md.

A section that fails does not take the others' figures along: the report says that it failed and why, its
servers are started again, and the next one runs. The report is written after every section.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

import stratalog
from bench import report
from bench.broker.bench import Bench
from bench.broker.sections import ONLY_ASKED, SECTIONS
from bench.broker.servers import Kafka, Ours, Server
from bench.broker.sizes import FULL, PARTITIONS, QUICK
from bench.harness import Bar, MismatchError, Section
from stratalog import kernel
from tests.interop.kafka import KAFKA_VERSION

ROOT = Path(__file__).resolve().parents[2]
KEEP = ROOT / ".bench"
RESULTS = ROOT / "bench" / "RESULTS_BROKER.md"
FAILURES = (MismatchError, subprocess.SubprocessError, KafkaException, OSError)
"""What ends one section and not the others: a server or a client that fails, and a time that is over."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when everything was measured (missed bars are for the reader), 1 when a section failed."""
    options = _parse(arguments)
    sizes = QUICK if options.quick else FULL
    repeat = options.repeat or sizes.repeat
    wanted = options.section or list(SECTIONS)
    names = [name for name in (*SECTIONS, *ONLY_ASKED) if name in wanted]
    target = options.report or (None if options.quick or options.section else RESULTS)
    KEEP.mkdir(exist_ok=True)
    kept = KEEP / f"{time.strftime('%Y%m%dT%H%M%S')}-broker-{sizes.name}.json"
    place = Path(options.dir or KEEP)
    place.mkdir(parents=True, exist_ok=True)
    base = Path(tempfile.mkdtemp(prefix="broker-", dir=place))
    environment = _environment(sizes.name, repeat) | {"sections": options.section}
    began = time.monotonic()
    sections: list[Section] = []
    failures = 0
    try:
        with ExitStack() as stack:
            servers: list[Server] = [Ours(base / "stratalog")]
            if not options.no_kafka and set(names) & set(SECTIONS):
                servers.append(Kafka(base / "kafka"))
            for server in servers:
                stack.callback(server.stop)
                server.start()
            bench = Bench(sizes, repeat, base, servers, options.minutes)
            for at, name in enumerate(names):
                failed = not _measure(bench, name, sections)
                failures += failed
                about = environment | {
                    "minutes": round((time.monotonic() - began) / 60, 1),
                    "load_average": round(os.getloadavg()[0], 1),
                    "not_run": names[at + 1 :],
                }
                raw = json.dumps(report.as_json(sections, about), indent=2)
                text = _as_markdown(sections, about)
                kept.write_text(raw + "\n")
                if target is not None:
                    target.write_text(text)
                if failed:
                    for server in servers:
                        bench.start_again(server)
    except (MismatchError, subprocess.SubprocessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(raw if options.json else text)
    print(f"bench: raw numbers in {kept.relative_to(ROOT)}", file=sys.stderr)
    return 1 if failures else 0


def _measure(bench: Bench, name: str, sections: list[Section]) -> bool:
    """Add what one section measured; False if it failed, which is added too."""
    try:
        if name != "start":
            bench.warm_up()
        sections.extend((SECTIONS | ONLY_ASKED)[name](bench))
    except FAILURES as error:
        bench.say(f"{name} failed: {error!r}")
        sections.append(_failed(name, error))
        return False
    return True


def _failed(name: str, error: Exception) -> Section:
    """What the report has of a section that did not end."""
    reason = str(error).strip().splitlines() or [type(error).__name__]
    section = Section(f"{name}, failed", f"{name}: failed", ())
    section.bars = [Bar(f"{name}: everything is measured", "failed", False)]
    section.notes = [f"It ended with an error: {reason[0]}. What it measured before is above."]
    return section


def _environment(sizes: str, repeat: int) -> dict[str, Any]:
    """What the figures were taken with; no names of machines or paths."""
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    return {
        "stratalog": stratalog.__version__,
        "kernel_compiled": kernel.compiled,
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
        "java": java.split('"')[1] if '"' in java else "unknown",
        "librdkafka": confluent_kafka.libversion()[0],
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "sizes": sizes,
        "repeat": repeat,
    }


def _as_markdown(sections: Sequence[Section], about: dict[str, Any]) -> str:
    quick = ["--quick"] if about["sizes"] == "quick" else []
    command = " ".join(("python -m bench.broker", *about["sections"], *quick))
    runs = "one run" if about["repeat"] == 1 else f"medians of {about['repeat']} runs taken in turn"
    method = (
        f"`{command} --repeat {about['repeat']}`, {about['minutes']} minutes: {runs}. Both brokers serve at"
        f" the same time on the same cores and filesystem, topics have {PARTITIONS} partitions unless it says"
        " otherwise, and the clients run beside them. Kafka is warm. “×” is the first row's figure divided by"
        " that row's."
    )
    made = "compiled" if about["kernel_compiled"] else "interpreted"
    setting = (
        f"stratalog {about['stratalog']} ({made} kernel), Python {about['python']}; Kafka {about['kafka']},"
        f" Java {about['java']}; librdkafka {about['librdkafka']}; {about['machine']},"
        f" {about['cores']} cores, load average {about['load_average']} at the end."
    )
    if about["not_run"]:
        setting += f"\n\n**The run was not finished: {', '.join(about['not_run'])} are missing.**"
    body = report.as_markdown(sections, about, preface=False)
    return f"# Broker benchmarks\n\n{method}\n\n{setting}\n\n{body}"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.broker", description="The broker beside a real Kafka."
    )
    names = f"{', '.join(SECTIONS)} (all); {', '.join(ONLY_ASKED)} only where it is named"
    parser.add_argument("section", nargs="*", metavar="SECTION", help=f"which to run: {names}")
    parser.add_argument("--quick", action="store_true", help="to see that it works; figures mean little")
    parser.add_argument("--no-kafka", action="store_true", help="ours alone, without ratios")
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of everything (3; 1 with --quick)")
    parser.add_argument("--minutes", type=float, default=10.0, metavar="N", help="how long soak runs (10)")
    parser.add_argument("--json", action="store_true", help="print the raw numbers instead of tables")
    parser.add_argument("--report", type=Path, metavar="FILE", help="where the report goes")
    parser.add_argument("--dir", type=Path, help="where the data goes, all on this filesystem (.bench)")
    options = parser.parse_args(arguments)
    for name in options.section:
        if name not in SECTIONS | ONLY_ASKED:
            parser.error(f"no section {name!r}; there are {names}")
    if options.repeat is not None and options.repeat < 1:
        parser.error("--repeat must be 1 or more")
    return options


if __name__ == "__main__":
    sys.exit(main())
