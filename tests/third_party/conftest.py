"""Collected only where they are asked for: `pytest -m third_party`."""


def pytest_ignore_collect(collection_path, config):
    return None if "third_party" in (config.option.markexpr or "") else True
