"""Theme and language are kept between runs, where settings belong; a file that is something else is told and ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from gt.monitor.top.settings import MAX_FILE_BYTES, UNSET_SETTINGS, Settings, place, read, write


def test_what_was_chosen_is_there_the_next_time(tmp_path: Path) -> None:
    file = tmp_path / "new" / "gt" / "top.json"
    assert read(file) == (UNSET_SETTINGS, "")
    write(file, Settings("gt-light", "zh"))
    assert read(file) == (Settings("gt-light", "zh"), "")
    write(file, Settings("", "en"))
    assert read(file) == (Settings("", "en"), "")
    assert [each.name for each in file.parent.iterdir()] == ["top.json"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'"zh"', b"null", b"\xff\xfe", b"[" * 100_000, b'{"theme": "' + b"x" * MAX_FILE_BYTES + b'"}'],
    ids=["nothing", "cut", "list", "text", "null", "no text", "deep", "long"],
)
def test_a_file_that_is_something_else_is_one_line_and_nothing_more(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "top.json"
    file.write_bytes(content)
    kept, wrong = read(file)
    assert kept == UNSET_SETTINGS
    assert wrong.startswith(f"{file} is ignored: ")
    assert "\n" not in wrong
    write(file, Settings("gt-dark", ""))
    assert read(file) == (Settings("gt-dark", ""), "")


def test_a_folder_in_its_place_is_one_line(tmp_path: Path) -> None:
    assert read(tmp_path) == (UNSET_SETTINGS, f"{tmp_path} cannot be read and is ignored: Is a directory")


def test_languages_that_are_not_spoken_and_other_keys_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "top.json"
    file.write_text('{"language": "tlh", "theme": "nord", "colour": 7}')
    assert read(file) == (Settings("nord", ""), "")


@pytest.mark.parametrize(("folder", "path"), [("/set", "/set/gt/top.json"), ("relative", None), ("", None)])
def test_it_is_where_settings_belong(folder: str, path: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", folder)
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(place()) == (path or "/home/ada/.config/gt/top.json")
