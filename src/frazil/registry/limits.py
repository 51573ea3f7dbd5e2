"""How much a schema registry holds: every limit has a number, and stands here."""

from __future__ import annotations

from typing import Final

DEFINITION_BYTES_MAX: Final = 1 << 20
SUBJECTS_MAX: Final = 10_000
VERSIONS_MAX: Final = 1_000
"""Versions that one subject has at a time."""
VERSION_NUMBER_MAX: Final = (1 << 32) - 1
SCHEMA_ID_MAX: Final = (1 << 53) - 1
"""Every client keeps such an id exactly, those with floating-point numbers too."""
TOPICS_MAX: Final = 100_000

SUBJECT_CHARACTERS_MAX: Final = 255
NAME_BYTES_MAX: Final = 960
"""Of a subject's or a topic's name in UTF-8: the key of an entry has at most 1,024 bytes."""
TOPIC_CHARACTERS_MAX: Final = 512
DESCRIPTION_CHARACTERS_MAX: Final = 4_096
AUTHOR_CHARACTERS_MAX: Final = 255
TAGS_MAX: Final = 32
TAG_CHARACTERS_MAX: Final = 128

ENTRY_BYTES_MAX: Final = 1 << 20
"""Of one entry, its definition compressed."""

NESTING_MAX: Final = 64
"""Levels of a definition: types in types, messages in messages, JSON values in JSON values;
of a payload of JSON, too."""
AVRO_TEXT_NESTING_MAX: Final = 3 * NESTING_MAX
"""A level of Avro types is up to three levels of JSON: a type, its fields, a field."""
PAYLOAD_NESTING_MAX: Final = 100
"""Of Avro and Protobuf."""
PATTERN_UNITS_MAX: Final = 1_000_000
"""Of work, in microseconds: to read all patterns of a definition."""
WORK_UNITS_MAX: Final = 400_000
"""Of the check of one payload. A unit is about a microsecond, so that is well under a second."""
DEFINITION_UNITS_MAX: Final = 400_000
"""Of what grows faster than a definition when it is read: defaults of Avro, names in names."""
COMPARISON_UNITS_MAX: Final = 500_000
"""Of the comparison of two definitions, in both directions together if the mode is `full`."""
PROTOBUF_WORDS_MAX: Final = 250_000
"""Words and signs of a .proto text: those of a megabyte that somebody wrote are fewer."""
TYPE_NAME_CHARACTERS_MAX: Final = 1_024
"""Of the full name of a type of Avro or Protobuf, or of a field."""

REASONS_MAX: Final = 100
"""Reasons told of one comparison; one more line says how many there are besides."""
DEFINITIONS_CACHED_MAX: Final = 256
"""Parsed definitions that are kept for the checks of payloads."""
DEFINITIONS_CACHED_BYTES_MAX: Final = 8 << 20
"""Of the texts of those: what is parsed takes up to a hundred times the room."""
