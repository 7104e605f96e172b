"""The measurements of `fedaccord bench` as tables and bars."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedaccord.report.canvas import COLOURS, new_figure, save
from fedaccord.report.paper import METHODS, SECONDS


def draw(shares: Mapping[str, Any], path: Path) -> None:
    """Draw shares of the matrix-product peak: a group for each task, with a bar for each method and the bare loop."""
    names = list(next(iter(shares.values()))["share_of_peak"])
    figure = new_figure(1.6 + 1.8 * len(shares), 3.2)
    axes = figure.add_subplot()
    width = 0.8 / len(names)
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        places = [task + (number - (len(names) - 1) / 2) * width for task in range(len(shares))]
        bars = axes.bar(
            places, [entry["share_of_peak"][name] for entry in shares.values()], 0.9 * width, label=name, color=colour
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(shares)), list(shares))
    axes.set(ylabel="share of the matrix-product peak", ylim=(0, 1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    save(figure, path)


def table(found: dict[str, Any]) -> str:
    """Return the measurements as Markdown tables."""
    facts = found["machine"]
    lines = [
        f"{facts['processor']}, {facts['cores']} cores, {facts['memory_gib']} GiB, torch {facts['torch']}; "
        f"medians of {found['repeats']}, load before {facts['load_before']:.1f}"
    ]
    parts: dict[str, Callable[[Any], list[str]]]
    parts = {"shares": share_lines, "methods": overhead_lines, "rounds": round_lines, "scaling": scaling_lines}
    for part, lines_of in parts.items():
        if part in found:
            lines += ["", *lines_of(found[part])]
    return "\n".join(lines) + "\n"


def share_lines(shares: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table with the shares of the peak, the ratio to the bare loop and each method's cost."""
    first = next(iter(shares.values()))
    plain, *others = first["flops_a_step"]
    heads = ["task", "engine", f"{plain}, ms a client-step", *(f"share of peak: {n}" for n in first["share_of_peak"])]
    heads += ["times the bare loop", *(f"{name} over {plain}: time (FLOPs)" for name in others)]
    rows = []
    for task, entry in shares.items():
        times, flops = entry["times_the_plain"], entry["times_the_plain_in_flops"]
        cells = [task, entry["engine"].split(":")[0], entry["ms_a_client_step"][plain]]
        cells += [f"{share:.2f}" for share in entry["share_of_peak"].values()]
        rows.append([*cells, entry["times_the_bare_loop"], *(f"{times[name]} ({flops[name]})" for name in others)])
    return markdown(heads, rows)


def overhead_lines(methods: Mapping[str, Any]) -> list[str]:
    """Return the lines of the run-time table: our ratios to FA, the paper's in brackets, and our seconds."""
    rows = []
    for task, entry in methods.items():
        printed = SECONDS.get(task.split(",")[0])  # "mnist, 200 trials"
        beside = {name: f" ({printed[name][0] / printed['FA'][0]:.2f})" if printed else "" for name in METHODS}
        rows.append([task, *(f"{entry[name]['to_FA']:.2f}{beside[name]}" for name in METHODS)])
        rows.append(
            ["seconds", *(f"{entry[name]['seconds']:.3g} ± {entry[name]['deviation']:.1g}" for name in METHODS)]
        )
    return markdown(["30 mini-batches and a round's tuning, to FA (paper)", *METHODS], rows)


def round_lines(tasks: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of a round's time and bytes by method, with a pair of columns for each task."""
    heads = ["a whole round, to FA", *(f"{task}: {what}" for task in tasks for what in ("time", "bytes"))]
    every = next(iter(tasks.values()))
    return markdown(
        heads,
        [
            [name, *(f"{each[name][what]:.2f}" for each in tasks.values() for what in ("to_FA", "bytes_to_FA"))]
            for name in every
        ],
    )


def scaling_lines(sizes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a table of time and memory by the number of clients."""
    heads = ["clients", "a round", "ms a client-round", "to 10 clients", "start-up, s", "peak, GiB (data)"]
    names = ("cohort", "ms_a_client_round", "to_10_clients", "start_up_s")
    return markdown(
        heads,
        [
            [f"{each['clients']:,}", *(each[name] for name in names), f"{each['peak_gib']} ({each['data_gib']})"]
            for each in sizes
        ],
    )


def markdown(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [f"| {' | '.join(map(str, cells))} |" for cells in (heads, *rows)]
    return [lines[0], "|---" * len(heads) + "|", *lines[1:]]
