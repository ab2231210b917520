"""Turns the arguments of an operator into values, or says what is wrong with them.

A Jinja template renders to a text, unless the DAG asks for native objects. So a list or a mapping may come as
JSON (``{{ params.publication_names | tojson }}``), and a number as its digits. The texts ``None``, ``null``
and the empty text stand for no value. No text is evaluated as Python.

The signature of an operator's constructor declares its arguments. In most operators the template fields
follow from it, by ``names_of``. Most arguments have the name of a field of a request. The type of the field
says how ``values_of`` reads what a template gives.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_provider_pgoutput.batch.answers import ANSWERS, check_answer
from airflow_provider_pgoutput.batch.lsn import LSN_ADVICE, Lsn
from airflow_provider_pgoutput.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Turns what a DAG or a template gives into a value. Its second argument is the name, for messages.
Converter: TypeAlias = "Callable[[Any, str], Any]"

_EMPTY = ("", "None", "null")


def names_of(constructor: Callable[..., None]) -> tuple[str, ...]:
    """The arguments that an operator's constructor has in its signature."""
    return tuple(each.name for each in _parameters(constructor))


def templated_of(constructor: Callable[..., None]) -> tuple[str, ...]:
    """The arguments that are templated: all but those that take only a ``timedelta``. A template gives text.

    An operator's class calls this below its constructor, to get ``template_fields``.
    """
    return tuple(
        each.name
        for each in _parameters(constructor)
        if not {"None", "timedelta"}.issuperset(str(each.annotation).split(" | "))
    )


def renderers_of(constructor: Callable[..., None]) -> dict[str, str]:
    """How Airflow's page shows arguments that are mappings: as JSON."""
    mappings = (e.name for e in _parameters(constructor) if "Mapping[" in str(e.annotation))
    return dict.fromkeys(mappings, "json")


def _parameters(constructor: Callable[..., None]) -> list[inspect.Parameter]:
    parameters = inspect.signature(constructor).parameters.values()
    return [each for each in parameters if each.kind is each.KEYWORD_ONLY]


def keep(task: Any, given: Mapping[str, Any], *names: Iterable[str]) -> None:
    """Make arguments attributes of their operator. Airflow renders the templates in these.

    :param given: the arguments of the operator's constructor, as its ``locals()``.
    :param names: those of them that are kept.
    """
    for some in names:
        for name in some:
            setattr(task, name, given[name])


def slot_name(task: Any) -> str:
    """The argument ``slot_name`` of an operator or a sensor.

    :raises ConfigurationError: it is missing.
    """
    return required_text(task.slot_name, "slot_name")


def staging_uri(task: Any) -> str:
    """The argument ``staging_uri`` of an operator.

    :raises ConfigurationError: it is missing.
    """
    return required_text(task.staging_uri, "staging_uri")


def required_text(value: Any, name: str) -> str:
    """Return a text that is not empty.

    :raises ConfigurationError: it is empty, missing or no text.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        raise ConfigurationError(f"The argument {name} is missing.", advice=f"give {name}.")
    if not isinstance(value, str):
        # A number cannot be turned back into its text. The names "1_000" and "1000" are the same number.
        raise ConfigurationError(
            f"The argument {name} is not a text but of type {type(value).__name__}.",
            advice="give a text. If the DAG renders native objects, quote a text that looks like a number:"
            f""" {name}="'2024'".""",
        )
    return value.strip()


def optional_text(value: Any, _name: str = "") -> str | None:
    """Return a text, or None if nothing was given."""
    return None if value is None or str(value).strip() in _EMPTY else str(value).strip()


def answer(value: Any, name: str) -> str:
    """Return the value of an argument ``on_...``, see ``batch/answers.py``.

    :raises ConfigurationError: the argument has no such value.
    """
    return check_answer(name, required_text(value, name))


def check_answers(task: Any) -> None:
    """Check the arguments ``on_...`` of an operator or a sensor when the DAG file is parsed.

    The value of a template is not known yet. It is checked when the task runs.

    :raises ConfigurationError: an argument has no such value.
    """
    for name in ANSWERS:
        value = getattr(task, name, None)
        if isinstance(value, str) and "{{" not in value and "{%" not in value:
            answer(value, name)


def text_list(value: Any, name: str) -> tuple[str, ...]:
    """Return a list that was given as a list, as JSON, or as a text with commas.

    In a text with commas, blanks around the commas are removed. In a list they are kept, because the name of
    a table and the prefix of a message may begin or end with a blank.

    :raises ConfigurationError: the list is empty, or something in it is no text.
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
    """Return a list as ``text_list`` does. If nothing was given, it is empty."""
    if value is None or value in (*_EMPTY, "[]", [], ()):
        return ()
    return text_list(value, name)


