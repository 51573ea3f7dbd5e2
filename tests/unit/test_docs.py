"""The pages say what is true: examples run, links lead somewhere, quoted numbers are the code's."""

from __future__ import annotations

import importlib
import re
import shlex
import struct
from pathlib import Path

import pytest
from typer.main import get_command

import frazil
from frazil.config import describe
from frazil.errors import CODES
from frazil.log import Footer, TopicEntry, decode_checkpoint, decode_footer, decode_sections
from frazil.log import format as fmt
from frazil.model import TopicSpec

ROOT = Path(__file__).resolve().parents[2]
LOG_PAGE = ROOT / "docs" / "internals" / "log.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
RUNNABLE = ("README.md", "docs/quickstart.md")
GOLDEN = ROOT / "tests" / "data" / "format-1" / "journal"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE_SPAN = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FIELD_ROW = re.compile(r"^\| (\d+) \| (\d+) \| (\w+) \|", re.MULTILINE)
_CONSTANT_ROW = re.compile(r"^\| `([A-Z_]+)` \| (\d+) \|", re.MULTILINE)
_KIND_ROW = re.compile(r"^\| (\d) \| (\w+) \| (yes|no) \|", re.MULTILINE)
_SETTING_ROW = re.compile(r"^\| `([a-z_.]+)` \| `([^`]+)` \|", re.MULTILINE)
_ERROR_ROW = re.compile(r"^\| `(\w+)` \| (\d) \|", re.MULTILINE)


