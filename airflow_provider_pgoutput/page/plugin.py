"""Puts the page into Airflow: one entry in the navigation, and a tab on each DAG.

Airflow does not authenticate the apps of plugins. So this app has files only, and they hold nothing. In the
browser they ask Airflow's own REST API, which knows the user by the session's cookie and shows what the user
may read. ``[pgoutput] page = False`` takes the page out.

Source: https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/plugins.html
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin

from airflow_provider_pgoutput.airflow_versions import conf

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

URL_PREFIX = "/pgoutput"
STATIC = Path(__file__).with_name("static")
#: Scripts, styles and requests of this host only. Airflow's own pages may show the page in a frame.
HEADERS = {
    b"content-security-policy": b"default-src 'self'; frame-ancestors 'self'; base-uri 'none'",
    b"referrer-policy": b"same-origin",
    b"x-content-type-options": b"nosniff",
    b"cache-control": b"no-cache",
}


@functools.cache
def _files() -> ASGIApp:
    """The app that serves the static files, made at the first request.

    Airflow imports plugins in each task, too. Only its API server needs what this imports.
    """
    from starlette.applications import Starlette  # noqa: PLC0415
    from starlette.routing import Mount  # noqa: PLC0415
    from starlette.staticfiles import StaticFiles  # noqa: PLC0415

    return Starlette(routes=[Mount("/", StaticFiles(directory=STATIC, html=True))])


async def page_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Serve the static files, each with ``HEADERS``."""

    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *HEADERS.items()]
        await send(message)

    if scope["type"] == "http":
        await _files()(scope, receive, send_with_headers)


def url_prefix() -> str:
    """The path of Airflow's ``base_url``, such as ``/airflow``; empty: it has none."""
    return urlsplit(str(conf.get("api", "base_url", fallback="/"))).path.rstrip("/")


def is_shown() -> bool:
    """Whether the page is switched on: the option ``[pgoutput] page``."""
    return bool(conf.getboolean("pgoutput", "page", fallback=True))


class PgoutputPlugin(AirflowPlugin):
    """Airflow finds it by the entry point ``airflow.plugins``."""

    name = "pgoutput"

    if is_shown():
        fastapi_apps = [{"app": page_app, "url_prefix": URL_PREFIX, "name": "pgoutput"}]
        external_views = [
            {
                "name": "PostgreSQL to Iceberg",
                "href": f"{url_prefix()}{URL_PREFIX}/",
                "destination": "nav",
                "category": "browse",
                "url_route": "pgoutput",
            },
            {
                "name": "PostgreSQL to Iceberg",
                "href": f"{url_prefix()}{URL_PREFIX}/?dag_id={{DAG_ID}}",
                "destination": "dag",
                "url_route": "pgoutput_pipeline",
            },
        ]
