"""The documents say what is so: tables are whole, names and paths exist, and what is printed in them is what prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from builders import Lines
from protocol_document import ATTRIBUTE_FORMS, BULK_KINDS, NUMBERS, SECTIONS, marked
from protocol_example import X, run_example

from gt import bounds
from gt.client.session.replies import MESSAGES as CLIENT_MESSAGES
from gt.commands.ops import ops_page, ops_rows
from gt.dispatcher.message_table import HANDLERS
from gt.dispatcher.planner.choice_cache import ResidentPlacement
from gt.dispatcher.planner.planner import Planner
from gt.dispatcher.planner.policy import resolve
from gt.dispatcher.state.message_state import message_states_page
from gt.ir.attributes import ATTRIBUTE_KINDS
from gt.sharding.config import Config, load, parse
from gt.sharding.placement import uniform_mesh
from gt.wire import bulk, messages, reliable_stream
from gt.wire.messages.documentation import text_of
from gt.worker.execution import plan_state
from gt.worker.message_table import SENDERS, Sender
from gt.worker.shell import CONNECTION_HANDLERS

REPOSITORY = Path(__file__).parent.parent
DOCUMENTS = (
    "README.md",
    "docs/architecture.md",
    "docs/array-api.md",
    "docs/compiling.md",
    "docs/configs.md",
    "docs/debugging.md",
    "docs/multi-user.md",
    "docs/observing.md",
    "docs/operating.md",
    "docs/ops.md",
    "docs/porting.md",
    "docs/protocol.md",
    "docs/quantization.md",
    "docs/services.md",
    "docs/top.md",
)
ROOMS = ("gt", "client", "dispatcher", "monitor", "worker")
SOURCES = "\n".join(path.read_text() for room in ROOMS for path in sorted((REPOSITORY / room).rglob("*.py")))
WORDS = set(re.findall(r"\w+", SOURCES))

MAX_TERMS = 40
"""Terms of the glossary: a reader who knows the field need learn no more."""
FOLDERS = (*ROOMS, "tests", "benchmarks", "examples", "configs", "docs")
FILES = sorted({path for room in FOLDERS for path in (REPOSITORY / room).rglob("*.*")} | set(REPOSITORY.glob("*.*")))
FILE_NAMES = {path.name for path in FILES}
# Files that a page has the reader write.
FILE_NAMES |= {
    name
    for path in FILES
    if path.suffix == ".md"
    for name in re.findall(r'^ *```.* title="([^"]+)"', path.read_text(), flags=re.MULTILINE)
}
WHOLE_PATH = re.compile(rf"(?<![\w./~-])((?:{'|'.join(FOLDERS)})/[\w/.-]*\w\.(?:py|md))\b")
BARE_NAME = re.compile(r"`([\w.-]+\.py)`")
# History names what was there at the time; these tests of rules about files make some up.
UNREAD = {"CHANGELOG.md", "test_docs.py", "test_layers.py", "test_site.py"}

# What is in backticks and is no name in the sources.
ELSEWHERE = {"KeyboardInterrupt", "OPENBLAS_NUM_THREADS", "z"}


def read(document: str) -> str:
    return (REPOSITORY / document).read_text()


def table(document: str, heading: str) -> list[tuple[str, ...]]:
    """The cells of the first table under a heading, without its head."""
    section = read(document).split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    return [tuple(cell.strip() for cell in row.strip("|").split("|")) for row in rows[2:]]


def quoted(document: str) -> list[str]:
    """What stands in backticks, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", read(document), flags=re.DOTALL))


def components(of: str, to: str) -> set[type]:
    """The messages that one component sends another, as their docstrings say."""
    return {
        kind
        for kind in messages.CODES
        if any(of in route.senders and to in route.receivers for route in text_of(kind).routes)
    }


