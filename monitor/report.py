"""A recording as a single HTML page: it needs no server and no network, and a script only for the timeline.

Findings go in, text comes out; the page's frame, style and script are in `report.html`. Every text of a recording (signals,
lines, programs, errors) passes through `escape` or, for the script, through `data_of`, because it may contain anything.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Final

from gt.wire import telemetry as t

from .advice import Advice, advise, count, percent, seconds, share, size
from .charts import bars, memory_chart, stacked_bar
from .findings import TIME_SHARES, Findings
from .reading import TraceMetadata
from .timeline import rows

MAX_LINES: Final = 25
"""Lines of a table."""
TEMPLATE_FILE: Final = "report.html"
NAME_BREAKS: Final = re.compile("(?<=[/+])")
"""Where a name may go on in the next line."""


def page(found: Findings, recorded: TraceMetadata, name: str) -> str:
    """The report of a recording as HTML; `name` is that of its file."""
    filled = {
        "name": escape(name),
        "subtitle": escape(_subtitle(found, recorded)),
        "notes": _notes(found, recorded),
        "tiles": _tiles(found),
        "advice": _advice(advise(found)),
        "workers": _workers(found),
        "signals": _signals(found),
        "ops": _ops(found),
        "matrix": _matrix(found),
        "collectives": _collectives(found),
        "memory": memory_chart(found) + _spills(found),
        "idle": _idle(found),
        "misses": _misses(found),
        "clients": _clients(found) + _recoveries(found),
        "log": _log(found),
        "data": data_of(found),
    }
    frame = resources.files(__package__ or "gt.monitor").joinpath(TEMPLATE_FILE).read_text("utf-8")
    head, *parts = frame.split("<!--{")
    return head + "".join(filled[key] + rest for key, _, rest in (part.partition("}-->") for part in parts))


def data_of(found: Findings) -> str:
    """What the timeline draws, as JSON that may stand in a script element."""
    names: dict[tuple[str, str, str, str], int] = {}
    drawn = []
    for row in rows(found):
        pieces = []
        for piece in row.pieces:
            one = piece.slice
            key = (one.name, one.what, one.signal, one.site)
            named = names.setdefault(key, len(names))
            pieces.append(
                [
                    piece.start - found.start,
                    piece.duration,
                    named,
                    piece.many,
                    one.times,
                    round(piece.fill, 2),
                    one.nbytes,
                ]
            )
        drawn.append({"group": row.group, "name": row.name, "pieces": pieces})
    data = {"span": found.span, "names": list(names), "rows": drawn}
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


# the head


def _subtitle(found: Findings, recorded: TraceMetadata) -> str:
    words = [f"{found.span / 1e9:.2f} s"]
    service = found.service
    if service is not None:
        began = (service.wall + found.start - service.time) / 1e9
        try:
            date = dt.datetime.fromtimestamp(began, dt.UTC)
            words.insert(0, f"{date:%Y-%m-%d %H:%M:%S} UTC")
        except (OverflowError, ValueError, OSError):
            pass  # a clock that says nonsense
        words += [service.address, *([f"GT {service.version}"] if service.version else [])]
    host = recorded.facts.get("host")
    return " · ".join([*words, str(host)] if host else words)


def _notes(found: Findings, recorded: TraceMetadata) -> str:
    """What a reader must know about the recording itself."""
    notes = []
    dropped = recorded.facts.get("dropped", 0)
    if isinstance(dropped, int) and dropped:
        notes.append(
            f"{count(dropped, 'event')} got lost on the way: what is added up here is less than what happened."
        )
    if recorded.cut:
        notes.append("The recording has no end: its writer was killed. What there is of it is here.")
    if not found.workers:
        notes.append("Nothing was told by any worker.")
    return "".join(f'<p class="note" role="status">{escape(note)}</p>' for note in notes)


def _tiles(found: Findings) -> str:
    time = found.time
    runs = sum(plan.runs for plan in found.plans.values())
    made = sum(times for (cache, _, _), times in found.misses.items() if cache == "plan")
    moved = sum(sum(found.sent(worker).values()) for worker in found.workers.values())
    fetches = sum(client.fetches for client in found.clients.values())
    fetching = sum(client.fetching for client in found.clients.values())
    tiles = [
        ("computing", percent(share(time["compute"], sum(time.values()))), "of the workers' time"),
        ("workers", f"{len(found.workers):,}", count(len(found.clients), "client")),
        ("runs", f"{runs:,}", f"{share(runs, found.span / 1e9):,.0f} a second"),
        ("plans found again", percent(1 - share(min(made, runs), runs)) if runs else "–", f"{made:,} made"),
        ("moved", size(moved), "from worker to worker"),
        ("fetches", f"{fetches:,}", f"{seconds(fetching / fetches)} each" if fetches else "none"),
    ]
    return "".join(
        f"<div><dt>{escape(title)}</dt><dd>{escape(value)}</dd><dd>{escape(more)}</dd></div>"
        for title, value, more in tiles
    )


def _advice(given: Sequence[Advice]) -> str:
    if not given:
        return '<p class="good">Nothing here looks like a mistake.</p>'
    out = []
    for each in given:
        signal = f' <span class="signal">{escape(each.signal)}</span>' if each.signal else ""
        out.append(
            f"<li><h3>{escape(each.rule)} <code>{escape(each.site or 'no line is known')}</code>{signal}</h3>"
            f"<p>{escape(sentence(each.what))}</p><p><b>Try:</b> {escape(each.remedy)}.</p></li>"
        )
    return f"<ol>{''.join(out)}</ol>"


def sentence(text: str) -> str:
    """With a capital and a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


