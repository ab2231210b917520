"""The rules of the page of security that a program can check: SQL of Spark, and no code in data.

The rule for statements to PostgreSQL is in ``test_architecture.py``. Each rule is shown to see what
breaks it.
"""

from __future__ import annotations

import ast

from tests.declared_sql import Declared
from tests.source_code import parsed
from tests.spark_sql import unproved
from tests.test_architecture import PACKAGE_FILES, SOURCE_FILES, _room, breaches

#: Read data as code, or can be made to.
CODE_READERS = frozenset(
    {
        "pickle",
        "_pickle",
        "cPickle",
        "cloudpickle",
        "dill",
        "marshal",
        "shelve",
        "jsonpickle",
        "yaml",
    }
)
#: Run text as code, or import what a text names.
CODE_RUNNERS = frozenset({"eval", "exec", "compile", "__import__"})


def _code_from_data(source: str) -> list[int]:
    """The lines that could run code which came as data."""
    found = []
    for node in ast.walk(parsed(source)):
        if not isinstance(node, ast.stmt | ast.expr):
            continue
        if isinstance(node, ast.Import):
            bad = any(alias.name.split(".")[0] in CODE_READERS for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            bad = (node.module or "").split(".")[0] in CODE_READERS
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            bad = node.func.id in CODE_RUNNERS | {"import_module", "import_string"}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            bad = node.func.attr in {"import_module", "import_string", "run_path", "run_module"}
        else:
            bad = False
        if bad:
            found.append(node.lineno)
    return found


def test_data_is_never_code() -> None:
    """XCom, manifests, plans and connections are JSON: no pickle, no eval, no import by a name from data."""
    assert not breaches(lambda path: _code_from_data(path.read_text("utf-8")), SOURCE_FILES)


def test_the_rule_about_data_sees_each_way_to_break_it() -> None:
    wrong = (
        "import pickle\n"
        "from yaml import load\n"
        "import dill as d\n"
        "eval(x)\n"
        "exec(x)\n"
        "__import__(x)\n"
        "importlib.import_module(x)\n"
        "runpy.run_path(x)\n"
    )
    assert _code_from_data(wrong) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not _code_from_data("import json\njson.loads(x)\nre.compile(x)\nimport importlib.util\n")


#: What apply may call, so all that its annotations can speak of.
_DECLARED = Declared(
    path.read_text(encoding="utf-8") for path in PACKAGE_FILES if _room(path) in {"apply", "batch"}
)


def test_names_reach_spark_quoted() -> None:
    of_apply = [path for path in PACKAGE_FILES if _room(path) == "apply" and path.name != "sql.py"]
    assert not breaches(lambda path: unproved(path.read_text("utf-8"), _DECLARED), of_apply)


_WRONG = """
spark.sql(f"DROP TABLE {table.name}")
statement = f"SELECT {column.name} AS x"
f"UPDATE {self._table.target} SET a = 1"
f"CAST({names[position]} AS INT)"
f"`{column}` IS NULL"
spark.sql("DROP TABLE %s" % name)
spark.sql("DROP TABLE " + name)
frame.where("a = {}".format(value))
def drop(name: str, /): spark.sql(f"DROP TABLE {name}")
def drop(name): s = "DROP TABLE " + name; spark.sql(s)
def drop(row): name = quote(row.a) if row.a else row.b; spark.sql(f"DROP TABLE {name}")
def drop(rows): names = [quote("a")]; names.append(rows[0]); spark.sql(", ".join(names))
def drop(rows): spark.sql(" ".join(f"x = {each.name}" for each in rows))
def drop(names: list[str]): [spark.sql(f"DROP TABLE {name}") for name in names]
def drop(row, parts: list[Sql]): parts += row; spark.sql(" ".join(parts))
def drop(name: str): spark.sql(str(name))
def drop(name: str) -> Sql: return Sql(name)
def drop(row): return cast(Sql, row["name"])
def drop(row): return comparable(row["name"], "int")
def drop(row): return KeyRange(least=row["a"], greatest=Sql("1"))
def drop(row): self._sql_name: Sql = row["name"]
def drop(extra: Mapping[str, Sql]): [frame.where(name) for name in extra]
def drop(name: str): spark.table(name).writeTo(f"lake.{name}")
def drop(count: int, form: str): spark.sql(f"SELECT {count:{form}}")
"""
_RIGHT = """
spark.sql(f"DROP TABLE {quote(table.name)}")
f"UPDATE {self._sql_name} SET {staged.OP} = {literal(text)}"
raise TableRefused(f"The name {table.name} AS it is")
def drop(name: TableName, lsn: Lsn, i: int): spark.sql(f"DROP {name.sql} {lsn} {i} {staged.new(i)}")
def drop(name: str): s = "DROP TABLE " + quote(name); spark.sql(s)
def drop(rows): names = [quote("a")]; names.append(quote(rows[0])); spark.sql(", ".join(names))
def drop(rows): spark.sql(" ".join(f"x{i} = {quote(each.a)}" for i, each in enumerate(rows)))
def drop(where: Sql | None): where = where or Sql("true"); frame.where(where)
def drop(extra: Mapping[str, Sql]): [F.expr(extra.get(name, "NULL")) for name in names]
def drop(text): frame.where(F.col(text) == F.lit(text)).where(F.col(text).isNotNull())
"""


def test_the_rule_about_spark_sees_each_way_to_break_it() -> None:
    wrong = _WRONG.strip()
    assert unproved(wrong, _DECLARED) == list(range(1, 1 + len(wrong.splitlines())))
    assert not unproved(_RIGHT, _DECLARED)


def test_imported_names_and_names_that_mean_two_things_prove_nothing() -> None:
    source = 'from urllib.parse import quote\nspark.sql(f"DROP TABLE {quote(name)}")\n'
    assert unproved(source, _DECLARED) == [2]
    two = Declared(("def quote(name: str) -> Sql: ...", "def quote(name: str) -> str: ..."))
    assert unproved('spark.sql(f"DROP TABLE {quote(name)}")', two) == [1]
