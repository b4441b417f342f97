import pytest
from hypothesis import HealthCheck, settings

for profile, examples in {"suite": 40, "quick": 8}.items():
    settings.register_profile(
        profile, deadline=None, derandomize=True, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("quick" if config.option.markexpr == "not long" else "suite")