# tables


def _table(caption: str, head: Sequence[str], lines: Iterable[Sequence[str]], numbers: Iterable[int] = ()) -> str:
    """A table of cells that are HTML already; columns in `numbers` are set flush right."""
    right = set(numbers)
    classes = [' class="n"' if at in right else "" for at in range(len(head))]
    body = [f"<tr>{''.join(f'<td{classes[at]}>{cell}</td>' for at, cell in enumerate(line))}</tr>" for line in lines]
    if not body:
        return f'<p class="none">{escape(caption)}: none.</p>'
    more = f'<p class="none">and {len(body) - MAX_LINES:,} more</p>' if len(body) > MAX_LINES else ""
    heads = "".join(f'<th scope="col"{classes[at]}>{escape(name)}</th>' for at, name in enumerate(head))
    return (
        f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body[:MAX_LINES])}</tbody></table></div>{more}"
    )


def _code(text: str) -> str:
    """A name in a table: a long one may go on in the next line behind a slash or a plus, so that no number is cut in two."""
    return f"<code>{NAME_BREAKS.sub(r'<wbr>', escape(text))}</code>"


def _line(site: str) -> str:
    return _code(site) if site else '<span class="none">–</span>'


def _workers(found: Findings) -> str:
    lines = []
    for number, worker in sorted(found.workers.items()):
        time = found.time_of(worker)
        joined = worker.joined
        peak = max((held for _, held, _ in worker.memory), default=0)
        lines.append(
            [
                f"worker {number}",
                escape(f"{joined.device or joined.kind} on {joined.host}") if joined else "",
                stacked_bar(time, f"worker {number}"),
                *[percent(share(time[name], sum(time.values()))) for name in TIME_SHARES],
                size(peak),
            ]
        )
    head = ["worker", "device", "its time", *TIME_SHARES, "most held"]
    return _table("Where the workers' time went", head, lines, range(3, 9))


