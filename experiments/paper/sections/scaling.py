"""A layer divided over ranks: measured on two, and simulated beyond."""

from typing import Any

from experiments.paper.section import Records, Section
from experiments.recording import markdown

NAME = "scaling"
SHOWN = (2, 8, 64, 1024)  # ranks


def measured(found: dict[str, Any]) -> str:
    lines = []
    for point in found["measured"]:
        seconds = [f"{point['seconds'][name] * 1e3:.1f} ms" for name in ("one", "divided", "span")]
        simulated = f"{point['simulated']:.2f}x" if "simulated" in point else ""
        lines.append([
            f"{point['kind']} ({point['T']:,}, {point['B']}, {point['H']})", point["algorithm"],
            *seconds, f"{point['speed_up']:.2f}x", simulated, point["rounds"],
            f"{point['bytes']:,}",
        ])  # fmt: skip
    header = (
        "layer (T, B, H)", "algorithm", "one process", "two ranks", "a span by itself", "speed-up",
        "simulated", "rounds", "bytes",
    )  # fmt: skip
    return markdown(header, lines)


def simulated(found: dict[str, Any], scaling: str) -> str:
    """Times as fast as one rank."""
    lines = []
    for layer in found["layers"]:
        size = {key: layer[key] for key in ("kind", "T", "B", "H")}
        rows = {
            (row["algorithm"], row["P"]): row["speed_up"]
            for row in found["simulated"]
            if row["scaling"] == scaling and all(row[k] == v for k, v in size.items())
        }
        name = f"{layer['kind']} ({layer['T']:,}, {layer['B']}, {layer['H']})"
        for algorithm in dict.fromkeys(algorithm for algorithm, _ in rows):
            lines.append([name, algorithm, *(f"{rows[algorithm, P]:.2f}x" for P in SHOWN)])
    return markdown(("layer", "algorithm", *(f"P = {P:,}" for P in SHOWN)), lines)


def memory(found: dict[str, Any]) -> str:
    one, *_ = rows = found["memory"]["ranks"]
    cells = [f"{row['bytes'] / one['bytes']:.2f}" for row in rows]
    return markdown(("ranks", *(row["P"] for row in rows)), [["memory of a rank", *cells]])


def text(records: Records) -> str:
    found = records[NAME]
    of = found["memory"]
    are_bound = all(point.get("bound") for point in found["measured"])
    bound = " Each process is bound to a core of its own." if are_bound else ""
    shares = ", ".join(
        f"{1 - point['seconds']['span'] / point['seconds']['divided']:.0%} ({point['kind']})"
        for point in found["measured"]
        if point["algorithm"] == "auto" and point["T"] == 100_000
    )
    return "\n\n".join([
        "Measured: forward and backward on two processes of one thread each, a span of time each, "
        "beside one process over the whole, in turns. A span by itself is what is left when "
        f"nothing is exchanged.{bound}",
        measured(found),
        "Two cores are all there is: what the processes say to each other is said by threads that "
        "want a core as well. That is little beside long spans; of a step over 100,000 steps of "
        f"one small sample, all that is not the span itself is {shares}.",
        "Simulated beyond, with the costs of steps, compositions and messages measured here; "
        "nothing fades in it but for the speculative way. Strong scaling:",
        simulated(found, "strong"),
        f"Weak scaling, {found['weak']:,} steps for each rank:",
        simulated(found, "weak"),
        "- **Whole steps with a scan over ranks gain little**: their forward is still passed on "
        "from rank to rank. Composing pays from some eight ranks on with 20 units, from 32 with 16 "
        "samples of 64.\n"
        "- **What forgets scales**: each rank begins at once.\n"
        "- **Passing on by groups of samples** keeps as many ranks busy as there are groups.",
        f"The memory of a rank for {of['kind']} ({of['T']:,}, {of['B']}, {of['H']}), of that of "
        "one process:",
        memory(found),
    ])  # fmt: skip


def at_a_glance(records: Records) -> str:
    found = records[NAME]
    auto = [point for point in found["measured"] if point["algorithm"] == "auto"]
    last = {row["algorithm"]: row for row in found["counted"]}
    gains = ", ".join(f"{point['speed_up']:.2f}x" for point in auto)
    return (
        f"two ranks {gains} of one process; counted, n = {last['linear']['n']:,}: "
        f"{last['recursive doubling']['units']:.0f} units in a row, {last['linear']['units']:,.0f} "
        "passed on"
    )


SECTION = Section(
    name="scaling",
    title="A chain over many devices",
    minutes=8,
    paper="With n devices that hold n parts of a model, back-propagation takes Θ(n) steps, and the "
    "scan Θ(log n).",
    claim="Θ(log n) instead of Θ(n) over n devices",
    run="experiments.paper.scaling",
    quick="--pairs 2 --shorter 10",
    records=(NAME,),
    pictures=(NAME,),
    text=text,
    glance=at_a_glance,
)
