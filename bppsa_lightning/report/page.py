"""The page of a report: HTML, with its style and charts inside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from bppsa_lightning.report import words
from bppsa_lightning.report.charts import Series, lines, stacked
from bppsa_lightning.report.patterns import picture
from bppsa_lightning.report.style import STYLE

PARTS = ("forward", "backward", "optimizer", "rest")
_LOSSES = "loss"


def page(data: Mapping[str, Any]) -> str:
    """A report's data as one HTML document, which loads nothing."""
    run = data["run"]
    sections = [
        _head(run),
        _tiles(data),
        _section("Loss and metrics", _curves(data)),
        _section("Where a step's time goes", _time(data)),
        _section("What runs how", _plans(data)),
        _section("Sparsity", _sparsity(data["patterns"])),
        _section("Memory", _memory(data["memory"])),
        _section("Machine and versions", _environment(data["environment"])),
    ]
    title = escape(f"{run['model']}: training report")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style></head>\n'
        f"<body>\n{chr(10).join(filter(None, sections))}\n</body></html>\n"
    )


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _head(run: Mapping[str, Any]) -> str:
    line = (
        f"{run['model']}, {words.count(run['parameters'])} parameters, strategy {run['strategy']}; "
        f"{words.count(run['steps'])} steps in {words.seconds(run['seconds'])}, "
        f"begun {run['started']}"
    )
    ended = run["ended"]
    broken = "" if ended == "finished" else f'<p class="bad">Broke off: {escape(ended)}</p>'
    return (
        f'<header><h1>{escape(run["model"])}: training report</h1><p class="sub">{escape(line)}</p>'
        f"{broken}</header>"
    )


def _tiles(data: Mapping[str, Any]) -> str:
    tiles = []
    speed = data["time"]["speed_ups"]
    for part in ("step", "backward"):
        if part in speed:
            kind = "good" if speed[part] >= 1 else "bad"
            said = f"{words.factor(speed[part])}"
            tiles.append((said, f"{part} speed-up over stock PyTorch", kind))
    losses = [value for value in data["loss"]["values"] if value is not None]
    if losses:
        tiles.append((words.number(losses[-1]), "training loss at the end", ""))
    step = data["time"]["ours"].get("step")
    if step:
        tiles.append((words.seconds(step), "a training step", ""))
    peak = data["memory"].get("peak_cuda_bytes") or data["memory"].get("peak_bytes")
    if peak:
        tiles.append((words.size(peak), "memory at most", ""))
    return "".join(
        ['<div class="tiles">']
        + [
            f'<div class="tile"><b class="{k}">{escape(v)}</b>{escape(n)}</div>'
            for v, n, k in tiles
        ]
        + ["</div>"]
    )


# --- curves --------------------------------------------------------------------------------------


def _curves(data: Mapping[str, Any]) -> str:
    metrics = data["metrics"]
    loss = [Series("training loss", data["loss"]["steps"], data["loss"]["values"])]
    loss = loss if loss[0].steps else []
    loss += [_series(name, m) for name, m in metrics.items() if _LOSSES in name.lower()]
    cards = [_card("Loss", lines("loss over steps", loss))] if loss else []
    for name, metric in metrics.items():
        if _LOSSES not in name.lower():
            cards.append(_card(name, lines(f"{name} over steps", [_series(name, metric)])))
    missing = sum(value is None for value in data["loss"]["values"])
    note = f'<p class="bad">{missing} values of the loss were not finite.</p>' if missing else ""
    return note + _cards(cards)


def _series(name: str, metric: Mapping[str, Any]) -> Series:
    return Series(name, metric["steps"], metric["values"])


def _card(title: str, content: str) -> str:
    return f'<div class="card"><h3>{escape(title)}</h3>{content}</div>'


def _cards(cards: Sequence[str]) -> str:
    return f'<div class="cards">{"".join(cards)}</div>' if cards else ""


# --- time ----------------------------------------------------------------------------------------