def _signals(found: Findings) -> str:
    total: Counter[str] = Counter()
    moving: Counter[str] = Counter()
    for place, _, time in found.estimated():
        total[place.signal] += int(time)
    for (_, signal, _), moved in found.moves.items():
        moving[signal] += moved.duration
    whole = sum(total.values()) + sum(moving.values())
    names = sorted({*total, *moving}, key=lambda name: -total[name] - moving[name])
    return _table(
        "Time by signal: in kernels, and in moving what kernels need",
        ["signal", "", "share", "kernels", "moves"],
        (
            [
                escape(name) or '<span class="none">no signal</span>',
                bars([("compute", share(total[name], whole)), ("communication", share(moving[name], whole))]),
                percent(share(total[name] + moving[name], whole)),
                seconds(total[name]),
                seconds(moving[name]),
            ]
            for name in names
        ),
        (2, 3, 4),
    )


def _ops(found: Findings) -> str:
    estimated = found.estimated()
    whole = sum(time for _, _, time in estimated)
    together: Counter[tuple[str, str, str]] = Counter()
    sampled: dict[tuple[str, str, str], list[int]] = {}
    for place, op, time in estimated:
        key = (place.name, place.signal, place.site)
        together[key] += int(time)
        known = sampled.setdefault(key, [0, 0])
        known[0] += op.times
        known[1] += op.duration
    return _table(
        "Time in kernels by op and line, as samples say",
        ["op", "signal", "line", "", "share", "time", "each"],
        (
            [
                _code(op), escape(signal), _line(site), bars([("compute", share(time, whole))]),
                percent(share(time, whole)), seconds(time),
                seconds(sampled[op, signal, site][1] / sampled[op, signal, site][0]) if sampled[op, signal, site][0] else "",
            ]
            for (op, signal, site), time in together.most_common()
        ),
        (4, 5, 6),
    )  # fmt: skip


