"""Which columns of a table can be compared."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_provider_pgoutput.batch.table_version import Column
from airflow_provider_pgoutput.masks import TRUNCATE, recorded_mask

if TYPE_CHECKING:
    from airflow_provider_pgoutput.batch.earlier_systems import EarlierTable
    from airflow_provider_pgoutput.capture.source.catalog import PublishedTable
    from airflow_provider_pgoutput.proof.lake_rows import LakeRows

log = logging.getLogger(__name__)


def columns_of_both(
    table: PublishedTable,
    lake: LakeRows,
    earlier: EarlierTable | None,
    mask_secret: bytes | None,
    *,
    cuts_as_lake: bool,
) -> tuple[list[Column], list[str], tuple[str, ...]]:
    """The columns that both sides have, their names in the lake, and the columns that are left out.

    Those are the columns that the lake does not have yet, and some masked ones, see ``_can_mask``.

    :param earlier: see ``Comparison``.
    :param mask_secret: the secret of masks that hash; None: it was not given.
    :param cuts_as_lake: whether the source cuts texts at the same places as the mask ``truncate``.
    """
    columns, names, left_out = [], [], []
    by_number = {each.number: each.mask for each in lake.masks}
    by_name = {each.name: each.mask for each in lake.masks if not each.number}
    before = {} if earlier is None else {now: then for then, now in earlier.numbers}
    for each in table.columns:
        number = each.attribute_number
        mask = by_number.get(number, by_name.get(each.name))
        if mask is not None and not _can_mask(table, mask, mask_secret, cuts_as_lake=cuts_as_lake):
            left_out.append(each.name)
            continue
        found = lake.fields.get(before.get(number, number))
        if found is None and not lake.fields:
            found = lake.by_name.get(each.name)
        if found is None:
            left_out.append(each.name)
            continue
        kind = each.type_oid, each.type_modifier
        columns.append(Column(each.name, *kind, "", found.lake_type, mask=mask))
        names.append(found.name)
    return columns, names, tuple(left_out)


def _can_mask(
    table: PublishedTable, recorded: str, mask_secret: bytes | None, *, cuts_as_lake: bool
) -> bool:
    """Whether the source can make the masked values of a column, and the lake has any.

    :param recorded: see ``Mask.recorded``.
    """
    mask = recorded_mask(recorded, mask_secret)
    if mask is None and mask_secret is not None:
        log.warning(
            "A hashed column of %s is not compared: mask_conn_id has another secret than the lake's rows.",
            table.name,
        )
    if mask is None or not mask.is_text:
        return False
    return mask.kind != TRUNCATE or cuts_as_lake
