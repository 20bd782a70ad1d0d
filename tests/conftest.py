"""What the whole suite shares: tests that need a GPU say so and are skipped without one."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needed = {"gpu": 1, "multi_gpu": 2}
    marked = [(item, name) for item in items for name in needed if item.get_closest_marker(name)]
    if not marked:
        return  # torch takes seconds to import
    import torch

    present = torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item, name in marked:
        if present < needed[name]:
            reason = f"needs {needed[name]} CUDA device(s), torch sees {present}"
            item.add_marker(pytest.mark.skip(reason=reason))
