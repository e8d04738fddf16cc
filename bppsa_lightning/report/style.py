"""How the page looks: light or dark as the reader's system is, wide or narrow as the window.

Colours are those of Okabe and Ito, which colour-blind readers tell apart.
"""

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1c2024; --soft: #5b6570; --card: #f5f7f9;
  --edge: #d9dee3; --c0: #0072b2; --c1: #d55e00; --c2: #008060; --c3: #b0508c; --c4: #8a6d00;
  --c5: #3d89b8; --good: #00694e; --bad: #b34700; }
@media (prefers-color-scheme: dark) { :root { --back: #14171a; --text: #e6e9ec; --soft: #a3adb8;
  --card: #1d2126; --edge: #353c44; --c0: #56b4e9; --c1: #e69f00; --c2: #2dc79b; --c3: #e28fc0;
  --c4: #f0e442; --c5: #8fd0ff; --good: #2dc79b; --bad: #ff9a4d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 68rem; background: var(--back);
  color: var(--text); font: 16px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .6rem; }
section > h3 { margin-top: 1.2rem; } .cards + .wide, details, section > p { margin: 1rem 0; }
h3 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
p, .sub { margin: .3rem 0; } .sub, .none, figcaption { color: var(--soft); }
.tiles, .cards, .masks { display: grid; gap: .8rem; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); margin: 1.2rem 0; }
.cards { grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); }
.masks { grid-template-columns: repeat(auto-fill, minmax(min(11rem, 100%), 1fr)); }
.tile, .card, figure { background: var(--card); border: 1px solid var(--edge);
  border-radius: .5rem; padding: .8rem; margin: 0; min-width: 0; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.2; }
.good { color: var(--good); } .bad { color: var(--bad); }
svg { display: block; width: 100%; max-width: 36rem; height: auto; }
svg text { fill: var(--soft); font-size: 13px; }
svg .strong { fill: var(--text); font-weight: 600; }
.grid { stroke: var(--edge); fill: none; } .line { fill: none; stroke-width: 2;
  stroke-linejoin: round; }
.mask { height: 9rem; background: var(--back); border: 1px solid var(--edge); }
.mask path { fill: var(--c0); } .d0 { opacity: .25; } .d1 { opacity: .45; } .d2 { opacity: .65; }
.d3 { opacity: .82; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0;
  margin: .5rem 0 0; font-size: .9rem; } .legend i { display: inline-block; width: .8rem;
  height: .8rem; margin-right: .35rem; border-radius: .15rem; vertical-align: -.05rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--edge);
  vertical-align: top; } th { font-weight: 600; white-space: nowrap; }
td:not(.num):last-child { min-width: 12rem; } .wide + .wide { margin-top: 1rem; }
figcaption { margin-top: .4rem; font-size: .9rem; }
td.num, th.num { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--edge); padding: .8rem;
  border-radius: .5rem; font-size: .8rem; } summary { cursor: pointer; }
""" + "\n".join(
    f".c{k} .line {{ stroke: var(--c{k}); }} .c{k} circle, .b{k} {{ fill: var(--c{k}); }} "
    f".k{k} {{ background: var(--c{k}); }}"
    for k in range(6)
)
