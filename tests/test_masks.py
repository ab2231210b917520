"""Masks as a manifest and the lake write them down."""

from __future__ import annotations

import dataclasses
import json

from airflow_provider_pgoutput.batch.shape import Shape
from airflow_provider_pgoutput.batch.table_version import Column, TableVersion
from airflow_provider_pgoutput.masks import (
    Mask,
    MaskedColumn,
    fingerprint,
    masks_from,
    masks_to_json,
    parse_masks,
)

SECRET = b"a secret of this test"


def test_a_mask_is_recorded_so_that_a_new_secret_shows() -> None:
    masks = parse_masks({"s.t.a": "hash", "s.t.b": "truncate( 4 )", "s.t.c.d": "drop"})
    recorded = [each.recorded(SECRET) for each in masks.values()]
    assert recorded == [f"hash {fingerprint(SECRET)}", "truncate(4)", "drop"]
    assert Mask("hash").recorded(b"another secret of this") != recorded[0]
    assert SECRET.decode() not in recorded[0]


def test_a_shape_keeps_the_masks() -> None:
    column = Column("a", 25, -1, "text", "string", attribute_number=2, mask="redact")
    version = TableVersion(1, "s", "t", "d", (column,), (), dropped=((3, "c"),))
    shape = dataclasses.replace(Shape.of(version), types=())
    masks = (MaskedColumn(2, "a", "redact"), MaskedColumn(3, "c", "drop"))
    assert shape.masks == masks
    assert Shape.from_json(shape.to_json()) == shape
    assert masks_from(json.loads(masks_to_json(masks))) == masks
