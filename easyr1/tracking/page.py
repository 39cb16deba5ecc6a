"""The report as one HTML page: no script, nothing fetched. Knows how facts look, not how they came about."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from html import escape
from typing import Any

from easyr1.tracking.answers import answer_cards
from easyr1.tracking.curves import NUM_COLOURS, Curve, draw
from easyr1.tracking.history import History
from easyr1.tracking.style import CSS
from easyr1.tracking.wording import number, score

LABELS = {
    "val/reward_score": "overall",
    "val_response_length/mean": "validation mean",
    "actor/entropy_loss": "entropy_loss (as EasyR1 counts it)",
}
MAX_EVENTS = 50
MAX_VALUE = 200  # characters of a setting or an event


@dataclass(frozen=True)
class Panel:
    """A picture with a title; `names` are patterns of metric names, drawn in this order."""

    title: str
    names: tuple[str, ...]

    def curves(self, history: History) -> list[Curve]:
        """The curves there are; where two metrics bear one label, the first counts."""
        found: dict[str, Curve] = {}
        for pattern in self.names:
            for name in sorted(name for name in history.series if fnmatchcase(name, pattern)):
                found.setdefault(label(name), Curve(label(name), history.series[name], name.startswith("val_")))
        return list(found.values())[:NUM_COLOURS]


PANELS = (
    Panel("Validation", ("val/accuracy_reward", "val/format_reward", "val/reward_score", "val/*_reward")),
    Panel("Training reward and its parts", ("reward/accuracy", "reward/format", "reward/overall", "reward/*")),
    Panel("Answer length, tokens", ("response_length/mean", "response_length/max", "val_response_length/mean")),
    Panel("KL to the reference", ("actor/kl_loss", "actor/kl_penalty")),
    Panel("KL to the policy that sampled", ("actor/ppo_kl",)),
    Panel("Share of tokens clipped", ("actor/pg_clipfrac_higher", "actor/pg_clipfrac_lower")),
    Panel("Entropy", ("actor/entropy", "actor/*entropy*")),
    Panel("Gradient norm", ("actor/grad_norm", "critic/grad_norm")),
    Panel("Speed, tokens a second per rank", ("perf/throughput",)),
)


def label(name: str) -> str:
    """The short name of a metric in a legend: "val/accuracy_reward" -> "accuracy", of a source "math12k accuracy"."""
    if name in LABELS:
        return LABELS[name]
    first, *between, last = name.split("/")
    return " ".join([*between, last.removesuffix("_reward")]) if first == "val" else last


def render(name: str, facts: Mapping[str, Any], history: History) -> str:
    """The whole page. `facts` is what report.json holds; all text in it is escaped here."""
    sections = [
        ("", _tiles(facts)),
        ("Warnings", _warnings(facts["warnings"])),
        ("Curves", _panels(history)),
        ("Time by phase", _times(facts["time_by_phase"])),
        ("Answers to the same questions, first and last", answer_cards(history.samples)),
        ("Settings that differ from the default", _settings(facts["settings"])),
        ("All numbers", _numbers(history)),
        ("Events", _events(history.events)),
    ]
    body = "".join(
        f"<section>{f'<h2>{title}</h2>' if title else ''}{content}</section>" for title, content in sections if content
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{CSS}</style></head><body><main>"
        f'<h1>{escape(name)}</h1><p class="outcome">{escape(facts["sentence"])}</p>'
        f"{body}</main></body></html>\n"
    )


def _tiles(facts: Mapping[str, Any]) -> str:
    pairs = dict(facts["validation"])
    if facts["training_reward"]:
        pairs["training reward"] = facts["training_reward"]
    tiles = [
        f'<div class="tile"><b>{score(pair["first"])} &rarr; {score(pair["last"])}</b>'
        f"<span>{'validation ' if label in facts['validation'] else ''}{label}</span></div>"
        for label, pair in pairs.items()
    ]
    return f'<div class="tiles">{"".join(tiles)}</div>' if tiles else ""


def _warnings(warnings: Sequence[str]) -> str:
    if not warnings:
        return ""
    return f"<ul>{''.join(f'<li>{escape(_cut(text))}</li>' for text in warnings)}</ul>"


def _panels(history: History) -> str:
    panels = [(panel.title, panel.curves(history)) for panel in PANELS]
    drawn = [
        f'<div class="panel"><h3>{title}</h3><div class="legend">{_legend(curves)}</div>{draw(curves)}</div>'
        for title, curves in panels
        if curves
    ]
    return f'<div class="panels">{"".join(drawn)}</div>' if drawn else ""


def _legend(curves: Sequence[Curve]) -> str:
    return "".join(
        f'<span><i class="s{index}"></i>{escape(curve.label)} <b>{number(curve.points[-1][1])}</b></span>'
        for index, curve in enumerate(curves)
    )


def _times(phases: Mapping[str, Mapping[str, float]]) -> str:
    if not phases:
        return ""
    colours = {name: f"s{min(index, NUM_COLOURS - 1)}" for index, name in enumerate(phases)}
    bar = "".join(
        f'<i class="{colours[name]}" style="flex:{max(part["share"], 1e-4):.4f}" title="{escape(name)}"></i>'
        for name, part in phases.items()
    )
    rows = [
        (f'<i class="{colours[name]}"></i>{escape(name)}', f"{part['seconds']:,.1f} s", f"{100 * part['share']:.1f} %")
        for name, part in phases.items()
    ]
    table = _table(("phase", "time", "share"), rows, "times", numbers_from=1)
    return f'<div class="bar">{bar}</div>{table}'


def _settings(settings: Mapping[str, Mapping[str, Any]]) -> str:
    if not settings:
        return ""
    rows = [
        (escape(key), escape(_cut(setting["value"])), escape(_cut(setting["default"])))
        for key, setting in settings.items()
    ]
    return _table(("key", "this run", "default"), rows, "keys")


def _numbers(history: History) -> str:
    rows = [
        (escape(name), *(number(value) for value in (values[0], values[-1], min(values), max(values))))
        for name, values in sorted((name, [value for _, value in points]) for name, points in history.series.items())
    ]
    if not rows:
        return ""
    table = _table(("metric", "first", "last", "lowest", "highest"), rows, "keys", numbers_from=1)
    return f"<details><summary>{len(rows)} metrics</summary>{table}</details>"


def _events(events: Sequence[Mapping[str, Any]]) -> str:
    if not events:
        return ""
    rows = []
    for event in events[-MAX_EVENTS:]:
        rest = ", ".join(f"{key} {value}" for key, value in event.items() if key not in ("time", "kind"))
        rows.append((escape(str(event.get("time", ""))), escape(str(event.get("kind", ""))), escape(_cut(rest))))
    table = _table(("time", "event", "details"), rows, "keys")
    return f"<details><summary>the last {len(rows)} of {len(events)}</summary>{table}</details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], look: str, numbers_from: int = 99) -> str:
    """A table of cells that are HTML already; columns from `numbers_from` on hold numbers."""

    def cells(tag: str, row: Sequence[str]) -> str:
        looks = ["n" if column >= numbers_from else "key" if not column else "" for column in range(len(row))]
        return "".join(
            f'<{tag} class="{look}">{cell}</{tag}>' if look else f"<{tag}>{cell}</{tag}>"
            for look, cell in zip(looks, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    head = cells("th", heads)
    return (
        f'<div class="table"><table class="{look}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= MAX_VALUE else f"{text[:MAX_VALUE]} ..."
