"""The documentation site opened as files: docs/search_from_files.js stands for the worker that browsers refuse there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "search_from_files.js"

pytestmark = pytest.mark.process


def test_a_worker_of_a_file_answers_later_and_with_copies(tmp_path: Path, browser: Any) -> None:
    """What is asked before its script is there waits; an answer never comes within the question, or pages would ask for ever."""
    (tmp_path / "search.js").write_text(SCRIPT.read_text())
    (tmp_path / "worker.js").write_text("self.onmessage = ({ data }) => { data.push('seen'); self.postMessage(data) }")
    (tmp_path / "page.html").write_text("<!doctype html><script src='search.js'></script><body>")
    tab = browser.new_page()
    tab.goto(f"file://{tmp_path}/page.html")
    said = tab.evaluate(
        """() => new Promise(done => {
            const worker = new Worker("worker.js"), asked = [], answers = [];
            let asking = false;
            worker.onmessage = ({ data }) => {
                answers.push([data, asking]);
                if (answers.length < 2) {
                    asking = true; worker.postMessage(asked); asking = false;
                } else {
                    worker.terminate(); done([asked, answers, document.querySelectorAll("iframe").length]);
                }
            };
            asked.push("first"); worker.postMessage(asked);
        })"""
    )
    assert said == [["first"], [[["first", "seen"], False], [["first", "seen"], False]], 0]
    tab.close()
