"""What a login may not do is known before a slot is made: Glue, a Hive metastore, and their warehouses.

``tests/airflow/test_login_that_only_reads.py`` has REST and SQL catalogs. pyiceberg's clients are those of an
environment of their own.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import subprocess
import tempfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from quickstart.jars import spark_home
from tests.json_server import JsonHandler, serving
from tests.lakes.programs import Unavailable, answer_of, python_with
from tests.lakes.servers import BUCKET, hive_metastore, moto_with_logins, s3proxy

if TYPE_CHECKING:
    from collections.abc import Iterator

_ASK = Path(__file__).with_name("ask_worker.py")
_CANARY = "canary-0xC0FFEE"
#: What users may do, by their names.
_USERS = {
    "all": ["glue:*", "s3:*"],
    "reads-glue": ["glue:Get*", "s3:*"],
    "makes-no-table": ["glue:Get*", "glue:UpdateTable", "s3:*"],
    "no-warehouse": ["glue:*"],
    "reads-no-object": ["glue:*", "s3:Put*", "s3:Delete*", "s3:List*"],
    "deletes-no-object": ["glue:*", "s3:Put*", "s3:Get*", "s3:List*"],
}
#: Calls that make the bucket, the users, their keys and their policies.
_ACTIONS = 1 + 3 * len(_USERS)
_MAKE_USERS = """
import boto3, json, sys
where = dict(endpoint_url=sys.argv[1], region_name="us-east-1")
login = dict(aws_access_key_id="any", aws_secret_access_key="any")
boto3.client("s3", **where, **login).create_bucket(Bucket="bucket")
iam = boto3.client("iam", **where, **login)
keys = {}
for user, actions in json.loads(sys.argv[2]).items():
    iam.create_user(UserName=user)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    keys[user] = [key["AccessKeyId"], key["SecretAccessKey"]]
    allow = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    iam.put_user_policy(UserName=user, PolicyName="p", PolicyDocument=policy)
print(json.dumps(keys))
"""
_LOOK = """
import boto3, json, sys
url, key, secret = sys.argv[1:]
where = dict(endpoint_url=url, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret)
objects = boto3.client("s3", **where).list_objects_v2(Bucket="bucket").get("Contents", [])
databases = boto3.client("glue", **where).get_databases()["DatabaseList"]
print(json.dumps([[each["Key"] for each in objects], databases]))
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pgoutput-lakes-", dir="/var/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python with pyiceberg's clients of Glue, Hive and S3, of the latter two."""
    version = importlib.metadata.version("pyiceberg")
    try:
        extras = "glue,hive,pyarrow,s3fs"
        return python_with("rights", f"pyiceberg[{extras}]=={version}") / "python"
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_what_glue_and_the_warehouse_refuse_is_known_before_a_slot_is_made(
    folder: Path, python: Path
) -> None:
    """Nothing stays there but an object that may not be deleted, and a warning names it."""
    with moto_with_logins(folder / "rights", after_actions=_ACTIONS) as url:
        keys = json.loads(_printed(python, _MAKE_USERS, url, json.dumps(_USERS)))
        profiles = folder / "profiles"
        profiles.write_text("".join(_profile(user, *keys[user]) for user in keys))

        def asked(user: str, **other: str) -> dict[str, Any]:
            return {"properties": {**_glue(url, *keys[user]), **other}, "writes": True}

        by_profile = {**_glue(url), "client.profile-name": "reads-glue"}
        given = {
            **{user: asked(user) for user in _USERS},
            "reads no object, by s3fs": asked(
                "reads-no-object", **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}
            ),
            "profile": {"properties": by_profile, "writes": True},
            "role": asked("reads-glue", **{"client.assume-role.arn": "arn:aws:iam::1:role/r"}),
            "encrypted": asked("no-warehouse", **{"s3.sse.type": "kms"}),
            "hadoop": asked(
                "no-warehouse", **{"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
            ),
        }
        environment = {"AWS_SHARED_CREDENTIALS_FILE": str(profiles)}
        answers = answer_of([python, _ASK], given, environment, canary=_CANARY)
        objects, databases = json.loads(_printed(python, _LOOK, url, *keys["all"]))
    refusals = {
        "reads-glue": "namespaces and tables",
        "makes-no-table": "namespaces and tables",
        "no-warehouse": "in the warehouse",
        "reads-no-object": "in the warehouse",
        "reads no object, by s3fs": "in the warehouse",
    }
    for name, answer in answers.items():
        error, advice = answer["error"], refusals.get(name)
        assert (error is None) == (advice is None), (name, answer)
        if error is not None:
            assert error[0] == "LakeDenied", (name, answer)
            assert advice in error[1], (name, answer)
            assert "No slot was made" in error[1], (name, answer)
    logged = {name: answer["logged"] for name, answer in answers.items() if answer["logged"]}
    text = {name: "\n".join(lines) for name, lines in logged.items()}
    not_tried = {"profile", "role", "encrypted", "hadoop"}
    undeleted = {"reads-no-object", "deletes-no-object"}
    assert text.keys() == not_tried | undeleted, text
    for name, reason in (
        ("profile", "to the catalog was not tried: the iceberg connection has no login that both"),
        ("profile", "warehouse can be written was not tried: the iceberg connection has no keys"),
        (
            "role",
            "catalog was not tried: only one of pyiceberg and Spark reads this of the iceberg",
        ),
        (
            "role",
            "written was not tried: only one of pyiceberg and Spark reads this of the iceberg",
        ),
        ("role", "connection: client.assume-role.arn"),
        ("encrypted", "reads this of the iceberg connection: s3.sse.type"),
        ("hadoop", "io-impl of the iceberg connection is"),
    ):
        assert reason in text[name], text
    assert "catalog" not in text["encrypted"], "Glue itself was tried"
    left = {each for each in objects if not each.endswith("/")}
    assert len(left) == len(undeleted)
    for name in undeleted:
        assert any(f"The object s3://bucket/{each} cannot" in text[name] for each in left), text
    assert databases == []


