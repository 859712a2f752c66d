"""``python -m stratalog.config.docs`` prints docs/SETTINGS.md from the table of settings."""

from __future__ import annotations

import sys

from stratalog.config.settings import Setting, readable
from stratalog.config.tables import BROKER_SETTINGS, TOPIC_SETTINGS

_HEAD = """\
# Settings

Made from the table in `src/stratalog/config/` by `python -m stratalog.config.docs`; a test keeps it current.

Names, types, ranges and defaults are Kafka 4.3's; what Kafka does not have is marked *(ours)*, and every
difference is named. A topic's own setting wins over the store's, the store's over the default.

```python
import stratalog

with stratalog.open("data", config={"log.segment.bytes": "64MiB"}) as store:  # every topic's default
    if "orders" not in store.topics():
        store.create_topic("orders", config={"retention.ms": "30d"})  # one topic
```

```
stratalog config                       # this page, in the terminal
stratalog config orders                # what holds for one topic, and why
stratalog topic alter orders --config retention.ms=30d --unset segment.ms
```

Sizes and times may be written with a unit where a number of bytes or milliseconds is meant: `KiB`, `MiB`,
`GiB` (also `K`, `M`, `G`) are powers of 1024, `kB`, `MB`, `GB` of 1000; `ms`, `s`, `m`, `h`, `d`, `w` and
`1h30m` are times. They are stored, and shown to Kafka clients, as plain numbers.

Where the store has several names for one thing, the first of them that is set counts.
"""


def render() -> str:
    """Return the whole page."""
    parts = [_HEAD, "## Of a topic\n"]
    parts += [_section(setting) for setting in TOPIC_SETTINGS]
    parts.append("## Of a store\n")
    parts += [_section(setting) for setting in BROKER_SETTINGS]
    return "\n".join(parts)


def _section(setting: Setting) -> str:
    lines = [f"### `{setting.name}`{' *(ours)*' if setting.ours else ''}", "", setting.doc, ""]
    lines.append(f"- {setting.type}, default {_default(setting)}")
    if setting.choices:
        lines.append("- one of " + ", ".join(f"`{choice}`" for choice in setting.choices))
    elif setting.range:
        lines.append(f"- {setting.range}")
    names = setting.store_names
    if names and setting.scope == "topic":
        lines.append("- for every topic of a store: " + ", ".join(f"`{name}`" for name in names))
    elif names:
        lines.append("- also called " + ", ".join(f"`{name}`" for name in names))
    elif setting.scope == "topic" and setting.broker_name is None:
        lines.append("- per topic only")
    if setting.deviation:
        lines.append(f"- difference from Kafka: {setting.deviation}")
    return "\n".join(lines) + "\n"


def _default(setting: Setting) -> str:
    text = setting.default_text
    if not text:
        return "empty"
    meaning = readable(setting, setting.default)
    return f"`{text}` ({meaning})" if meaning != text else f"`{text}`"


if __name__ == "__main__":
    sys.stdout.write(render())
