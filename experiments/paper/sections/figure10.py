"""Figure 10: FLOPs of every step of the scan over a pruned VGG-11."""

from experiments.paper.section import Records, Section


def text(records: Records) -> str:
    totals = records["figure10"]["totals"]
    millions = {name: f"{value / 1e6:,.0f}" for name, value in totals.items()}
    factored = (
        f"{millions['scan_in_factors']} million, {millions['critical_path_in_factors']} million on "
        f"a critical path of {totals['steps_critical_path_in_factors']} steps."
    )
    return (
        f"The scan: {millions['scan']} million FLOPs an image, {millions['critical_path']} million "
        f"on the critical path of {totals['steps_critical_path']} steps. Back-propagation: "
        f"{totals['steps_bp']} steps, {millions['bp_dense']} million with dense kernels, "
        f"{millions['bp_surviving']} million on the surviving weights. **Back-propagation wins in "
        "FLOPs:** the products of matrices that shorten the path cost more than all of it. With "
        "those that only scale and pick kept in factors, as `LayerScan` makes them: " + factored
    )


def at_a_glance(records: Records) -> str:
    totals = records["figure10"]["totals"]
    return (
        f"{totals['steps_critical_path']} steps instead of {totals['steps_bp']}, "
        f"{totals['critical_path'] / totals['bp_dense']:.1f} times the FLOPs of dense BP"
    )


SECTION = Section(
    name="figure10",
    title="Figure 10: FLOPs of every step of the scan over a pruned VGG-11",
    minutes=1,
    paper="VGG-11 without 97 % of its weights: the products of the scan (two levels), beside "
    "those of back-propagation. With enough workers only those on the critical path count.",
    run="experiments.paper.figure10",
    records=("figure10",),
    pictures=("figure10",),
    text=text,
    glance=at_a_glance,
)
