"""The log: durable order. Frames, segments, recovery, the journal and its readers."""

from __future__ import annotations