def section(heading: str) -> str:
    """Return the text of log.md from one heading to the next of the same or a higher level."""
    text = LOG_PAGE.read_text("utf-8")
    level = heading.split(" ", maxsplit=1)[0]
    start = text.index(f"\n{heading}\n") + 1
    rest = text[start + len(heading) :]
    end = re.search(rf"^#{{1,{len(level)}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def python_blocks(text: str) -> list[str]:
    """Return the Python examples of a page."""
    return [block for language, block in _BLOCK.findall(text) if language == "python"]


def fields_of(text: str) -> list[tuple[int, int, str]]:
    """Return (position, bytes, field) of the rows of a byte table."""
    return [(int(at), int(size), name) for at, size, name in _FIELD_ROW.findall(text)]


def spans_of(layout: struct.Struct) -> list[tuple[int, int]]:
    """Return (position, bytes) of each field of a struct."""
    spans: list[tuple[int, int]] = []
    at = 0
    for code in re.findall(r"\d*[a-zA-Z]", layout.format):
        size = struct.calcsize(f"<{code}")
        spans.append((at, size))
        at += size
    return spans


def anchors_of(path: Path) -> set[str]:
    """Return the anchors of a page's headings, made as the usual viewers make them."""
    text = _ANY_BLOCK.sub("", path.read_text("utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in _HEADING.findall(text)
    }


# -- examples ------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", RUNNABLE)
def test_examples_run(page, tmp_path, monkeypatch):
    """Every Python block of the page runs, one after another, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks((ROOT / page).read_text("utf-8"))
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page} block {number}", "exec"), names)
    assert (tmp_path / "data" / "journal").is_dir()


def page_reader():
    """Return the functions of the reader that log.md prints."""
    blocks = python_blocks(section("## A small reader"))
    assert len(blocks) == 1
    names: dict[str, object] = {}
    exec(compile(blocks[0], "log.md", "exec"), names)
    return names


def test_the_pages_reader_gives_what_was_published(tmp_path):
    """The reader that log.md prints finds every record, over rotation, a restart and a new segment."""
    sent: dict[int, list[bytes]] = {}
    options = {"log.segment_bytes_max": "2MiB", "log.write_bytes_max": "1MiB"}
    for turn in range(3):
        with frazil.open(tmp_path, **options) as db:
            for name in ("a", "b"):
                topic = db.create_topic(name, exist_ok=True)
                payloads = [b"%d-%d" % (turn, n) + bytes(9000) for n in range(100)]
                topic.append_many(payloads)
                sent.setdefault(topic.runtime.state.id, []).extend(payloads)
    reader = page_reader()
    found: dict[int, list[bytes]] = {}
    lsn = 0
    for head, payload in reader["journal"](tmp_path / "journal"):
        assert head[10] == lsn + (head[3] not in {6, 7})
        lsn = head[10]
        if head[3] == fmt.KIND_ROWS:
            assert head[5] == fmt.FLAG_PLAIN
            assert head[0] == len(found.get(head[7], []))
            found.setdefault(head[7], []).extend(reader["plain"](head, payload))
    assert len(list((tmp_path / "journal").glob("*.seg"))) > 1
    assert found == sent


# -- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_resolve(page):
    """Every relative link of the page names a file, and its anchor a heading of that file."""
    text = _CODE_SPAN.sub("", _ANY_BLOCK.sub("", page.read_text("utf-8")))
    broken: list[str] = []
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert not broken


def commands_of(page: str) -> list[list[str]]:
    """Return the calls of `frazil` in the plain blocks of a page, as words."""
    text = (ROOT / page).read_text("utf-8")
    blocks = [block for language, block in _BLOCK.findall(text) if not language]
    calls = [line.partition("frazil ") for block in blocks for line in block.splitlines()]
    return [shlex.split(call) for _, found, call in calls if found]


@pytest.mark.parametrize("page", RUNNABLE)
def test_commands_exist(page):
    """Every command and option of `frazil` that the page shows is one of the command line."""
    root = get_command(importlib.import_module("frazil.cli.app").app)
    calls = commands_of(page)
    assert len(calls) >= 5
    for words in calls:
        command, options = root, {name for param in root.params for name in param.opts}
        for word in words:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
                options |= {name for param in command.params for name in param.opts}
        assert not getattr(command, "commands", {}), words
        assert {word for word in words if word.startswith("--")} <= options, words


def test_every_page_of_a_decision_says_why_and_what_follows():
    """Each decision has its number in order, and the sections context, decision, consequences."""
    pages = sorted((ROOT / "docs" / "adr").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text("utf-8")
        assert text.startswith(f"# {int(page.name[:4])}. "), page.name
        found = re.findall(r"^## (.*)$", text, re.MULTILINE)
        assert found == ["Context", "Decision", "Consequences"], page.name


# -- the numbers of log.md -----------------------------------------------------------------------


def test_constants_are_the_codes():
    """Each constant that log.md quotes has the value of `frazil.log.format`."""
    quoted = _CONSTANT_ROW.findall(section("## Limits"))
    assert len(quoted) >= 10
    assert {name: int(value) for name, value in quoted} == {
        name: getattr(fmt, name) for name, _ in quoted
    }


def test_magics_are_the_codes():
    """Magic words stand in log.md as they stand in the files."""
    assert f"`{fmt.SEGMENT_MAGIC.decode()}`" in section("### Segment header")
    assert f"`{fmt.FOOTER_MAGIC.decode()}`" in section("## Footer")


def test_kinds_are_the_codes():
    """The table of kinds has all kinds with their numbers and names."""
    rows = _KIND_ROW.findall(section("### Kinds"))
    assert {int(kind): name for kind, name, _ in rows} == fmt.KIND_NAMES
    without = {int(kind) for kind, _, takes in rows if takes == "no"}
    assert without == {fmt.KIND_CHECKPOINT, fmt.KIND_MARKER}


def test_the_segment_header_lies_as_drawn():
    """The fields of the segment header have the positions and sizes of log.md."""
    fields = fields_of(section("### Segment header"))
    drawn = [(at, size) for at, size, _ in fields]
    spans = spans_of(fmt.SEGMENT_HEADER)
    used = fmt.SEGMENT_HEADER.size
    rest = fmt.SEGMENT_HEADER_BYTES - 4
    assert drawn == [*spans, (used, rest - used), (rest, 4)]
    header = fmt.SegmentHeader(b"j" * 16, 7, b"s" * 8, 5, 6, 4096, 99, 1234)
    data = fmt.encode_segment_header(header)
    at = {name: (position, size) for position, size, name in fields}
    for name in ("segment", "generation", "previous_segment", "previous_length", "previous_lsn"):
        position, size = at[name]
        value = int.from_bytes(data[position : position + size], "little")
        assert value == getattr(header, name)


def test_the_frame_lies_as_drawn():
    """The fields of a frame have the positions, sizes and names of log.md."""
    text = section("## Frame").partition("**Runs**")[0]
    fields = fields_of(text)
    assert [(at, size) for at, size, _ in fields] == spans_of(fmt.FRAME_HEAD)
    assert [name for _, _, name in fields] == list(fmt.FrameHead._fields)


def test_runs_and_trailer_lie_as_drawn():
    """Producer runs and the trailer have the positions and sizes of log.md."""
    runs = fields_of(section("## Frame").partition("**Runs**")[2].partition("### Kinds")[0])
    assert [(at, size) for at, size, _ in runs] == spans_of(fmt.RUN)
    assert [name for _, _, name in runs] == list(fmt.Run._fields)
    trailer = fields_of(section("## Footer"))
    assert [(at, size) for at, size, _ in trailer] == spans_of(fmt.TRAILER)


def test_lists_of_footer_and_checkpoint_are_complete():
    """Footer fields, checkpoint sections and keys of a definition are those that log.md names."""
    footer = re.sub(r"\s+", " ", section("## Footer"))
    names = ["time" if name == "time_us" else name for name in Footer.__struct_fields__]
    assert f"[{', '.join(names)}]" in footer
    assert f"[[{', '.join(TopicEntry.__struct_fields__)}], …]" in footer
    data = next(p for h, p in page_reader()["journal"](GOLDEN) if h[3] == fmt.KIND_CHECKPOINT)
    tags = {
        int(tag) for tag in re.findall(r"^\| (\d) \|", section("### checkpoint (6)"), re.MULTILINE)
    }
    assert {tag for tag, _ in decode_sections(data)} == tags
    assert decode_checkpoint(data).segment_first >= 1
    keys = section("### topic (4)")
    missing = [name for name in TopicSpec.__struct_fields__ if name not in keys]
    assert not missing


def test_a_sealed_file_ends_as_drawn():
    """From the last 24 bytes of a sealed file the footer is found where log.md says."""
    for path in sorted(GOLDEN.glob("*.seg")):
        data = path.read_bytes()
        if data[-8:] == fmt.FOOTER_MAGIC:
            position, length, _crc = struct.unpack_from("<QII", data, len(data) - 24)
            footer = decode_footer(data[len(data) - 24 - length : -24])
            assert footer.body_end == position
            return
    pytest.fail("the golden journal has no sealed segment")


def test_message_columns_are_the_codes(tmp_path):
    """The columns of messages stand in log.md in their order."""
    text = re.sub(r"\s+", " ", section("### arrow (1)"))
    with frazil.open(tmp_path) as db:
        names = db.create_topic("m").schema.names
    places = [text.index(f"`{name} ") for name in names]
    assert places == sorted(places)


# -- the numbers of the other pages --------------------------------------------------------------


def test_defaults_are_the_codes():
    """Each default that configuration.md quotes is the default, and every section is there."""
    known = {info.path: info.shown(info.default) for info in describe()}
    quoted = dict(_SETTING_ROW.findall((ROOT / "docs" / "configuration.md").read_text("utf-8")))
    assert {key: known.get(key) for key in quoted} == quoted
    assert {key.partition(".")[0] for key in quoted} == {key.partition(".")[0] for key in known}


def test_exit_codes_are_the_codes():
    """The errors of quickstart.md have the exit codes of the error table."""
    rows = _ERROR_ROW.findall((ROOT / "docs" / "quickstart.md").read_text("utf-8"))
    codes = {cls.__name__: codes.exit for cls, codes in CODES.items()}
    assert len(rows) >= 7
    assert {name: int(code) for name, code in rows} == {name: codes[name] for name, _ in rows}


def test_words_are_sorted_and_have_one_meaning():
    """The glossary is in order, and no word comes twice."""
    text = (ROOT / "docs" / "glossary.md").read_text("utf-8").partition("\n## ")[0]
    words = [row.split("|")[1].strip() for row in text.splitlines() if row.startswith("| ")][1:]
    assert words == sorted(set(words), key=str.lower)
    assert len(words) <= 45


def test_the_checked_example_is_the_readmes():
    """Mypy checks the README's Python example as it stands there."""
    [example] = python_blocks((ROOT / "README.md").read_text("utf-8"))
    assert example in (ROOT / "tests" / "typing" / "check_readme.py").read_text("utf-8")


def test_the_map_names_what_exists():
    """Every package and module that architecture.md names is there, and the page stays a page."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    assert len(text.splitlines()) <= 250
    source = ROOT / "src" / "frazil"
    named = {span.strip("`") for span in _CODE_SPAN.findall(text)}
    paths = {name for name in named if re.fullmatch(r"[a-z_/]+(\.py|/)", name)}
    assert len(paths) > 15
    missing = {
        name for name in paths if not (source / name).exists() and not (ROOT / name).exists()
    }
    assert not missing
