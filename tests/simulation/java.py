"""Names of Java's classes as attributes, and Java's errors as PySpark raises them. It knows no tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pyspark.errors.exceptions.captured import CapturedException


class JavaError(CapturedException):
    """An exception of the JVM.

    :param name: of its class.
    """

    def __init__(self, name: str) -> None:
        Exception.__init__(self, name)
        self._name = name
        self._origin = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getName=lambda: name),
            getCause=lambda: None,
            name=name,
        )

    def __str__(self) -> str:
        return self._name


#: Java's class of the errors after which nothing was committed, see ``apply/failures.py``.
CLEANABLE = SimpleNamespace(
    isInstance=lambda error: error.name.endswith("ServiceUnavailableException")
)


def jvm(members: dict[str, Any]) -> Any:
    """An object on which ``root.org.apache...`` finds what the dotted names stand for."""
    root = SimpleNamespace()
    for name, member in members.items():
        *packages, last = name.split(".")
        place = root
        for package in packages:
            if not hasattr(place, package):
                setattr(place, package, SimpleNamespace())
            place = getattr(place, package)
        setattr(place, last, member)
    return root
