"""The types that a user of the settings sees; checked by mypy, never run."""

from __future__ import annotations

from typing import Any, Literal, assert_type

from frazil.config import SettingInfo, Settings, describe, json_schema, load_settings
from frazil.units import format_bytes, format_duration, parse_bytes, parse_duration_s


def settings_have_plain_types(settings: Settings) -> None:
    """Sizes are int, durations are float, choices are literals."""
    assert_type(settings.data_dir, str)
    assert_type(settings.log.segment_bytes_max, int)
    assert_type(settings.log.sync_interval_s, float)
    assert_type(settings.log.sync, Literal["periodic", "commit"])
    assert_type(settings.topics.auto_create, bool)
    assert_type(settings.origins, dict[str, str])


def functions_return_what_they_say() -> None:
    """No Any leaks out, but the JSON Schema's."""
    assert_type(load_settings(file=None, environment={}, overrides={"log.sync": 1}), Settings)
    assert_type(describe(), tuple[SettingInfo, ...])
    assert_type(json_schema(), dict[str, Any])
    assert_type(parse_bytes("1MB"), int)
    assert_type(parse_duration_s("1s"), float)
    assert_type(format_bytes(1), str)
    assert_type(format_duration(1.0), str)