class _Refusing(JsonHandler, BaseHTTPRequestHandler):
    """Glue's answers to who may not change a table, where Lake Formation keeps the rights."""

    #: Of a change.
    code = "AccessDeniedException"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        action = self.headers["X-Amz-Target"].partition(".")[2]
        code = "EntityNotFoundException" if action.startswith("Get") else self.code
        said = f"Insufficient Lake Formation permission(s), {_CANARY}"
        self.answer({"__type": code, "Message": said}, 400)


class _NotUnderstanding(_Refusing):
    code = "InvalidInputException"


@pytest.mark.slow
def test_an_answer_of_glue_that_decides_nothing_is_logged(python: Path) -> None:
    with serving(_Refusing) as refusing, serving(_NotUnderstanding) as not_understanding:
        ports = {_Refusing.code: refusing, _NotUnderstanding.code: not_understanding}
        given = {}
        for code, port in ports.items():
            properties = _glue(f"http://127.0.0.1:{port}", "key", "secret")
            del properties["warehouse"]
            given[code] = {"properties": properties, "writes": True}
        answers = answer_of([python, _ASK], given, canary=_CANARY)
    for code, answer in answers.items():
        assert answer["error"] is None
        assert [line for line in answer["logged"] if "not found out" in line and code in line]


def test_a_warehouse_of_hive_that_the_keys_do_not_open_is_known_before_a_slot_is_made(
    folder: Path, python: Path
) -> None:
    try:
        with s3proxy(folder / "hive") as store, _hive(folder / "hive") as uri:
            where = {"type": "hive", "uri": uri, "warehouse": f"s3://{BUCKET}/warehouse"}
            right = {**where, **store.for_iceberg()}
            given = {
                "right": {"properties": right, "writes": True},
                "wrong": {
                    "properties": {**right, "s3.secret-access-key": _CANARY},
                    "writes": True,
                },
            }
            answers = answer_of([python, _ASK], given, canary=_CANARY)
    except Unavailable as error:
        pytest.skip(str(error))
    assert answers["right"]["error"] is None
    (line,) = answers["right"]["logged"]
    assert "was not tried: a Hive metastore would keep the trial" in line
    name, message = answers["wrong"]["error"]
    assert name == "LakeDenied"
    assert "right to read, write and delete in the warehouse" in message


@contextlib.contextmanager
def _hive(home: Path) -> Iterator[str]:
    warehouse = home / "warehouse"
    warehouse.mkdir()
    with hive_metastore(home, warehouse, spark_home()) as uri:
        yield uri


def _glue(url: str, *keys: str) -> dict[str, str]:
    names = ("client.access-key-id", "client.secret-access-key")
    where = {"type": "glue", "glue.endpoint": url, "s3.endpoint": url, "s3.region": "us-east-1"}
    region = {"client.region": "us-east-1", "warehouse": "s3://bucket/warehouse"}
    return {**where, **region, **dict(zip(names, keys, strict=False))}


def _profile(name: str, key: str, secret: str) -> str:
    return f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"


def _printed(python: Path, code: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout
