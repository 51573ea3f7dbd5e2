"""The tiers above the log: memory, then files on disk; when data moves, and who must wait."""

from __future__ import annotations