def test_the_messages_go_where_those_who_act_on_them_say() -> None:
    """What a message's docstring says of its way is what the tables of dispatcher, worker and client accept."""
    for role, handled in HANDLERS.items():
        assert components(role, "dispatcher") == {*handled, messages.Hello}
    kinds = set(messages.CODES)
    told = {kind for kind, sender in SENDERS.items() if sender is Sender.DISPATCHER} | {*CONNECTION_HANDLERS}
    assert components("dispatcher", "worker") == told & kinds
    assert components("worker", "worker") == {kind for kind, sender in SENDERS.items() if sender is Sender.PEER}
    assert components("dispatcher", "client") == {*CLIENT_MESSAGES, messages.Ping}
    assert {end for kind in kinds for route in text_of(kind).routes for ends in route for end in ends} == {
        "dispatcher",
        *HANDLERS,
    }


@pytest.mark.parametrize("name", SECTIONS)
def test_the_protocol_page_has_what_the_sources_say(name: str) -> None:
    printed = marked(name).search(read("docs/protocol.md"))
    assert printed is not None
    assert printed[1] == SECTIONS[name](), "write it anew: python tests/protocol_document.py"


def test_the_protocol_page_knows_every_bound_number_and_bulk_message() -> None:
    """What is listed by hand, to be explained, is all that there is."""
    assert {each.name for each in bounds.BOUNDS} == {name for name in vars(bounds) if name.startswith("MAX_")}
    whole = {name: value for name, value in vars(reliable_stream).items() if name.isupper() and type(value) is int}
    assert {name for name, value in whole.items() if value == 0 or value >= 1 << 63} == set(NUMBERS)
    assert [getattr(bulk, name) for name in BULK_KINDS] == list(range(len(BULK_KINDS)))
    assert set(ATTRIBUTE_FORMS) == set(ATTRIBUTE_KINDS)


def test_the_example_in_the_protocol_page_computes() -> None:
    """The bytes in the page are those of a session that gets the right values."""
    (values,) = run_example().values
    np.testing.assert_array_equal(values, 0.5 - X)


def test_the_config_in_the_protocol_page_is_one() -> None:
    (text,) = re.findall(r"`(\{\"config\": .*?\})`", read("docs/protocol.md").replace("\n", " "))
    wire = json.loads(text)
    assert Config.from_wire(wire).to_wire() == wire


def test_the_glossary_is_short_and_in_order_and_each_of_its_terms_is_in_the_sources() -> None:
    terms = [row[0] for row in table("docs/architecture.md", "Glossary")]
    assert terms == sorted(set(terms))
    assert len(terms) <= MAX_TERMS
    known = {word.lower() for word in re.findall(r"[A-Za-z]+", SOURCES)}
    assert [term for term in terms if not set(re.split("[ -]", term)) <= known] == []


def test_the_states_of_a_plan_are_those_of_the_code() -> None:
    printed = re.search(
        r"<!-- worker plan states -->\n(.*?)\n<!-- end -->", read("docs/architecture.md"), flags=re.DOTALL
    )
    assert printed is not None
    assert printed[1] == plan_state.table(), "write it anew: python -m gt.worker.execution.plan_state"


def test_every_table_has_rows_of_one_length() -> None:
    for document in DOCUMENTS:
        width = 0
        for line in read(document).splitlines():
            cells = len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", line))) if line.startswith("|") else 0
            assert not (cells and width) or cells == width, f"{document}: {line}"
            width = cells


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_that_is_named_exists(document: str) -> None:
    paths = {text for text in quoted(document) if re.fullmatch(r"[\w./-]+(/|\.(py|md|yaml|toml))", text)}
    paths |= {str(Path(document).parent / link) for link in re.findall(r"\]\(([^):]+)\)", read(document))}
    assert [path for path in sorted(paths) if not (REPOSITORY / path).exists()] == []


