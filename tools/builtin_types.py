"""Print ``builtin_types.py`` from what ``psql`` printed of a server's catalog. It opens no connection.

::

    python -m tools.builtin_types --query |
      psql -XAtq -f - | python -m tools.builtin_types > builtin_types.py
"""

from __future__ import annotations

import json
import sys

QUERY = """
SELECT pg_catalog.json_build_object(
  'server_version', pg_catalog.current_setting('server_version'),
  'keywords', (SELECT json_agg(word ORDER BY word) FROM pg_catalog.pg_get_keywords() WHERE catcode <> 'U'),
  'types', (SELECT json_agg(json_build_array(t.oid::int8, t.typname, t.typtype, COALESCE(e.oid, 0)::int8,
                                             t.typdelim) ORDER BY t.oid)
              FROM pg_catalog.pg_type t LEFT JOIN pg_catalog.pg_type e ON e.typarray = t.oid
             WHERE t.oid < 10000));
"""

_HEAD = '''"""Types and keywords that every PostgreSQL 15 to 18 has.

Made by ``tools/builtin_types.py``; do not edit. Taken from the catalog of PostgreSQL {version};
15 and 16 have the same types under the same OIDs.
"""

from __future__ import annotations

SERVER_VERSION = "{version}"

#: OID, name, typtype, OID of the element (0: not an array), delimiter in array literals.
BUILTIN_ROWS: tuple[tuple[int, str, str, int, str], ...] = (
'''

_KEYWORDS = """
#: Words that ``format_type`` puts in quotes where they are the name of a type.
QUOTED_KEYWORDS = frozenset(
    {{
{words}
    }}
)
"""


def module_text(facts: str) -> str:
    """The module for the JSON that ``QUERY`` gives."""
    found = json.loads(facts)
    lines = [_HEAD.format(version=found["server_version"].split()[0])]
    for oid, name, typtype, element, delimiter in found["types"]:
        lines.append(f'    ({oid}, "{name}", "{typtype}", {element}, "{delimiter}"),\n')
    lines.append(")\n")
    words = "\n".join(f'        "{word}",' for word in found["keywords"])
    lines.append(_KEYWORDS.format(words=words))
    return "".join(lines)


if __name__ == "__main__":
    sys.stdout.write(QUERY if "--query" in sys.argv else module_text(sys.stdin.read()))
