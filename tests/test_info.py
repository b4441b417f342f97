"""`python -m attention_np info`: what it finds, what it advises, and when it keeps silent."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from attention_np import cli
from attention_np._lib import machine, text
from attention_np._lib.machine import Cores
from attention_np.cli import facts as facts_module
from attention_np.cli import info, rates
from attention_np.cli.advice import Advice, advise
from attention_np.cli.facts import Blas, Facts
from attention_np.cli.rates import Rates

RATES = Rates(
    {"float32": 100.0, "float64": 50.0}, {"float32": 0.4, "float64": 0.8}, {"float32": 0.2, "float64": 0.8}, "SkylakeX"
)
FACTS = Facts(
    python="3.12.1",
    numpy="2.4.0",
    system="Linux",
    processor="a processor",
    cores=Cores(4, 4, None),
    memory=None,
    load=0.0,
    simd=["X86_V2", "X86_V3", "X86_V4"],
    exp2="X86_V4",
    blas=[Blas("openblas", "0.3.31", "SkylakeX", 4, "pthreads")],
    threadpoolctl="3.6.0",
    variables={},
)


def scaled(factor: float) -> Rates:
    return RATES._replace(products={name: factor * rate for name, rate in RATES.products.items()})


class Machine:
    """Pretends to measure: rates are `factor` times as high with the given variables as without."""

    def __init__(self, factor: float) -> None:
        self.factor, self.asked = factor, []

    def __call__(self, variables: Mapping[str, str | None]) -> Rates:
        if variables:
            self.asked.append(dict(variables))
        return scaled(self.factor if variables else 1.0)


def advice(facts: Facts, found: Rates | None = RATES, factor: float = 2.0) -> list[Advice]:
    return list(advise(facts, found, Machine(factor)))


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")
    return root


MEMINFO = {
    "proc/meminfo": "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:   4194304 kB\nHugePages_Total: 0\n"
}
GIB = 2**30


def test_memory_is_that_of_the_system_without_control_groups(tmp_path: Path) -> None:
    assert machine.memory(write(tmp_path, MEMINFO)) == (8 * GIB, 4 * GIB)


def test_memory_is_that_of_the_control_group_if_that_is_less(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/outer/memory.current": f"{GIB}\n",
        "sys/fs/cgroup/outer/memory.stat": f"anon 1\ninactive_file {GIB // 2}\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "12\n",
    }
    assert machine.memory(write(tmp_path, MEMINFO | files)) == (2 * GIB, 3 * GIB // 2)


def test_memory_is_limited_by_control_groups_of_the_first_version_too(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "9:name=systemd:/\n8:pids:/another\n4:memory:/job\n0::/\n",
        "sys/fs/cgroup/memory/another/memory.limit_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/another/memory.usage_in_bytes": "0\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": f"{GIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "77\n",
    }
    assert machine.memory(write(tmp_path, MEMINFO | files)) == (3 * GIB, 2 * GIB)


def test_a_container_finds_its_limits_where_its_own_group_is_mounted(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/not/seen/from/within\n",
        "sys/fs/cgroup/memory.max": f"{GIB}\n",
        "sys/fs/cgroup/memory.current": "0\n",
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
    }
    root = write(tmp_path, MEMINFO | files)
    assert machine.memory(root) == (GIB, GIB)
    assert machine.cores(root).quota == 1.5


def test_memory_is_unknown_where_nobody_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert machine.memory(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "sysconf"), reason="the system has no sysconf")
def test_memory_is_known_without_a_file_that_says_so(tmp_path: Path) -> None:
    found = machine.memory(tmp_path)
    assert found is not None
    assert found.total == found.available > 2**26


def test_the_quota_is_the_smallest_on_the_way_out(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/a/b\n",
        "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_quota_us": "400000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/b/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    assert machine.cores(write(tmp_path, files)).quota == 2


@pytest.mark.parametrize(("quota", "usable"), [(None, 4), (8.0, 4), (2.0, 2), (1.5, 2), (0.3, 1)])
def test_usable_cores_are_those_of_the_quota(quota: float | None, usable: int) -> None:
    assert Cores(8, 4, quota).usable == usable


def test_a_machine_that_lacks_nothing_gets_no_advice() -> None:
    assert advice(FACTS) == []


def test_kernels_that_are_older_than_the_processor_are_named_with_the_ratio_that_was_measured() -> None:
    (found,) = advice(FACTS, RATES._replace(kernels="Haswell"), factor=1.9)
    assert "OPENBLAS_CORETYPE=SkylakeX" in found.text
    assert "Haswell" in found.text
    assert found.ratios == pytest.approx({"float32": 1.9, "float64": 1.9})


def test_kernels_are_left_alone_where_others_are_not_faster() -> None:
    assert advice(FACTS, RATES._replace(kernels="Haswell"), factor=1.05) == []


@pytest.mark.parametrize(("products", "is_advised"), [((1.7, 0.3), False), ((1.7, 0.95), True)])
def test_nothing_is_advised_that_one_dtype_loses_by(products: tuple[float, float], is_advised: bool) -> None:
    def measure(variables: Mapping[str, str | None]) -> Rates:
        factors = products if variables else (1.0, 1.0)
        return RATES._replace(
            products={name: f * RATES.products[name] for f, name in zip(factors, ("float32", "float64"), strict=True)}
        )

    found = list(advise(FACTS, RATES._replace(kernels="Haswell"), measure))
    assert len(found) == is_advised


def test_kernels_for_avx2_are_right_for_a_processor_without_avx512() -> None:
    assert advice(FACTS._replace(simd=["X86_V2", "X86_V3"], exp2="baseline"), RATES._replace(kernels="Haswell")) == []


def test_a_variable_that_holds_blas_to_fewer_threads_than_cores_is_named() -> None:
    (found,) = advice(FACTS._replace(variables={"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "4"}))
    assert "OMP_NUM_THREADS=1" in found.text
    assert "MKL_NUM_THREADS" not in found.text


def test_a_quota_below_the_cores_suggests_as_many_threads() -> None:
    measure = Machine(3.0)
    (found,) = advise(FACTS._replace(cores=Cores(64, 64, 2.0)), RATES, measure)
    assert "OPENBLAS_NUM_THREADS=2" in found.text
    assert {variables["OPENBLAS_NUM_THREADS"] for variables in measure.asked} == {"2"}


def test_a_numpy_that_does_not_say_what_is_vectorised_should_be_newer() -> None:
    (found,) = advice(FACTS._replace(exp2=None, numpy="1.26.4"))
    assert "version 2" in found.text
    assert found.ratios == pytest.approx({"float32": 2.0, "float64": 1.0})


def test_a_numpy_whose_exp2_is_not_vectorised_is_named_only_where_another_build_would_help() -> None:
    (found,) = advice(FACTS._replace(exp2="baseline(X86_V2)"))
    assert "exp2 is not vectorised" in found.text
    assert advice(FACTS._replace(exp2="baseline(X86_V2)", system="Windows")) == []


def test_threadpoolctl_is_missed_only_where_there_are_cores_to_share() -> None:
    (found,) = advice(FACTS._replace(threadpoolctl=None))
    assert "attention-np[fast]" in found.text
    assert advice(FACTS._replace(threadpoolctl=None, cores=Cores(1, 1, None))) == []


def test_nothing_is_promised_that_could_not_be_measured() -> None:
    facts = FACTS._replace(variables={"OMP_NUM_THREADS": "1"})
    assert list(advise(facts, RATES._replace(kernels="Haswell"), lambda _: None)) == []
    assert advice(facts, None) == []


def test_rates_are_measured_in_a_process_with_other_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    found = rates.measure({})
    assert found is not None
    for measured in found[:3]:
        assert set(measured) == {"float32", "float64"}
        assert min(measured.values()) > 0


def test_no_rates_are_known_where_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(Path(__file__).parent / "no-such-python"))
    assert rates.measure({}) is None


def test_without_threadpoolctl_the_library_is_what_numpy_was_built_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    (blas,) = facts_module.gather().blas
    assert blas.kernels is None
    assert blas.threads is None
    assert "unknown without threadpoolctl" in info._blas(blas)


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(info, "gather", lambda: FACTS)
    monkeypatch.setattr(rates, "measure", Machine(2.0))


@pytest.mark.usefixtures("pretended")
def test_info_prints_what_there_is_and_that_nothing_is_amiss(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info"]) == 0
    output = capsys.readouterr().out
    for words in ("2.4.0", "openblas 0.3.31, SkylakeX kernels, 4 threads (pthreads)", "100 GF/s", "Nothing was found"):
        assert words in output


@pytest.mark.usefixtures("pretended")
def test_info_says_by_how_much_and_where(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(info, "gather", lambda: FACTS._replace(variables={"OMP_NUM_THREADS": "1"}, load=1.5))
    assert cli.main(["info", "--json", str(tmp_path / "info.json")]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "matrix products 2.00 times as fast in float32 and 2.00 times as fast in float64" in output
    assert "Other programs are running (load 1.5)" in output
    content = json.loads((tmp_path / "info.json").read_text(encoding="utf-8"))
    assert content["facts"]["cores"] == {"present": 4, "allowed": 4, "quota": None}
    assert content["advice"][0]["ratios"] == {"float32": 2.0, "float64": 2.0}


@pytest.mark.usefixtures("pretended")
def test_info_says_so_where_nothing_could_be_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rates, "measure", lambda _: None)
    assert cli.main(["info"]) == 0
    assert "could not be measured" in capsys.readouterr().out


def test_info_refuses_a_file_in_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", "--json", "there/is/no/such/folder.json"]) == 2
    assert "there is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (20 * GIB, "20.0 GiB"),
        (2**40 - 1, "1.00 TiB"),
    ],
)
def test_bytes_are_printed_with_three_digits(number: int, expected: str) -> None:
    assert text.in_bytes(number) == expected
