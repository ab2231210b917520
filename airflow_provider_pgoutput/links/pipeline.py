"""Links on the tasks of a pipeline: its page, the manifest of the batch, and the Spark application.

Airflow asks for the links when a task has ended, in the task's own process. So an operator keeps what a link
needs in an attribute. A link without an address has no button.

Source: https://airflow.apache.org/docs/apache-airflow/stable/howto/define-extra-link.html
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from airflow.sdk import BaseOperatorLink

from airflow_provider_pgoutput.page.plugin import is_shown, url_prefix

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey

#: With one of them pyarrow asks another object store than Amazon's.
_OTHER_STORES = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class PageLink(BaseOperatorLink):
    """Leads to the pipeline's page on its DAG."""

    name = "PostgreSQL to Iceberg"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address in Airflow; empty: the page is taken out."""
        if not is_shown():
            return ""
        return f"{url_prefix()}/dags/{quote(ti_key.dag_id, safe='')}/plugin/pgoutput_pipeline"


class ManifestLink(BaseOperatorLink):
    """Leads to the manifest of the batch in the web console of its object store."""

    name = "Manifest"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address in the console; empty: there is no manifest, or no console is known for its store."""
        return console_url(getattr(operator, "manifest_uri", None) or "")


class SparkApplicationLink(BaseOperatorLink):
    """Leads to the Spark application in Spark's history server."""

    name = "Spark application"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:
        """The address; empty: Spark was not started, or it knows no history server."""
        return getattr(operator, "spark_application_url", None) or ""


def console_url(uri: str) -> str:
    """Where a person can look at an object of Amazon S3 or Google Cloud Storage; empty: it is neither."""
    parts = urlsplit(uri)
    key = quote(parts.path.lstrip("/"))
    if parts.scheme == "gs":
        return f"https://console.cloud.google.com/storage/browser/_details/{parts.netloc}/{key}"
    elsewhere = parts.query or any(os.environ.get(name) for name in _OTHER_STORES)
    if parts.scheme in ("s3", "s3a") and not elsewhere:
        return f"https://console.aws.amazon.com/s3/object/{parts.netloc}?prefix={key}"
    return ""
