import builtins
from dataclasses import replace

import numpy as np
import pytest
from helpers import each

from attention_np import gradcheck
from attention_np.gradcheck import Report
from attention_np.gradcheck.plot import places

from .reports import MISSING, compared, wrong_in

matplotlib = pytest.importorskip("matplotlib", reason="for plots, pip install 'attention-np[plot]'")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed_figures(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a plot must not be shown by us"))
    yield
    plt.close("all")


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []


def image_of(ax):
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def test_a_wrong_entry_is_bright_and_has_a_cross():
    ax = places(wrong_in((1, 2)))
    image = image_of(ax)
    assert image.shape == (3, 4)
    assert image[1, 2] == 1e3  # the most that the scale shows
    assert np.delete(image.ravel(), 6).max() == 1e-3
    assert ax.collections[0].get_offsets().tolist() == [[2, 1]]
    assert (legend_of(ax), ax.get_title()) == (["wrong"], "x: 1 of 12 entries is wrong")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("index of axis 1", "index of axis 0")


def test_the_colour_is_the_difference_over_its_tolerance_and_an_array_that_holds_has_no_marks():
    ax = places(compared("x", [1.0, 1.01, 1.0, 1.1], np.ones(4), [1e-3, 1e-2, 0.0, 0.0]))
    assert image_of(ax)[0] == pytest.approx([1e-3, 0.1, 1e-3, 1e3])
    ax = places(compared("x", np.ones((2, 3)), np.ones((2, 3))))
    assert (legend_of(ax), len(ax.collections), ax.get_title()) == ([], 0, "x: holds")


def test_what_cannot_be_decided_has_a_dot_and_so_has_what_was_skipped():
    coarse = np.array([[False, True, False], [False, False, False]])
    looked_at = np.array([[True, True, True], [True, True, False]])
    ax = places(compared("x", np.ones((2, 3)), np.ones((2, 3)), coarse=coarse, looked_at=looked_at))
    assert legend_of(ax) == ["undecidable", "not looked at"]
    assert ax.collections[0].get_offsets().tolist() == [[1, 0]]
    assert np.isnan(image_of(ax)).tolist() == (~looked_at).tolist()
    assert ax.collections[1].get_offsets().tolist() == [[2, 1]]


def test_each_index_of_the_leading_axes_has_its_rows_with_labels_where_there_is_room():
    ax = places(wrong_in((1, 0, 2, 3), shape=(2, 4, 3, 4)))
    assert np.argwhere(image_of(ax) > 1).tolist() == [[3 * 4 + 2, 3]]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("index of axis 3", "index of the leading axes")
    labels = dict(zip(ax.get_yticks(), (tick.get_text() for tick in ax.get_yticklabels()), strict=True))
    assert labels == {3 * (4 * i + j) + 1: f"[{i}, {j}]" for i in range(2) for j in range(4)}
    many = places(wrong_in((0, 0, 0), shape=(30, 2, 2)))
    assert [tick.get_text() for tick in many.get_yticklabels()] == [f"[{k}]" for k in range(0, 30, 2)]


@each("shape", [(), (1, 1, 1, 1), (11, 3, 2)])
def test_arrays_of_any_shape_are_plotted_without_a_warning(shape):
    ax = places(wrong_in((0,) * len(shape), shape=shape))
    assert (image_of(ax) > 1).sum() == 1
    assert all(float(tick.get_text().replace("\N{MINUS SIGN}", "-")).is_integer() for tick in ax.get_xticklabels())
    ax.figure.canvas.draw()
    empty = places(compared("x", np.ones((0, 3)), np.ones((0, 3))))
    assert [text.get_text() for text in empty.texts] == ["no entries"]


def test_a_report_plots_the_inputs_that_are_wrong_or_the_one_that_is_asked_for():
    holds, missing = compared("holds", np.ones(3), np.ones(3)), replace(MISSING, name="missing")
    report = Report((holds, wrong_in((0, 0)), missing, replace(wrong_in((1, 1)), name="y")))
    axes = report.plot()
    assert [ax.get_title().split(":")[0] for ax in axes] == ["x", "y"]
    assert axes[0].figure is axes[1].figure
    assert [ax.get_title() for ax in report.plot("holds")] == ["holds: holds"]
    assert [ax.get_title() for ax in Report((holds,)).plot()] == ["holds: holds"]
    with pytest.raises(TypeError, match=r"^places draws one input of a report, such as report\['x'\], not a whole Rep"):
        places(report)


def test_a_report_without_arrays_cannot_be_plotted():
    report = Report((wrong_in((0, 0)), replace(MISSING, name="missing")))
    without = Report(tuple(replace(entry, details=None) for entry in report))
    for plotted, names in ((without.plot, "x, missing"), (lambda: places(report["missing"]), "missing")):
        with pytest.raises(ValueError, match=f"^the report holds no arrays to plot for {names}: there was nothing to "):
            plotted()


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *args, **kwargs)

    report = gradcheck.check(np.sin, lambda d, _: d, {"x": np.ones(2)})
    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    for plot in (lambda: places(report["x"]), report.plot):
        with pytest.raises(ImportError, match=r"plots need Matplotlib: pip install 'attention-np\[plot\]'"):
            plot()