def _matrix(found: Findings) -> str:
    numbers = sorted(found.workers)
    sent = {number: found.sent(found.workers[number]) for number in numbers}
    most = max((nbytes for row in sent.values() for nbytes in row.values()), default=0)
    if not most or len(numbers) > 64:
        why = "no worker sent anything to another" if not most else "too many workers for a matrix"
        return f'<p class="none">Communication: {why}.</p>'
    head = "".join(f'<th scope="col">{number}</th>' for number in numbers)
    body = ""
    for source in numbers:
        cells = ""
        for target in numbers:
            nbytes = sent[source].get(target, 0)
            heat = round(100 * share(nbytes, most))
            cells += f'<td class="n heat" style="--heat:{heat}%">{size(nbytes) if nbytes else "·"}</td>'
        body += f'<tr><th scope="row">{source}</th>{cells}</tr>'
    return (
        '<div class="wide"><table class="matrix"><caption>Bytes from worker (row) to worker (column)</caption>'
        f'<thead><tr><th scope="col">from \\ to</th>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _collectives(found: Findings) -> str:
    return _table(
        "Collectives",
        ["collective", "signal", "line", "times", "sent", "time", "of that waiting"],
        (
            [
                _code(kind), escape(signal), _line(site), f"{moved.times:,}", size(moved.sent),
                seconds(moved.duration), percent(share(moved.waiting, moved.duration)),
            ]
            for (kind, signal, site), moved in sorted(found.moves.items(), key=lambda each: -each[1].duration)
        ),
        (3, 4, 5, 6),
    )  # fmt: skip


def _spills(found: Findings) -> str:
    if not found.spills:
        return ""
    return _table(
        "What found no room in memory, and went out to a file",
        ["worker", "signal", "line", "times", "out", "back", "read ahead", "time"],
        (
            [
                f"worker {worker}", escape(signal), _line(site), f"{gone.times:,}", size(gone.out), size(gone.back),
                percent(share(gone.ahead, gone.back)) if gone.back else "", seconds(gone.duration),
            ]
            for (worker, signal, site), gone in sorted(found.spills.items(), key=lambda each: -each[1].duration)
        ),
        (3, 4, 5, 6, 7),
    )  # fmt: skip


WAITING_CAUSES: Final = {
    "workers": "workers that have not joined",
    "credit": "credit: workers have too much to do already",
    "share": "share: its workers have enough in flight, or others' plans have their turns first",
    "rate": "rate: its user may issue no more instructions for now",
    "put": "a put that has not landed",
    "restore": "a lost worker: what the last mark has is restored",
    "mark": "a mark: earlier puts have not landed",
    "plan": "a plan that is being worked out",
    "busy": "a worker in something long",
}


def _idle(found: Findings) -> str:
    time = found.time
    whole = sum(time.values())
    lines: list[tuple[int, list[str]]] = []
    for (kind, signal, site), moved in found.moves.items():
        if moved.waiting:
            lines.append((moved.waiting, [f"for pieces of others: {escape(kind)}", escape(signal), _line(site)]))
    rest = time["waiting"] - sum(waited for waited, _ in lines)
    if rest > 0:
        lines.append((rest, ["for pieces of others, else", "", ""]))
    if time["idle"]:
        lines.append((time["idle"], ["nothing to do: no run had been asked for", "", ""]))
    waited = _table(
        "Why workers did not compute",
        ["waiting", "signal", "line", "", "share", "time"],
        (
            [*words, bars([("waiting", share(spent, whole))]), percent(share(spent, whole)), seconds(spent)]
            for spent, words in sorted(lines, key=lambda each: -each[0])
        ),
        (4, 5),
    )
    held = _table(
        "Why clients' queues stood still",
        ["client", "waiting for", "time"],
        (
            [f"client {client}" if client >= 0 else "", escape(WAITING_CAUSES.get(what, what)), seconds(spent)]
            for (what, client), spent in found.waits.most_common()
        ),
        (2,),
    )
    return waited + held


def _misses(found: Findings) -> str:
    return _table(
        "What was made and not found again",
        ["cache", "why", "line", "times"],
        (
            [escape(cache), escape(reason), _line(site), f"{times:,}"]
            for (cache, reason, site), times in found.misses.most_common()
        ),
        (3,),
    )


def _clients(found: Findings) -> str:
    return _table(
        "Clients",
        ["client", "program", "runs", "fetches", "each", "most held", "marks", "each mark"],
        (
            [
                f"client {number}",
                escape(f"{client.joined.program or '?'} on {client.joined.host}") if client.joined else "",
                f"{client.runs:,}", f"{client.fetches:,}",
                seconds(client.fetching / client.fetches) if client.fetches else "", size(client.peak), f"{client.marks:,}",
                seconds(client.marking / client.marks) if client.marks else "",
            ]
            for number, client in sorted(found.clients.items())
        ),
        (2, 3, 4, 5, 6, 7),
    )  # fmt: skip


def _recoveries(found: Findings) -> str:
    if not found.recoveries:
        return ""
    lines = []
    for loss, event in found.recoveries:
        client = found.sessions.get(event.client, event.client)
        place = f"mark {event.mark}" if event.mark else "its beginning"
        at = f"{(event.time - found.start) / 1e9:.3f} s"
        lines.append([at, f"client {client}", place, seconds(event.duration), escape(loss.text) if loss else ""])
    return _table("Sessions that lost a worker and went on", ["at", "client", "from", "after", ""], lines, (0, 3))


def _log(found: Findings) -> str:
    lines = []
    for each in found.told:
        at = f"{(each.time - found.start) / 1e9:.3f} s"
        times = f" (× {each.times:,})" if each.times > 1 else ""
        if isinstance(each, t.Failure):
            lines.append([at, f'<b class="bad">{escape(each.kind)}</b>', _line(each.site), escape(each.text) + times])
        else:
            lines.append([at, escape(each.what), _line(""), escape(each.text) + times])
    return _table("Errors and decisions", ["at", "what", "line", ""], lines, (0,))
