"""No name that comes from outside can lead out of the staging area."""

import pytest

from airflow_provider_pgoutput.batch import layout
from airflow_provider_pgoutput.batch.lsn import Lsn
from airflow_provider_pgoutput.errors import BatchRefused, ConfigurationError


@pytest.mark.parametrize("name", ["", "Slot", "a-b", "../x", "a/b", "a b", "a" * 64, "x\n", "é"])
def test_a_name_that_postgresql_refuses_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a slot name"):
        layout.manifest_folder(name)


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../b", "/etc/passwd", "a//b", "", ".", "a/./b", "a\\b", "a/%2e%2e/b", "s3://b/x",
     ".hidden", "a/b\n"],
)  # fmt: skip
def test_a_path_that_could_leave_the_root_is_refused(path: str) -> None:
    with pytest.raises(BatchRefused, match="leaves the staging area"):
        layout.join("/staging", path)


def test_our_own_paths_stay_below_the_root() -> None:
    attempt = layout.attempt_folder("cdc_1", Lsn(0x16B374D848), "a1b2")
    folder = layout.table_folder(attempt, 16385, 2)
    path = f"{folder}/{layout.file_name('changes', 7)}"
    assert layout.join("s3://bucket/root/", path) == (
        "s3://bucket/root/cdc_1/data/00000016B374D848-a1b2/16385-v2/changes-00007.parquet"
    )


def test_a_manifest_is_found_again_by_its_name() -> None:
    path = layout.manifest_path("cdc", Lsn(1), Lsn(0xFF), "0123456789abcdef" * 4)
    folder, name = path.rsplit("/", 1)
    assert folder == layout.manifest_folder("cdc")
    assert layout.parse_manifest_name(name) == (1, 0xFF)
    assert layout.parse_manifest_name(name + ".tmp") is None
