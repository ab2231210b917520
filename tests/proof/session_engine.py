"""Hashes files in the tests' own Spark session, by the code of the job that spark-submit starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import SparkFailed
from airflow_provider_pgoutput.proof.files.file_hash import FileNotRead, HashedFiles, HashJob
from airflow_provider_pgoutput.spark_driver import JobFailed
from airflow_provider_pgoutput.spark_proof import main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SessionEngine:
    """A ``HashEngine``. Jobs and answers go through their texts, as through the files of a real job."""

    def __init__(self, spark: SparkSession, least_bytes: int = 0) -> None:
        self.least_bytes = least_bytes
        self.jobs: list[HashJob] = []
        self._context = spark.sparkContext

    def hashed(self, job: HashJob) -> HashedFiles:
        self.jobs.append(job)
        try:
            found = main.hashed(self._context, HashJob.from_json(job.to_json()))
        except JobFailed as failed:
            if failed.failure.file:
                raise FileNotRead(failed.failure.file) from failed.failure.to_error()
            raise SparkFailed(failed.failure.message) from None
        return HashedFiles.from_json(found.to_json())
