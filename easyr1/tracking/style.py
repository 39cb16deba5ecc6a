"""The style sheet of the report page: system fonts, light and dark by the reader's setting, nothing fetched."""

CSS = """
:root {
  color-scheme: light dark;
  --page: #f6f6f4; --panel: #ffffff; --ink: #1d2125; --quiet: #646b73; --rule: #e1e1dc; --code: #f3f3f0;
  --s0: #2f66b0; --s1: #c4560a; --s2: #17805a; --s3: #8d44a8; --s4: #a67c00; --s5: #646b73;
  --good: #dcefe2; --good-ink: #14603f; --bad: #f7dfdb; --bad-ink: #8f2a1c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15181b; --panel: #1e2226; --ink: #e6e8ea; --quiet: #99a1a9; --rule: #32383e; --code: #171a1d;
    --s0: #74aef2; --s1: #f0985a; --s2: #56c79b; --s3: #cc90e0; --s4: #dcb64c; --s5: #99a1a9;
    --good: #1c3a2c; --good-ink: #8fdcb5; --bad: #452420; --bad-ink: #f2a79b;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 40px 24px 80px; }
h1 { font-size: 15px; font-weight: 600; color: var(--quiet); margin: 0 0 6px; }
.outcome { font-size: 25px; line-height: 1.35; font-weight: 600; margin: 0 0 24px;
  max-width: 46em; text-wrap: balance; }
h2 { font-size: 18px; margin: 48px 0 12px; }
h3 { font-size: 14px; margin: 0 0 4px; }
p { margin: 0 0 8px; }
.quiet { color: var(--quiet); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; }
.tile, .panel, .card { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px; }
.tile { padding: 12px 16px; }
.tile b { display: block; font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.tile span { color: var(--quiet); font-size: 13px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 420px), 1fr)); gap: 12px; }
.panel { padding: 14px 16px 8px; }
.legend { font-size: 12.5px; color: var(--quiet); min-height: 20px; }
.legend span { margin-right: 14px; white-space: nowrap; }
.legend i, .times i { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 5px; }
.legend b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; }
.grid { stroke: var(--rule); stroke-width: 1; }
.tick { fill: var(--quiet); font-size: 11px; }
.line { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
.broken { stroke-dasharray: 5 3; }
svg .s0 { stroke: var(--s0); } svg .s1 { stroke: var(--s1); } svg .s2 { stroke: var(--s2); }
svg .s3 { stroke: var(--s3); } svg .s4 { stroke: var(--s4); } svg .s5 { stroke: var(--s5); }
svg .dot.s0 { fill: var(--s0); } svg .dot.s1 { fill: var(--s1); } svg .dot.s2 { fill: var(--s2); }
svg .dot.s3 { fill: var(--s3); } svg .dot.s4 { fill: var(--s4); } svg .dot.s5 { fill: var(--s5); }
svg .dot { stroke: none; }
i.s0 { background: var(--s0); } i.s1 { background: var(--s1); } i.s2 { background: var(--s2); }
i.s3 { background: var(--s3); } i.s4 { background: var(--s4); } i.s5 { background: var(--s5); }
.bar { display: flex; gap: 2px; height: 22px; border-radius: 5px; overflow: hidden; margin-bottom: 10px; }
.bar i { display: block; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13.5px; }
table.times { width: auto; min-width: 320px; }
th { text-align: left; font-weight: 600; color: var(--quiet); }
th, td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.key { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace;
  font-size: 12.5px; overflow-wrap: anywhere; }
.card { padding: 16px; margin-bottom: 12px; }
.pictures { display: flex; flex-wrap: wrap; gap: 8px; margin-bottom: 10px; }
.pictures img { max-height: 220px; max-width: 100%; border: 1px solid var(--rule); border-radius: 4px;
  background: #fff; }
.pictures img.small { height: 112px; image-rendering: pixelated; }
pre { margin: 0; padding: 10px 12px; background: var(--code); border-radius: 6px; white-space: pre-wrap;
  overflow-wrap: anywhere; font: 12.5px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
.prompt { color: var(--quiet); margin-bottom: 8px; }
.truth b { font-weight: 600; margin-right: 6px; }
.answers { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 12px; }
.answer p { margin-bottom: 6px; }
.chip { display: inline-block; padding: 0 8px; border-radius: 10px; background: var(--code); color: var(--quiet);
  font-size: 12.5px; font-variant-numeric: tabular-nums; }
.chip.good { background: var(--good); color: var(--good-ink); }
.chip.bad { background: var(--bad); color: var(--bad-ink); }
summary { cursor: pointer; color: var(--quiet); margin: 10px 0; }
ul { margin: 0; padding-left: 20px; }
"""
