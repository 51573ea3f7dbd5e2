"""The doctor reads the files of the disk tier and says which are damaged."""

from __future__ import annotations

import frazil
from frazil.config import load_settings
from frazil.engine import examine
from frazil.fs import RealFileSystem


def report_of(path):
    settings = load_settings(overrides={"data_dir": str(path)})
    return examine(settings, file_system=RealFileSystem())


def test_the_doctor_names_the_file_with_a_flipped_bit(tmp_path):
    """Whole files are counted and left alone; a flipped bit in a page is damage with its file."""
    with frazil.open(tmp_path / "d") as db:
        topic = db.create_topic("t", {"id": "long", "text": "string"})
        topic.append_many([{"id": n, "text": f"text {n * 7919}"} for n in range(2000)])
        db.tiers.flush()
        [file] = db.tiers.describe_files("t")
    report = report_of(tmp_path / "d")
    assert (report.files, report.health) == (1, "ok")
    [path] = (tmp_path / "d" / "disk").rglob(file["file"])
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    report = report_of(tmp_path / "d")
    assert report.health == "damaged"
    assert any(file["file"] in finding.what for finding in report.findings)
    assert path.read_bytes() == bytes(data)