def _time(data: Mapping[str, Any]) -> str:
    time = data["time"]
    ours, stock = time["ours"], time["stock"]
    if not ours:
        return ""
    rows = [("bppsa", _parts(ours))]
    if stock:
        rows.insert(0, ("stock PyTorch", _parts(stock)))
    cards = [_card("One step", stacked("parts of a step", rows, PARTS, words.seconds))]
    if time["layers"]:
        bars = []
        for row in time["layers"]:
            name = row["layer"]
            bars += [
                (f"{name}: stock PyTorch", (row["stock_forward"], row["stock_backward"])),
                (f"{name}: bppsa", (row["forward"], row["backward"])),
            ]
        drawn = stacked("time of each layer", bars, PARTS[:2], words.seconds)
        cards.append(_card("Each accelerated layer", drawn))
    note = f"<p>{escape(time['note'])}</p>" if time["note"] else ""
    return note + _cards(cards) + _time_table(ours, stock)


def _parts(seconds: Mapping[str, float]) -> list[float]:
    return [seconds.get(part, 0.0) for part in PARTS]


def _time_table(ours: Mapping[str, float], stock: Mapping[str, float]) -> str:
    header = ["", "bppsa", *(["stock PyTorch", "speed-up"] if stock else [])]
    rows = []
    for part in (*PARTS, "step"):
        row = [part, words.seconds(ours.get(part, 0.0))]
        if stock:
            ratio = stock[part] / ours[part] if ours.get(part) else None
            row += [words.seconds(stock[part]), words.factor(ratio) if ratio else ""]
        rows.append(row)
    return _table(header, rows, numbers=range(1, len(header)))


# --- plans, sparsity -----------------------------------------------------------------------------


def _plans(data: Mapping[str, Any]) -> str:
    parts = []
    for name in ("chains", "pruned"):
        rows = data[name]
        if rows:
            parts.append(_table(list(rows[0]), [list(row.values()) for row in rows]))
    if data["not_accelerated"]:
        rows = [[row["layer"], row["reason"]] for row in data["not_accelerated"]]
        parts.append("<h3>Not accelerated</h3>" + _table(["layer", "why"], rows))
    if data["explanation"]:
        text = escape(data["explanation"])
        parts.append(f"<details><summary>bl.explain(model)</summary><pre>{text}</pre></details>")
    return "".join(parts)


def _sparsity(patterns: Sequence[dict[str, Any]]) -> str:
    if not patterns:
        return ""
    said = (
        "Outputs of a layer down, its inputs across; the darker, the more weights survive there "
        "(beside the densest place of the same layer)."
    )
    return f'<p class="sub">{said}</p><div class="masks">{"".join(map(picture, patterns))}</div>'


# --- memory, machine -----------------------------------------------------------------------------


def _memory(memory: Mapping[str, Any]) -> str:
    names = {
        "parameter_bytes": "parameters",
        "optimizer_bytes": "the optimizer's state",
        "peak_bytes": "the process, at most (since it began)",
        "peak_cuda_bytes": "on the GPU, at most (since the process began)",
    }
    rows = [[said, words.size(memory[key])] for key, said in names.items() if memory.get(key)]
    table = _table(["what", "size"], rows, numbers=[1])
    steps, values = memory["steps"], memory["values"]
    if len(steps) < 2:
        return table
    drawn = lines("memory of the process over steps", [Series("", steps, values)], words.size)
    return _cards([_card("Memory of the process", drawn), _card("Of what", table)])


def _environment(environment: Mapping[str, Any]) -> str:
    return _table(["", ""], [[key, value] for key, value in environment.items()])


def _table(
    header: Sequence[str], rows: Iterable[Sequence[Any]], numbers: Sequence[int] = ()
) -> str:
    def cells(row: Sequence[Any], tag: str) -> str:
        kinds = (' class="num"' if i in numbers else "" for i in range(len(row)))
        return "".join(
            f"<{tag}{k}>{escape(str(c))}</{tag}>" for k, c in zip(kinds, row, strict=True)
        )

    head = f"<thead><tr>{cells(header, 'th')}</tr></thead>" if any(header) else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'
