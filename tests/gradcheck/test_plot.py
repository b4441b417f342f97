import builtins
from dataclasses import replace

import numpy as np
import pytest
from helpers import each

from attention_np import gradcheck
from attention_np.gradcheck import InputReport, Report
from attention_np.gradcheck.agreement import HOLDS, UNCHECKED, UNDECIDED, WRONG
from attention_np.gradcheck.plot import places, v_curve

from .programs import normal
from .reports import compared, wrong_in

matplotlib = pytest.importorskip("matplotlib", reason="for plots, pip install 'attention-np[plot]'")
matplotlib.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")

WITHOUT_ARRAYS = InputReport("missing", "complex-step", False, np.inf, diagnosis="the gradient is missing")


@pytest.fixture(autouse=True)
def closed_figures(monkeypatch):
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a plot must not be shown by us"))
    yield
    plt.close("all")


def legend_of(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()] if ax.get_legend() else []


def image_of(ax):
    return np.ma.filled(ax.images[0].get_array().astype(float), np.nan)


def outlined(ax):
    """The sides in the outline of what is wrong, each by its two ends."""
    return {tuple(map(tuple, side)) for side in ax.collections[0].get_segments()} if ax.collections else set()


def test_a_wrong_entry_is_bright_and_outlined():
    ax = places(wrong_in((1, 2)))
    image = image_of(ax)
    assert image.shape == (3, 4)
    assert image[1, 2] == 1e3  # the most that the scale shows
    assert np.delete(image.ravel(), 6).max() == 1e-3
    square = {(1.5, 0.5), (2.5, 0.5), (1.5, 1.5), (2.5, 1.5)}
    assert {end for side in outlined(ax) for end in side} == square
    assert len(outlined(ax)) == 4
    assert len(outlined(places(wrong_in((1, 2), (1, 3), (2, 3))))) == 8  # neighbours have one
    assert legend_of(ax) == ["wrong"]
    assert ax.get_title() == "x: 1 of 12 entries is wrong"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("index of axis 1", "index of axis 0")


def test_the_colour_is_the_difference_over_its_tolerance_and_an_array_that_holds_has_no_marks():
    floor = np.array([1e-3, 1e-2, 0.0, 0.0])
    report = compared("x", [1.0, 1.01, 1.0, 1.1], np.ones(4), floor)
    assert image_of(places(report))[0] == pytest.approx([1e-3, 0.1, 1e-3, 1e3])
    ax = places(compared("x", np.ones((2, 3)), np.ones((2, 3))))
    assert (legend_of(ax), len(ax.collections), ax.get_title()) == ([], 0, "x: holds")


def test_what_cannot_be_decided_has_a_dot_and_what_was_skipped_is_grey():
    coarse, looked_at = np.zeros((2, 3), bool), np.ones((2, 3), bool)
    coarse[0, 1], looked_at[1, 2] = True, False
    report = compared("x", np.ones((2, 3)), np.ones((2, 3)), coarse=coarse, looked_at=looked_at)
    assert set(report.details.verdict.ravel()) == {HOLDS, UNDECIDED, UNCHECKED}
    ax = places(report)
    assert legend_of(ax) == ["undecidable", "not looked at"]
    assert ax.collections[0].get_offsets().tolist() == [[1, 0]]
    assert np.isnan(image_of(ax)).tolist() == (~looked_at).tolist()
    assert (~ax.images[1].get_array().mask).tolist() == (~looked_at).tolist()


def test_each_index_of_the_leading_axes_has_its_rows_with_labels_where_there_is_room():
    report = wrong_in((1, 0, 2, 3), shape=(2, 4, 3, 4))
    ax = places(report)
    assert ((image_of(ax) > 1) == (report.details.verdict.reshape(24, 4) == WRONG)).all()
    assert legend_of(ax) == ["wrong"]
    assert ax.get_xlabel() == "index of axis 3"
    assert ax.get_ylabel() == "index of the leading axes"
    labels = dict(zip(ax.get_yticks(), (tick.get_text() for tick in ax.get_yticklabels()), strict=True))
    assert labels == {3 * (4 * i + j) + 1: f"[{i}, {j}]" for i in range(2) for j in range(4)}
    many = places(wrong_in((0, 0, 0), shape=(30, 2, 2)))
    assert [tick.get_text() for tick in many.get_yticklabels()] == [f"[{k}]" for k in range(0, 30, 2)]


@each("shape", [(), (1, 1, 1, 1), (11, 3, 2)])
def test_arrays_of_any_shape_are_plotted(shape):
    ax = places(wrong_in((0,) * len(shape), shape=shape))
    assert (image_of(ax) > 1).sum() == 1
    assert all(float(tick.get_text().replace("\N{MINUS SIGN}", "-")).is_integer() for tick in ax.get_xticklabels())
    empty = places(compared("x", np.ones((0, 3)), np.ones((0, 3))))
    assert [text.get_text() for text in empty.texts] == ["no entries"]


def test_infinite_gradients_and_gradients_in_single_precision_are_plotted():
    report = compared("x", [[1.0, np.inf, np.nan]], [[1.0, 2.0, 3.0]], looked_at=[True, True, True])
    single = report.details._replace(analytic=report.details.analytic.astype(np.float32))
    ax = places(replace(report, details=single))
    assert image_of(ax).tolist() == [[1e-3, 1e3, 1e3]]


