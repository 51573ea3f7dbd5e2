"""Schemas and the conversion of records: types, columns, rows, messages, changes."""

from __future__ import annotations

from frazil.schema.arrow_input import ArrowInput, raw_batches, to_batches
from frazil.schema.columns import (
    LIMITS_DEFAULT,
    IngestLimits,
    column_id,
    column_of,
    declare_schema,
    field_with_ids,
    ids_of,
    infer_schema,
    last_id,
    parse_field,
    parse_type,
    schema_with,
    strip_ids,
    type_name,
)
from frazil.schema.debezium import UNAVAILABLE, DebeziumReader, RawChange
from frazil.schema.evolution import (
    AddColumn,
    Change,
    DropColumn,
    RenameColumn,
    WidenColumn,
    evolve,
    plan_read,
)
from frazil.schema.json_rows import JsonRowReader, parse_csv_row, parse_json_row
from frazil.schema.keys import BLOCK_ENTRIES, ID_KEYS, Key, KeyFile, KeyMap, KeyShape
from frazil.schema.messages import (
    MESSAGE_SCHEMA,
    Message,
    check_attributes,
    check_message,
    message_batch,
    pack_messages,
    payload_batch,
    unpack_messages,
)
from frazil.schema.partitioning import parse_partition_spec, partition_spec_text
from frazil.schema.present import BitmapMoves, bitmap_bytes, bitmap_of, positions_of
from frazil.schema.routing import (
    key_names,
    part_of_row,
    part_of_text,
    part_of_values,
    parts_of_batch,
)
from frazil.schema.rows import Row, RowEncoder, cell_check, check_cell, join_packed
from frazil.schema.stored_form import stored_forms

__all__ = [
    "BLOCK_ENTRIES",
    "ID_KEYS",
    "LIMITS_DEFAULT",
    "MESSAGE_SCHEMA",
    "UNAVAILABLE",
    "AddColumn",
    "ArrowInput",
    "BitmapMoves",
    "Change",
    "DebeziumReader",
    "DropColumn",
    "IngestLimits",
    "JsonRowReader",
    "Key",
    "KeyFile",
    "KeyMap",
    "KeyShape",
    "Message",
    "RawChange",
    "RenameColumn",
    "Row",
    "RowEncoder",
    "WidenColumn",
    "bitmap_bytes",
    "bitmap_of",
    "cell_check",
    "check_attributes",
    "check_cell",
    "check_message",
    "column_id",
    "column_of",
    "declare_schema",
    "evolve",
    "field_with_ids",
    "ids_of",
    "infer_schema",
    "join_packed",
    "key_names",
    "last_id",
    "message_batch",
    "pack_messages",
    "parse_csv_row",
    "parse_field",
    "parse_json_row",
    "parse_partition_spec",
    "parse_type",
    "part_of_row",
    "part_of_text",
    "part_of_values",
    "partition_spec_text",
    "parts_of_batch",
    "payload_batch",
    "plan_read",
    "positions_of",
    "raw_batches",
    "schema_with",
    "stored_forms",
    "strip_ids",
    "to_batches",
    "type_name",
    "unpack_messages",
]
