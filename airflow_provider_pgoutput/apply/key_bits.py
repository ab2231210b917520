"""Many whole numbers as bits of words: a join by words finds the rows that hold one of them.

Looking a million scattered keys up in a hash table misses the processor's cache for each row of the target.
A word holds 64 neighbours, so there are fewer of them, Spark keeps those that lie closely in an array, and
rows in the order of their key look into one word after the other. What is not here: any other type of key,
and the statement itself (``write.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812 - its usual name

from airflow_provider_pgoutput.apply.names import Sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Lake types of such keys.
WHOLE_NUMBERS = frozenset({"int", "long"})
_WORD, _BITS = "word", "bits"


def words(keys: DataFrame, name: str) -> DataFrame:
    """The keys in column ``name``, none of them NULL, as the columns ``word`` and ``bits``."""
    key = F.col(name).cast("bigint")
    bit = F.call_function("shiftleft", F.lit(1).cast("bigint"), key.bitwiseAND(63).cast("int"))
    word = F.shiftright(key, 6).alias(_WORD)
    return keys.select(word, bit.alias("bit")).groupBy(_WORD).agg(F.bit_or("bit").alias(_BITS))


def condition(column: Sql, words_alias: Sql) -> Sql:
    """What a row of the target fulfils with the word that holds the value of its ``column``."""
    key = Sql(f"CAST({column} AS BIGINT)")
    bit = Sql(f"shiftright({words_alias}.{_BITS}, CAST({key} & 63 AS INT)) & 1")
    return Sql(f"shiftright({key}, 6) = {words_alias}.{_WORD} AND ({bit}) = 1")