def test_a_plot_goes_where_it_is_asked_to():
    figure, (first, second) = plt.subplots(1, 2)
    assert places(wrong_in((0, 0)), ax=second) is second
    assert v_curve(np.sin, {"x": normal(3)}, ax=first, steps=[1e-3, 1e-6]) is first
    assert plt.get_fignums() == [figure.number]


def test_a_report_plots_the_inputs_that_are_wrong():
    holds = compared("holds", np.ones(3), np.ones(3))
    report = Report((holds, wrong_in((0, 0)), WITHOUT_ARRAYS, replace(wrong_in((1, 1)), name="y")))
    axes = report.plot()
    assert [ax.get_title().split(":")[0] for ax in axes] == ["x", "y"]
    assert axes[0].figure is axes[1].figure
    assert [ax.get_title() for ax in report.plot("holds")] == ["holds: holds"]
    assert [ax.get_title() for ax in Report((holds,)).plot()] == ["holds: holds"]


def test_the_report_of_all_inputs_has_no_places_of_its_own():
    report = gradcheck.check(lambda x: x * x, lambda d, x: (2 * x * d,), {"x": np.ones(3)})
    with pytest.raises(TypeError, match=r"^places draws one input of a report, such as report\['x'\], not a whole"):
        places(report)


def test_a_report_without_arrays_cannot_be_plotted(tmp_path):
    report = Report((wrong_in((0, 0)), WITHOUT_ARRAYS))
    report.save(tmp_path / "short")
    report.save(tmp_path / "long", details=True)
    reason = "the report holds no arrays to plot for x, missing: there was nothing to compare, or it was saved without"
    with pytest.raises(ValueError, match=reason):
        Report.load(tmp_path / "short").plot()
    with pytest.raises(ValueError, match="no arrays to plot for missing"):
        report.plot("missing")
    with pytest.raises(ValueError, match="no arrays to plot for missing"):
        places(WITHOUT_ARRAYS)
    loaded = Report.load(tmp_path / "long").plot()[0]
    assert image_of(loaded).tolist() == image_of(report.plot()[0]).tolist()


def test_the_curves_are_the_median_errors_with_a_band_to_the_largest():
    steps = [1e-2, 1e-4, 1e-6]
    ax = v_curve(np.exp, {"x": np.linspace(0.1, 1, 7)}, np.ones(7), steps=steps)
    lines = {line.get_label().split(",")[0]: line for line in ax.get_lines()}
    x = np.linspace(0.1, 1, 7)
    size = 2.0 ** np.floor(np.log2(np.maximum(x, np.median(x))))
    forward = np.exp(x) * size * 1e-4 / 2 / np.e
    assert lines["forward differences"].get_xdata().tolist() == steps
    assert lines["forward differences"].get_ydata()[1] == pytest.approx(np.median(forward), rel=1e-3)
    heights = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert heights == pytest.approx(np.clip(heights, 0, None))
    assert np.abs(heights / forward.max() - 1).min() < 1e-3
    assert list(lines) == [
        "forward differences",
        "central differences",
        "extrapolated once",
        "extrapolated twice",
        "complex step",
        "rounding",
    ]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert ax.get_xlabel() == "step h, relative to the size of the entry"
    assert ax.get_ylabel() == "relative error against\nthe complex step"
    assert ax.get_title().endswith("median and largest of 7 entries")
    looks = [(line.get_marker(), line.get_linestyle()) for line in ax.get_lines()]
    assert len(set(looks)) == len(looks)  # told apart without colour


def test_all_is_drawn_without_a_warning():
    odd = compared("x", [[1.0, np.inf, np.nan]], [[1.0, 2.0, 3.0]], coarse=[[True, False, False]])
    lost = v_curve(np.log, {"x": np.array([0.5])}, steps=[2.0, 1e-3, 1e-6])
    for ax in (
        places(odd),
        places(wrong_in((1, 0, 2), shape=(2, 4, 3))),
        v_curve(lambda x: 2 * x, {"x": np.ones(2)}),
        lost,
    ):
        ax.figure.canvas.draw()


def test_a_wrong_gradient_is_a_plateau():
    x = normal(5)
    ax = v_curve(np.sin, {"x": x}, np.ones(5), gradient={"x": 1.001 * np.cos(x)})
    curve = ax.get_lines()[4]
    assert curve.get_label().startswith("complex step")
    assert (np.abs(np.log10(curve.get_ydata()[:20]) + 3) < 1).all()
    assert ax.get_ylabel() == "relative error against\nthe claimed gradient"


def test_errors_of_zero_and_steps_without_any_are_plotted():
    ax = v_curve(lambda x: 2 * x, {"x": np.ones(2)})
    assert all((np.array(line.get_ydata()) > 0).all() for line in ax.get_lines())
    ax = v_curve(np.log, {"x": np.array([0.5])}, steps=[2.0, 1e-3, 1e-6])
    central = ax.get_lines()[1]
    assert central.get_xdata().tolist() == [1e-3, 1e-6]
    assert ax.get_title() == "Error of the numerical gradient of one entry"


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    imported = builtins.__import__

    def without_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return imported(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    for plot in (
        lambda: places(wrong_in((0, 0))),
        lambda: Report((wrong_in((0, 0)),)).plot(),
        lambda: v_curve(np.sin, {"x": normal(3)}),
    ):
        with pytest.raises(ImportError, match=r"plots need Matplotlib: pip install 'attention-np\[plot\]'"):
            plot()
