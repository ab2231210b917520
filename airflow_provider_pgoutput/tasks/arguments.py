"""Templated arguments arrive as text; this turns them into what they mean, or says what is wrong.

A Jinja template renders to a string unless the DAG asks for native objects. So a list or a mapping may
come as JSON (``{{ params.publication_names | tojson }}``), a number as its digits, and nothing at all as
``None`` or the empty string. Nothing is ever evaluated as Python.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_provider_pgoutput.batch.answers import ANSWERS, check_answer
from airflow_provider_pgoutput.batch.lsn import LSN_ADVICE, Lsn
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Turns what a DAG or a template gives into a value. Its second argument is the name, for messages.
Converter: TypeAlias = "Callable[[Any, str], Any]"

_EMPTY = ("", "None", "null")


def keep(task: Any, given: Mapping[str, Any], *names: Iterable[str]) -> None:
    """Make arguments attributes of their operator. Airflow renders the templates in these.

    :param given: the arguments of the operator's constructor, as its ``locals()``.
    :param names: those of them that are kept.
    """
    for some in names:
        for name in some:
            setattr(task, name, given[name])


def values_of(task: Any, converters: Mapping[str, Converter]) -> dict[str, Any]:
    """The values of arguments that ``keep`` kept, converted. An argument without a value is left out.

    :raises ConfigurationError: a converter refuses what was given.
    """
    found = {name: convert(getattr(task, name), name) for name, convert in converters.items()}
    return {name: value for name, value in found.items() if value is not None}


def required_text(value: Any, name: str) -> str:
    """Return ``value`` when it is a text that is not empty.

    :raises ConfigurationError: otherwise.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        raise ConfigurationError(f"The argument {name} is missing.", advice=f"give {name}.")
    if not isinstance(value, str):
        # A number is not turned back: 1_000 and 1000 are two names, and the same number.
        raise ConfigurationError(
            f"The argument {name} is not a text but of type {type(value).__name__}.",
            advice="give a text. Where the DAG renders native objects, quote one that looks like a number:"
            f""" {name}="'2024'".""",
        )
    return value.strip()


def optional_text(value: Any, _name: str = "") -> str | None:
    """Return the text, or None when there is none."""
    return None if value is None or str(value).strip() in _EMPTY else str(value).strip()


def answer(value: Any, name: str) -> str:
    """Return the answer to one of the questions ``on_...``, see ``batch/answers.py``.

    :raises ConfigurationError: when the question has no such answer.
    """
    return check_answer(name, required_text(value, name))


def check_answers(task: Any) -> None:
    """Check the answers of an operator or a sensor when the DAG file is parsed.

    A template gives its answer later, so that one is checked when the task runs.

    :raises ConfigurationError: when a question has no such answer.
    """
    for name in ANSWERS:
        value = getattr(task, name, None)
        if isinstance(value, str) and "{{" not in value and "{%" not in value:
            answer(value, name)


def text_list(value: Any, name: str) -> tuple[str, ...]:
    """Return a list given as a list, as JSON, or as text with commas.

    Blanks around a comma are left out. In a list they are meant: a table's name and a message's prefix may
    begin or end with one.

    :raises ConfigurationError: when it is empty or holds something else than texts.
    """
    found = value
    if isinstance(value, str):
        is_json = value.lstrip().startswith("[")
        found = _json(value, name) if is_json else [each.strip() for each in value.split(",")]
    if not _is_text_list(found):
        raise ConfigurationError(f"The argument {name} is not a list of texts.")
    names = tuple(each for each in found if each.strip())
    if not names:
        raise ConfigurationError(f"The argument {name} is empty.", advice=f"give {name}.")
    return names


def optional_text_list(value: Any, name: str) -> tuple[str, ...]:
    """Return a list as ``text_list`` does, or an empty one when nothing was given."""
    if value is None or value in (*_EMPTY, "[]", [], ()):
        return ()
    return text_list(value, name)


def whole_number(value: Any, name: str) -> int | None:
    """Return a whole number that is not negative, or None when there is none.

    :raises ConfigurationError: when it is something else.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        return None
    try:
        number = int(value)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"The argument {name} is not a whole number.") from error
    if number < 0 or isinstance(value, bool):
        raise ConfigurationError(f"The argument {name} is not a whole number from 0 up.")
    return number


def lsn(value: Any, name: str) -> Lsn | None:
    """Return a position in one of the text forms that ``Lsn.parse`` reads, or None when there is none.

    :raises ConfigurationError: when it is something else.
    """
    text = optional_text(value)
    if text is None:
        return None
    # A number is refused unprinted: its decimal digits could pass for sixteen hexadecimal ones.
    given: Any = value if type(value) is int else text
    try:
        return Lsn.parse(given)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The argument {name} is not an LSN.", advice=LSN_ADVICE
        ) from error


def lsn_list(value: Any, name: str) -> tuple[Lsn, ...]:
    """Return positions given as a list, as JSON, or as text with commas; nothing is an empty list.

    :raises ConfigurationError: when one is something else.
    """
    found = (lsn(each, name) for each in optional_text_list(value, name))
    return tuple(each for each in found if each is not None)


def flag(value: Any, name: str) -> bool:
    """Return a yes or no.

    :raises ConfigurationError: when it is neither.
    """
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return known[str(value).strip().lower()]
    except KeyError as error:
        raise ConfigurationError(f"The argument {name} is neither true nor false.") from error


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Return a mapping given as such or as JSON; nothing is an empty mapping.

    :raises ConfigurationError: when it is something else.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        return {}
    found = _json(value, name) if isinstance(value, str) else value
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigurationError(f"The argument {name} is not a mapping with texts as keys.")
    return found


def text_mapping(value: Any, name: str) -> dict[str, str]:
    """Return a mapping as ``mapping`` does, of texts only.

    :raises ConfigurationError: when it holds something else.
    """
    found = mapping(value, name)
    if not all(isinstance(each, str) for each in found.values()):
        raise ConfigurationError(f"The argument {name} is not a mapping of texts to texts.")
    return found


def text_list_mapping(value: Any, name: str) -> dict[str, tuple[str, ...]]:
    """Return a mapping as ``mapping`` does, of lists of texts only.

    :raises ConfigurationError: when it holds something else; a text would count as the list of its letters.
    """
    found = mapping(value, name)
    if wrong := sorted(key for key, each in found.items() if not _is_text_list(each)):
        raise ConfigurationError(
            f"The argument {name} has no list of texts for {', '.join(wrong)}.",
            advice='write a list of one, too, in brackets: {"schema.table": ["column"]}.',
        )
    return {key: tuple(each) for key, each in found.items()}


def _is_text_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The argument {name} is not JSON.") from error
