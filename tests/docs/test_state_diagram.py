"""The drawing of the protocol's state table in docs/internals/protocol.md is the table of the code.

``python -m tests.docs.test_state_diagram`` draws it anew.
"""

from __future__ import annotations

from pathlib import Path

from airflow_provider_pgoutput.capture.pgoutput.state import (
    EVENT_NAMES,
    FIRST_VERSION,
    NEXT_STATE,
    OUTSIDE,
)

PAGE = Path(__file__).parents[2] / "docs" / "internals" / "protocol.md"
START = "<!-- drawn by tests/docs/test_state_diagram.py from the table in state.py -->"
END = "<!-- end of the drawing -->"


def drawing() -> str:
    """A Mermaid state diagram: one arrow for each pair of states, with its events."""
    names = {state: f"s{number}" for number, state in enumerate(NEXT_STATE)}
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state}" as {name}' for state, name in names.items()]
    lines.append(f"    [*] --> {names[OUTSIDE]}")
    for state, row in NEXT_STATE.items():
        for target in dict.fromkeys(row.values()):
            events = ", ".join(event for event in row if row[event] == target)
            lines.append(f"    {names[state]} --> {names[target]}: {events}")
    lines += ["```", ""]
    lines += [
        f"- `{event}` {name}" + (f" (from version {version})" if version > 1 else "")
        for event, name in EVENT_NAMES.items()
        for version in (FIRST_VERSION.get(event, 1),)
    ]
    return "\n".join(lines)


def drawn(page: str) -> str:
    """The page with the drawing of today."""
    before, _, rest = page.partition(START)
    _, _, after = rest.partition(END)
    return f"{before}{START}\n{drawing()}\n{END}{after}"


def test_the_page_shows_the_table_of_the_code() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert START in page
    assert END in page
    assert page == drawn(page), "run python -m tests.docs.test_state_diagram"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
