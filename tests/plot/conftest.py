from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_shown_or_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    plt = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(plt, "show", lambda: pytest.fail("a plot must not be shown by us"))
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before
    plt.close("all")
