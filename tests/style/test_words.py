"""The words that docs/glossary.md refuses stand nowhere in code, tests and pages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"


def refused() -> re.Pattern[str]:
    """Return a pattern of the words in bold below the glossary's second heading."""
    words = re.findall(r"\*\*(.+?)\*\*", GLOSSARY.read_text(encoding="utf-8"))
    assert len(words) > 10
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)


def test_refused_words_stand_nowhere():
    """Docstrings, comments, messages, names of tests and pages use the field's words."""
    pattern, found = refused(), []
    pages = [path for path in (ROOT / "docs").rglob("*.md") if path != GLOSSARY]
    code = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py")]
    for path in (*pages, *code):
        lines = path.read_text(encoding="utf-8").replace("_", " ").splitlines()
        found += [
            f"{path.relative_to(ROOT)}:{n}"
            for n, line in enumerate(lines, 1)
            if pattern.search(line)
        ]
    assert not found


def test_a_refused_word_is_found():
    """The pattern finds a word in a sentence and in a name, and leaves others alone."""
    assert refused().search("an operator is " + "to" + "ld")
    assert refused().search("Bi" + "rth of a segment")
    assert not refused().search("withold the doorway; reborn")
