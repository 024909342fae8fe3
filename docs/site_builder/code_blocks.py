"""Checks the code in pages without running it: Python compiles, YAML and JSON are valid, configs are ones that GT takes, and
commands have the options that they are given.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from gt.errors import ConfigError
from gt.sharding.config import parse
from site_builder.command_pages import command_line
from site_builder.source_pages import ROOT, source_pages


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    """Where its fence is, from 1."""
    language: str
    title: str
    """The file that it is, if it is one: ```python title="train.py"."""
    text: str
    mark: str
    """The HTML comment on the line before it, if there is one."""


COMMAND = re.compile(r"(?:[A-Z_]+=\S+ +)*(gt|make|python3?) ")
"""How a line begins that a reader may type, in a block without a language."""

SHELL = {"bash", "console", "sh"}


def blocks_of(page: str, text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    fence = re.compile(r"^( *)(```+)(\w*)(.*?)\n(.*?)^\1\2 *$", re.MULTILINE | re.DOTALL)
    for found in fence.finditer(text):
        indent, _, language, rest, body = found.groups()
        title = re.search(r'title="([^"]*)"', rest)
        before = text[: found.start()].rstrip("\n").rpartition("\n")[2]
        mark = re.fullmatch(r" *<!-- (.*) -->", before)
        lines = [line.removeprefix(indent) for line in body.splitlines()]
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page, line, language, title[1] if title else "", "\n".join(lines) + "\n", mark[1] if mark else "")


def all_blocks() -> Iterator[Block]:
    """The blocks of every page that is written by hand."""
    for page in source_pages():
        if page.endswith(".md"):
            yield from blocks_of(page, (ROOT / page).read_text())


def faults_in_pages() -> list[str]:
    """What is wrong with the code of all pages, a line each."""
    found = [f"{each.page}:{each.line}: {fault}" for each in all_blocks() for fault in faults(each)]
    for page in source_pages():
        if page.endswith(".md") and page != "CHANGELOG.md":  # history names what was there at the time
            text = re.sub(r"^ *```.*?^ *```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
            spans = sorted(set(re.findall(r"`((?:gt|make) [^`]+)`", text)))
            found += [
                f"{page}: `{span}`: {fault}" for span in spans for fault in faults_in_command(" ".join(span.split()))
            ]
    return found


def faults(block: Block) -> Iterator[str]:
    """What is wrong with a block. One that is marked `<!-- wrong -->` has to be."""
    found = [
        *_invalid(block),
        *(f"`{line}`: {fault}" for line in command_lines(block) for fault in faults_in_command(line)),
    ]
    yield from (
        found if block.mark != "wrong" else [] if found else ["it is marked as wrong, and nothing is wrong with it"]
    )


def _invalid(block: Block) -> Iterator[str]:
    """Why a block is not valid in its language."""
    try:
        if block.language == "python":
            compile(block.text, block.page, "exec", dont_inherit=True)
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "yaml":
            held = list(yaml.safe_load_all(block.text))
            if isinstance(held[0], dict) and {"mesh", "sharding_config"} & set(held[0]):
                parse(block.text)
    except (SyntaxError, ValueError, yaml.YAMLError, ConfigError) as error:
        yield f"{type(error).__name__}: {error}"


def command_lines(block: Block) -> list[str]:
    """The commands of a block: after `$ ` in a console, every line of a script, what looks like one without a language."""
    text = re.sub(r"\\\n *(> )?", "", block.text)
    if block.language == "console":
        return [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    if block.language in SHELL:
        return text.splitlines()
    return [line for line in text.splitlines() if COMMAND.match(line)] if block.language == "" else []


def faults_in_command(line: str) -> Iterator[str]:
    """What a command line calls that is not there: a command of gt, an option, a target of make, a program."""
    try:
        words = shlex.split(line.replace("…", " "), comments=True)
    except ValueError:
        return  # a line of prose with an apostrophe
    call: list[str] = []
    for word in [*words, ";"]:
        if word in (";", "&&", "||", "|", "&", ">", "2>") or word.endswith(";"):
            yield from _faults_in_call([*call, word.removesuffix(";")] if word.endswith(";") and word != ";" else call)
            call = []
        else:
            call.append(word)


def _faults_in_call(call: list[str]) -> Iterator[str]:
    while call and (re.match(r"[A-Z_]+=", call[0]) or call[0] in ("until", "do", "time")):
        call = call[1:]
    if call[:1] == ["gt"]:
        yield from _faults_of_gt(call[1:])
    elif call[:1] == ["make"]:
        targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
        yield from (
            f"make has no {word}" for word in call[1:] if re.fullmatch(r"[a-z-]+", word) and word not in targets
        )
    elif call[:1] in (["python"], ["python3"]) and len(call) > 1 and "/" in call[1] and not (ROOT / call[1]).exists():
        yield f"there is no {call[1]}"


def _faults_of_gt(words: list[str]) -> Iterator[str]:
    command: Any = command_line()
    name, passed = "gt", False
    for word in words:
        option = re.match(r"--?[a-z][\w-]*", word)
        if option:
            known = {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)}
            if option[0] not in known | {"--help"} and not passed:
                yield f"{name} has no option {option[0]}"
        elif hasattr(command, "commands"):
            if word in command.commands:
                command, name = command.commands[word], f"{name} {word}"
            elif re.fullmatch(r"[a-z-]+", word):
                yield f"{name} has no command {word}"
                return
            else:
                return  # a placeholder stands for a command
        elif word.endswith(".py"):
            passed = name in ("gt explain", "gt tune")  # what follows are the program's own options
