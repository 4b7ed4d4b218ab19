"""Plots with matplotlib. Each function draws on the given axes, or creates some, and returns them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ._frame import Z
from ._release import Release, ReleaseError

BLUE = "#1d4ed8"


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot

    return matplotlib.pyplot.subplots(layout="constrained")[1]


def _choose(releases: Sequence[Release], value: str | None, preferred: Sequence[str]) -> str:
    names = {name for r in releases for name in r.values}
    if value is not None:
        if value not in names:
            raise ReleaseError(f"no release has {value}, only {', '.join(sorted(names))}")
        return value
    for name in preferred:
        if name in names:
            return name
    raise ReleaseError(f"the releases have none of {', '.join(preferred)}")


def _one(releases: Sequence[Release]) -> None:
    if len({(r.stream, r.partition) for r in releases}) > 1:
        raise ReleaseError("the releases belong to several streams or partitions: choose one, as in [r for r in releases if r.stream == 'orders']")


def plot_mean(releases: Sequence[Release], column: str | None = None, value: str | None = None, *, skip: int = 0, ax: Any = None) -> Any:
    """Plots a released value over time, with a band of ±1.96 standard errors.

    column is one of the value's columns; None stands for the first. The first skip releases, which are
    the noisiest, are omitted. The line breaks between epochs.
    """
    _one(releases)
    name = _choose(releases, value, ("mean_original", "mean", "sum", "theta_average", "theta_original", "theta"))
    ax = _axes(ax)
    shown = [r for r in sorted(releases, key=lambda r: r.order) if name in r.values][skip:]
    label = ""
    for epoch in sorted({r.epoch for r in shown}):
        x, y, e = [], [], []
        for r in (r for r in shown if r.epoch == epoch):
            v = r.values[name]
            labels = [c for c, _ in v.labels]
            label = column if column is not None else labels[0]
            if label not in labels:
                raise ReleaseError(f"{name} has no column {label}, only {', '.join(dict.fromkeys(labels))}")
            i = labels.index(label)
            se = v.se[i]
            x.append(r.covers[1])
            y.append(v.data[i])
            e.append(math.nan if se is None else Z * se)
        ax.fill_between(x, [a - b for a, b in zip(y, e)], [a + b for a, b in zip(y, e)], color=BLUE, alpha=0.18, linewidth=0)
        ax.plot(x, y, color=BLUE, linewidth=1.6)
    ax.set(xlabel="offset", ylabel=f"{name} of {label}" if label else name)
    ax.grid(alpha=0.25)
    return ax


def plot_correlation(releases: Sequence[Release], value: str | None = None, *, ax: Any = None) -> Any:
    """Plots the correlation matrix that follows from the newest release's covariance. An entry is blank if one of
    its two variances is not positive."""
    _one(releases)
    name = _choose(releases, value, ("covariance_original", "covariance", "covariance_psd"))
    ax = _axes(ax)
    newest = max((r for r in releases if name in r.values), key=lambda r: r.order)
    m = newest.values[name].matrix()
    n = len(m)
    c = [[m[i][j] / math.sqrt(m[i][i] * m[j][j]) if m[i][i] > 0 and m[j][j] > 0 else math.nan for j in range(n)] for i in range(n)]
    image = ax.imshow(c, vmin=-1, vmax=1, cmap="RdBu")
    names = newest.columns if len(newest.columns) == n else [str(i + 1) for i in range(n)]
    ax.set_xticks(range(n), names, rotation=45, ha="right")
    ax.set_yticks(range(n), names)
    if n <= 12:
        for i in range(n):
            for j in range(n):
                if not math.isnan(c[i][j]):
                    ax.text(j, i, f"{c[i][j]:.2f}", ha="center", va="center", fontsize=8, color="white" if abs(c[i][j]) > 0.6 else "black")
    ax.figure.colorbar(image, ax=ax, shrink=0.8)
    ax.set_title(f"correlation, {newest.key}")
    return ax


def plot_coefficients(releases: Sequence[Release], value: str | None = None, *, ax: Any = None) -> Any:
    """Plots the newest release's coefficients, with intervals if it has them."""
    _one(releases)
    name = _choose(releases, value, ("theta_average", "theta_average_original", "theta_original", "theta"))
    ax = _axes(ax)
    newest = max((r for r in releases if name in r.values), key=lambda r: r.order)
    v = newest.values[name]
    low, high = newest.values.get("interval_low"), newest.values.get("interval_high")
    place = range(len(v.data))
    for i in place:
        se = v.se[i]
        if name == "theta_average" and low is not None and high is not None:
            ax.plot([low.data[i], high.data[i]], [i, i], color=BLUE, linewidth=2)
        elif se is not None:
            ax.plot([v.data[i] - Z * se, v.data[i] + Z * se], [i, i], color=BLUE, linewidth=2)
    ax.plot(v.data, list(place), "o", color=BLUE)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.set_yticks(list(place), [c for c, _ in v.labels])
    ax.invert_yaxis()
    ax.set(xlabel=name, title=newest.key)
    ax.grid(axis="x", alpha=0.25)
    return ax