def missing_files(path: Path, text: str) -> list[str]:
    """The Python files and documents that a file names and that are not there, each with its line.

    Whole paths count anywhere; a bare `name.py` in backticks stands for a file of the same folder, in a document for any.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        named = [name for name in WHOLE_PATH.findall(line) if not (REPOSITORY / name).exists()]
        for name in BARE_NAME.findall(line):
            known = name in FILE_NAMES if path.suffix == ".md" else (path.parent / name).exists()
            named += [] if known else [name]
        found += [f"{path.relative_to(REPOSITORY)}:{number}: {name}" for name in named]
    return found


def test_every_file_that_sources_and_documents_name_exists() -> None:
    """Renamed files leave their old names in docstrings, comments and documents."""
    texts = {
        path: path.read_text() for path in FILES if path.suffix in (".py", ".pyi", ".md") and path.name not in UNREAD
    }
    assert [each for path, text in texts.items() for each in missing_files(path, text)] == []


def test_a_file_that_is_named_and_is_not_there_is_found() -> None:
    here, folder = REPOSITORY / "gt" / "ir", "gt/ir/"
    text = f"see `ops.py`, `gone.py` and\n# {folder}gone.py:31, not {folder}ops.py"
    assert missing_files(here / "spec.py", text) == ["gt/ir/spec.py:1: gone.py", f"gt/ir/spec.py:2: {folder}gone.py"]
    assert missing_files(here / "x.md", "`gone.py`, `ops.py`, my/gt/ir/gone.py") == ["gt/ir/x.md:1: gone.py"]


@pytest.mark.parametrize("document", [*DOCUMENTS[:2], "docs/protocol.md"])
def test_every_name_in_the_text_is_a_name_in_the_sources(document: str) -> None:
    names = {text for text in quoted(document) if re.fullmatch(r"[A-Za-z_][\w.]*(\(\))?", text)}
    parts = {part for name in names for part in name.removesuffix("()").split(".") if not (REPOSITORY / name).exists()}
    assert sorted(parts - WORDS - ELSEWHERE) == []


def test_the_page_of_ops_is_current() -> None:
    assert read("docs/ops.md") == ops_page(), "write it anew: gt ops --markdown > docs/ops.md"


def test_no_facet_of_an_op_is_missing() -> None:
    assert [row for row in ops_rows() if "missing" in row] == []


def test_the_plan_in_the_architecture_page_is_what_the_planner_prints() -> None:
    printed = re.search(r"```\n(%0 .*?)\n```", read("docs/architecture.md"), flags=re.DOTALL)
    assert printed is not None
    lines = Lines()
    x = lines.input(64, 64)
    layers = [
        (("batch", "hidden"), lines.input(128, 64), lines.input(128)),
        (("batch", "hidden2"), lines.input(64, 128), lines.input(64)),
    ]
    for signal, weight, bias in layers:
        turned = lines.op("permute", weight, signal=signal, axes=(1, 0))
        product = lines.op("matmul", x, turned, signal=signal)
        x = lines.op("relu", lines.op("add", product, bias, signal=signal), signal=signal)
    segment = lines.segment(x)
    config = load(REPOSITORY / "configs" / "digits.yaml")
    mesh = uniform_mesh(1, config.mesh_for(4), (0, 1, 2, 3))
    planner = Planner(mesh, resolve(config, mesh))
    first = planner.plan(
        segment, (ResidentPlacement(mesh.replicated), *[ResidentPlacement(mesh.replicated, param=True)] * 4)
    )
    assert str(planner.plan(segment, first.inputs).plan) == printed[1]


def test_the_states_of_a_message_in_the_architecture_page_are_those_of_the_sources() -> None:
    begin, end = "<!-- message states: generated -->\n", "\n<!-- end of message states -->"
    assert read("docs/architecture.md").split(begin)[1].split(end)[0] == message_states_page()


def test_the_configs_in_the_readme_are_right() -> None:
    program, patterns = re.findall(r"```yaml\n(.*?)```", read("README.md"), flags=re.DOTALL)
    assert parse(program).mesh_for(4) == {"data": 2, "model": 2}
    assert [rule.strategy for _, rule in parse(patterns).each()] == ["fully_sharded", "tensor_parallel", "replicate"]


def test_the_program_in_the_readme_is_twenty_lines_of_python_at_most() -> None:
    text, *_ = re.findall(r"```python\n(.*?)```", read("README.md"), flags=re.DOTALL)
    compile(text, "README.md", "exec")
    assert len(text.splitlines()) <= 20
