"""The two small files that the apply operator exchanges with the staging area: manifest and plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_pgoutput.errors import BatchRefused, LakeUnavailable

if TYPE_CHECKING:
    import pyarrow.fs


def read_text(uri: str) -> str:
    """Read a file of the staging area.

    :raises BatchRefused: when it does not exist.
    :raises LakeUnavailable: when the staging area does not answer.
    """
    filesystem, path = _open(uri)
    try:
        with filesystem.open_input_stream(path) as stream:
            return bytes(stream.read()).decode("utf-8")
    except FileNotFoundError as error:
        raise BatchRefused(
            f"The staging area has no {uri}.", advice="clear the stage task of this run."
        ) from error
    except OSError as error:
        raise LakeUnavailable(f"The staging area did not give {uri}.") from error


def write_text(uri: str, text: str) -> None:
    """Write a file of the staging area.

    :raises LakeUnavailable: when the staging area does not take it.
    """
    filesystem, path = _open(uri)
    try:
        filesystem.create_dir(path.rpartition("/")[0], recursive=True)
        with filesystem.open_output_stream(path) as stream:
            stream.write(text.encode("utf-8"))
    except OSError as error:
        raise LakeUnavailable(f"The staging area did not take {uri}.") from error


def _open(uri: str) -> tuple[pyarrow.fs.FileSystem, str]:
    import pyarrow as pa
    import pyarrow.fs

    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, OSError) as error:
        raise BatchRefused(f"{uri} is not a place that pyarrow can open.") from error
    return filesystem, path
