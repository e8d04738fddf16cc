"""What is wanted of windows of time (windows_gpu.py), and whether it was met, with the figures."""

from statistics import median

from experiments.benchmarks.gpu_day.bars import Bar, Found, Verdict, size

SIZE = (16, 30_000, 20)  # B, T, H of the sequences that are judged
EPSILON = 2.0**-23  # of float32: no error counts as less


def over_stock(cell: str, kernels: str, least: float) -> Bar:
    """Of the longest sequences in windows over "linear" (our) or "cuDNN" kernels: forward and
    backward, with a gradient of every output, beside cuDNN's walk; and what was predicted."""
    B, T, H = SIZE

    def judge(found: Found) -> Verdict:
        wanted = f"{cell} ({B}, {T}, {H}) in windows over {kernels}: at least {least:g}x cuDNN"
        ways = {}
        for row in found.rows("windows"):
            if (row["cell"], row["B"], row["T"], row["H"], row["loss"]) == (cell, B, T, H, "every"):
                ways = {n: w for n, w in row["ways"].items() if n.startswith(f"{kernels}, windows")}
        ways = {name: way for name, way in ways.items() if "speed_up" in way}
        if not ways:
            return Verdict(wanted, "no such row", False)
        best = max(ways.values(), key=lambda way: way["speed_up"]["both"])
        guess = max(way["predicted"]["speed_up"] for way in ways.values() if "predicted" in way)
        told = f"{best['speed_up']['both']:.1f}x with {best['windows']} windows"
        told += f", {guess:.1f}x was predicted at best"
        told += "".join(
            f"; {way['speed_up']['both']:.1f}x with {way['windows']}, as chosen"
            for way in ways.values()
            if way.get("chosen")
        )
        return Verdict(wanted, told, best["speed_up"]["both"] >= least)

    return judge


def exact(found: Found) -> Verdict:
    """Of all sizes, losses and numbers of windows: errors beside those of the same kernels' walk.

    (cuDNN's TF32 would excuse any of ours.)
    """
    wanted = "errors of windows: at most twice those of walks"
    shares, failed = {}, 0
    for row in found.rows("windows"):
        ways = row["ways"]
        failed += sum("fails" in way for way in ways.values())
        for name, way in ways.items():
            walk = ways["cuDNN" if name.startswith("cuDNN") else "linear"]
            if "windows" in way and "error" in walk:
                share = way["error"] / max(walk["error"], EPSILON)
                shares[f"{size(row)} {name}, {row['loss']}"] = share
    if not shares:
        return Verdict(wanted, f"no windows, {failed} ways failed", False)
    worst = max(shares, key=shares.__getitem__)
    told = f"{len(shares)}, at most {shares[worst]:.2f} times at {worst}; {failed} ways failed"
    return Verdict(wanted, told, shares[worst] <= 2 and not failed)


def wait_once(found: Found) -> Verdict:
    """How often the host waited for the device, where all windows met."""
    wanted = "windows that meet: one wait forward, one backward"
    counts = [
        tuple(way["waits"])
        for row in found.rows("windows")
        for way in row["ways"].values()
        if "waits" in way and way.get("missed") == 0 and way["backward_passes"] == 1
    ]
    told = ", ".join(f"{counts.count(c)} of {c[0]} + {c[1]}" for c in sorted(set(counts)))
    return Verdict(wanted, told or "none met", set(counts) == {(1, 1)})


def as_predicted(found: Found) -> Verdict:
    """Seconds of windows over those that were predicted."""
    ratios = {
        f"{size(row)} {name}": way["seconds"]["both"] / way["predicted"]["both"]
        for row in found.rows("windows")
        for name, way in row["ways"].items()
        if "windows" in way and "predicted" in way
    }
    wanted = "seconds of windows over predicted ones"
    if not ratios:
        return Verdict(wanted, "no windows", None)
    low, high = (end(ratios, key=ratios.__getitem__) for end in (min, max))
    told = f"median {median(ratios.values()):.2f} of {len(ratios)}; {ratios[low]:.2f} at {low}, "
    return Verdict(wanted, told + f"{ratios[high]:.2f} at {high}", None)