def whole_number(value: Any, name: str) -> int | None:
    """Return a whole number that is 0 or more, or None if nothing was given.

    :raises ConfigurationError: it is something else.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        return None
    try:
        found = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"The argument {name} is not a whole number.") from error
    is_whole = not isinstance(value, float) or value.is_integer()
    if found < 0 or isinstance(value, bool) or not is_whole:
        raise ConfigurationError(f"The argument {name} is not a whole number from 0 up.")
    return found


def number(value: Any, name: str) -> float | None:
    """Return a number that is 0 or more, or None if nothing was given.

    :raises ConfigurationError: it is something else.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        return None
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigurationError(f"The argument {name} is not a number.") from error
    if not 0 <= found < math.inf or isinstance(value, bool):
        raise ConfigurationError(f"The argument {name} is not a number from 0 up.")
    return int(found) if found.is_integer() else found


def lsn(value: Any, name: str) -> Lsn | None:
    """Return an LSN that was given in a form that ``Lsn.parse`` reads, or None if nothing was given.

    :raises ConfigurationError: it is something else.
    """
    text = optional_text(value)
    if text is None:
        return None
    # ``Lsn.parse`` refuses a number. As a text its decimal digits could be read as sixteen hexadecimal ones.
    given: Any = value if type(value) is int else text
    try:
        return Lsn.parse(given)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"The argument {name} is not an LSN.", advice=LSN_ADVICE
        ) from error


def lsn_list(value: Any, name: str) -> tuple[Lsn, ...]:
    """Return LSNs that were given as a list, as JSON, or as a text with commas. The list may be empty.

    :raises ConfigurationError: one of them is something else.
    """
    found = (lsn(each, name) for each in optional_text_list(value, name))
    return tuple(each for each in found if each is not None)


def flag(value: Any, name: str) -> bool:
    """Return true or false.

    :raises ConfigurationError: it is neither.
    """
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    try:
        return known[str(value).strip().lower()]
    except KeyError as error:
        raise ConfigurationError(f"The argument {name} is neither true nor false.") from error


def mapping(value: Any, name: str) -> dict[str, Any]:
    """Return a mapping that was given as such or as JSON. If nothing was given, it is empty.

    :raises ConfigurationError: it is something else.
    """
    if value is None or (isinstance(value, str) and value.strip() in _EMPTY):
        return {}
    found = _json(value, name) if isinstance(value, str) else value
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise ConfigurationError(f"The argument {name} is not a mapping with texts as keys.")
    return found


def text_mapping(value: Any, name: str) -> dict[str, str]:
    """Return a mapping of texts to texts, as ``mapping`` does.

    :raises ConfigurationError: one of its values is no text.
    """
    found = mapping(value, name)
    if not all(isinstance(each, str) for each in found.values()):
        raise ConfigurationError(f"The argument {name} is not a mapping of texts to texts.")
    return found


def text_list_mapping(value: Any, name: str) -> dict[str, tuple[str, ...]]:
    """Return a mapping of texts to lists of texts, as ``mapping`` does.

    :raises ConfigurationError: one of its values is no list of texts. A single text is none, because it would
        be read as the list of its letters.
    """
    found = mapping(value, name)
    if wrong := sorted(key for key, each in found.items() if not _is_text_list(each)):
        raise ConfigurationError(
            f"The argument {name} has no list of texts for {', '.join(wrong)}.",
            advice='write also a list of one column in brackets: {"schema.table": ["column"]}.',
        )
    return {key: tuple(each) for key, each in found.items()}


def _is_text_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"The argument {name} is not JSON.") from error


#: By the type of a field: the converter that turns a template's text into its value.
CONVERTERS: Mapping[str, Converter] = {
    "str": required_text,
    "str | None": optional_text,
    "int": whole_number,
    "int | None": whole_number,
    "float": number,
    "float | None": number,
    "bool": flag,
    "Lsn | None": lsn,
    "Sequence[Lsn]": lsn_list,
    "Sequence[str]": optional_text_list,
    "tuple[str, ...]": optional_text_list,
    "Mapping[str, str]": text_mapping,
    "dict[str, str]": text_mapping,
    "Mapping[str, Sequence[str]]": text_list_mapping,
}


def values_of(
    task: Any, names: Iterable[str], kind: type, **converters: Converter
) -> dict[str, Any]:
    """The values of those arguments that are fields of a dataclass. An argument without a value is left out.

    :param names: arguments of the operator.
    :param kind: the dataclass.
    :param converters: of the fields whose type is not in ``CONVERTERS``.
    :raises ConfigurationError: a converter refuses what was given.
    """
    wanted = set(names)
    found = {}
    for each in dataclasses.fields(kind):
        if each.name in wanted:
            convert = converters.get(each.name) or _converter(each)
            found[each.name] = convert(getattr(task, each.name), each.name)
    return {name: value for name, value in found.items() if value is not None}


def _converter(field: dataclasses.Field[Any]) -> Converter:
    if field.name in ANSWERS:
        return answer
    has_default = (field.default, field.default_factory) != (
        dataclasses.MISSING,
        dataclasses.MISSING,
    )
    if field.type == "Sequence[str]" and not has_default:
        return text_list
    return CONVERTERS[str(field.type)]
