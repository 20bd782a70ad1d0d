"""The variables that settings add to a job's environment; what the user set himself stays."""

from __future__ import annotations

import os
from collections.abc import Mapping

from aiak_tune.optimizations.base import NoEffectError, Optimization, Settings, Stage


def variables_of(settings: Settings, catalog: Mapping[str, Optimization]) -> dict[str, str]:
    """Return the new variables. An entry that leaves the user's alone says so in the job."""
    environment = dict(os.environ)
    for name, params in settings.items():
        if catalog[name].stage is Stage.ENVIRONMENT:
            try:
                catalog[name].apply(environment, params)
            except NoEffectError:
                continue  # the agent asks the entry again, in the job, and tells why
    return {k: v for k, v in environment.items() if os.environ.get(k) != v}
