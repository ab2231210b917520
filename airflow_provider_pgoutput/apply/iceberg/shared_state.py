"""The properties and the columns of a shared table, read once for all of its slices.

A table with hundreds of slices has thousands of properties. Each step of each slice looks at some of them. So
they are kept as long as the table's metadata file is the same: a commit never changes a metadata file.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from typing import Any

from airflow_provider_pgoutput.apply.iceberg.jvm import many_texts, schema_as_json
from airflow_provider_pgoutput.slices import SharedProperties

#: A driver prepares four tables at the same time, by default.
_MOST_KEPT = 8
#: Attribute of Py4J's view of the JVM: the states, by what tells one from another.
_STATES = "_pgoutput_states"
_lock = threading.Lock()


class SharedState:
    """One state of a table. The caller changes nothing in it.

    :param metadata: an ``org.apache.iceberg.TableMetadata``.
    """

    def __init__(self, jvm: Any, metadata: Any) -> None:
        self._jvm, self._metadata = jvm, metadata

    @functools.cached_property
    def properties(self) -> SharedProperties:
        """The table's properties, with those of all slices."""
        return SharedProperties(many_texts(self._jvm, self._metadata.properties()))

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The current schema as Iceberg's JSON."""
        return schema_as_json(self._jvm, self._metadata.schema())


def shared_state(jvm: Any, java_table: Any) -> SharedState:
    """The state of a table as it was loaded.

    :param java_table: an ``org.apache.iceberg.Table``.
    """
    # Another thread may load a newer state into the table meanwhile. This one does not change.
    metadata = java_table.operations().current()
    location = metadata.metadataFileLocation()
    if location is None:
        # The catalog keeps it to itself.
        return SharedState(jvm, metadata)
    # A table that is dropped and made again may have metadata files of the same names.
    key = str(metadata.uuid()), str(location), int(metadata.lastUpdatedMillis())
    with _lock:
        kept: OrderedDict[object, SharedState] = vars(jvm).setdefault(_STATES, OrderedDict())
        found = kept.pop(key, None) or SharedState(jvm, metadata)
        kept[key] = found
        while len(kept) > _MOST_KEPT:
            kept.popitem(last=False)
    return found
