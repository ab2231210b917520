"""Names of Java's classes as attributes, and Java's errors as PySpark raises them. It knows no tables."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pyspark.errors.exceptions.captured import CapturedException

if TYPE_CHECKING:
    from collections.abc import Iterable


class JavaError(CapturedException):
    """An exception of the JVM.

    :param name: of its class.
    """

    def __init__(self, name: str) -> None:
        Exception.__init__(self, name)
        self._name = name
        self._origin = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getName=lambda: name, getSuperclass=lambda: None),
            getCause=lambda: None,
            getMessage=lambda: None,
            name=name,
        )

    def __str__(self) -> str:
        return self._name


#: Java's class of the errors after which nothing was committed, see ``apply/iceberg/failures.py``.
CLEANABLE = SimpleNamespace(
    isInstance=lambda error: error.name.endswith("ServiceUnavailableException")
)


class JavaIterator:
    """``java.util.Iterator``."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._left = list(values)

    def hasNext(self) -> bool:  # noqa: N802 - Java's name
        return bool(self._left)

    def next(self) -> Any:
        return self._left.pop(0)


class JavaList(list[Any]):
    """``java.util.List``, as far as apply asks for it."""

    def iterator(self) -> JavaIterator:
        return JavaIterator(self)


class JavaMap(dict[str, Any]):
    """``java.util.Map``, as far as apply asks for it."""

    def entrySet(self) -> Any:  # noqa: N802 - Java's name
        entries = [
            SimpleNamespace(getKey=lambda name=name: name, getValue=lambda value=value: value)
            for name, value in self.items()
        ]
        return SimpleNamespace(iterator=lambda: JavaIterator(entries))


def jvm(members: dict[str, Any]) -> Any:
    """An object whose attributes are Java's classes by their full names.

    :param members: classes, or members of classes, by the full name.
    """
    root = SimpleNamespace()
    for name, member in members.items():
        words = name.split(".")
        place = next(i for i, word in enumerate(words) if word[0].isupper()) + 1
        full_name = ".".join(words[:place])
        if place == len(words):
            setattr(root, full_name, member)
            continue
        if not hasattr(root, full_name):
            setattr(root, full_name, SimpleNamespace())
        setattr(getattr(root, full_name), words[place], member)
    return root
