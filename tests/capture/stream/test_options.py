"""Options of pgoutput: what goes together, what a server has, and what is written into a statement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.capture.source.catalog import Server
from airflow_provider_pgoutput.capture.stream.options import PluginOptions, StreamOptions
from airflow_provider_pgoutput.errors import ConfigurationError


def server(version: int) -> Server:
    return Server(version, "1", 1, "d", Lsn(1), "logical")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"proto_version": 0}, "proto_version"),
        ({"proto_version": 5}, "proto_version"),
        ({"streaming": "yes"}, "streaming"),
        ({"origin": "local"}, "origin"),
        ({"message_prefixes": ("app",)}, "messages is off"),
        ({"messages": True, "streaming": "on"}, "does not go with messages"),
        ({"messages": True, "streaming": "parallel"}, "does not go with messages"),
        (
            {"proto_version": 1, "streaming": "on"},
            "proto_version 1 does not go with streaming 'on'",
        ),
        ({"proto_version": 3, "streaming": "parallel"}, "needs 4"),
        ({"proto_version": 2, "two_phase": True}, "two_phase, which needs 3"),
    ],
)
def test_options_that_do_not_go_together(options: dict[str, Any], what: str) -> None:
    with pytest.raises(ConfigurationError, match=what):
        StreamOptions(**options)


@pytest.mark.parametrize(
    ("version", "proto_version", "streaming"),
    [
        (130000, 1, "off"),
        (140000, 2, "on"),
        (150019, 3, "on"),
        (160000, 4, "on"),
        (180006, 4, "on"),
    ],
)
def test_the_highest_version_and_streaming_are_the_default(
    version: int, proto_version: int, streaming: str
) -> None:
    chosen = StreamOptions().for_server(server(version), ("p",))
    assert (chosen.proto_version, chosen.streaming) == (proto_version, streaming)


def test_an_older_version_has_no_streaming() -> None:
    assert StreamOptions(proto_version=1).for_server(server(180006), ("p",)).streaming == "off"


@pytest.mark.parametrize(
    ("version", "has_origins", "options", "streaming"),
    [
        (180006, True, {}, "off"),
        (180006, True, {"origin": "none"}, "on"),
        (180006, True, {"streaming": "on"}, "on"),
        (180006, False, {"messages": True}, "off"),
        (150019, False, {"origin": "none"}, "off"),
    ],
)
def test_nothing_is_streamed_by_default_that_would_lose_something(
    version: int, has_origins: bool, options: dict[str, Any], streaming: str
) -> None:
    asked = replace(server(version), has_origins=has_origins)
    assert StreamOptions(**options).for_server(asked, ("p",)).streaming == streaming


def test_an_older_server_cannot_leave_out_what_it_streams() -> None:
    with pytest.raises(ConfigurationError, match="does not filter by origin"):
        StreamOptions(origin="none", streaming="on").for_server(server(150019), ("p",))


@pytest.mark.parametrize(
    ("version", "options"),
    [
        (150019, {"proto_version": 4}),
        (150019, {"streaming": "parallel"}),
        (140000, {"two_phase": True}),
        (130000, {"streaming": "on"}),
    ],
)
def test_what_the_server_lacks_is_refused(version: int, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"PostgreSQL {version // 10000} has protocol"):
        StreamOptions(**options).for_server(server(version), ("p",))


def test_statements_hold_what_is_not_the_default() -> None:
    names = ('a"b', "é, c")
    assert PluginOptions(names).pairs == (
        ("proto_version", "1"),
        ("publication_names", '"a""b","é, c"'),
    )
    every = StreamOptions(
        streaming="parallel", two_phase=True, binary=True, origin="none"
    ).for_server(server(180006), ("p",))
    assert dict(every.pairs) == {
        "proto_version": "4",
        "publication_names": '"p"',
        "streaming": "parallel",
        "two_phase": "on",
        "binary": "on",
        "origin": "none",
    }
    messages = StreamOptions(messages=True).for_server(server(180006), ("p",))
    assert dict(messages.pairs) == {
        "proto_version": "4",
        "publication_names": '"p"',
        "messages": "on",
    }
    assert every.as_options().as_string().startswith('"proto_version" \'4\', "publication_names"')
    assert every.as_arguments().as_string().startswith("'proto_version', '4', 'publication_names'")


@pytest.mark.parametrize(
    ("version", "lone"),
    [
        (150018, True),
        (150019, False),
        (160014, True),
        (160015, False),
        (170010, True),
        (170011, False),
        (180004, True),
        (180006, False),
    ],
)
def test_servers_that_send_commits_of_empty_prepared_transactions(version: int, lone: bool) -> None:
    assert StreamOptions().for_server(server(version), ("p",)).commits_without_prepare == lone


def test_an_older_server_leaves_origins_to_us() -> None:
    old = StreamOptions(origin="none").for_server(server(150019), ("p",))
    assert old.skip_origins
    assert "origin" not in dict(old.pairs)
    assert not StreamOptions(origin="none").for_server(server(160000), ("p",)).skip_origins
    assert not StreamOptions().for_server(server(150019), ("p",)).skip_origins
