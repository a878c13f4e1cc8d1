"""A suite of one test: random sequences of everything, checked against the model."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tubes.queue import Queue
from tubes.testing.clock import FakeClock
from tubes.testing.machine import Bench, machine_for
from tubes.testing.suite import Suite

EXAMPLES = "TUBES_KIT_EXAMPLES"
"""Environment variable: how many sequences to try. The default is for everyday use; a soak has thousands."""


def shortened(long: settings) -> settings:
    """Settings for few sequences, where each call takes longer; a failing one is not shrunk."""
    return settings(
        long,
        max_examples=int(os.environ.get(EXAMPLES, "5")),
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )


class Agreement(Suite):
    """Results, errors, events, tasks and statistics are the model's after every step."""

    def machine_settings(self) -> settings:
        """How long the machine runs."""
        return settings(
            max_examples=int(os.environ.get(EXAMPLES, "25")),
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )

    def die(self, queue: Queue) -> None:
        """End a connection without a word, as SIGKILL would: the store closes without leaving its session.

        On a server others would notice after seconds, too long for a machine: there the queue just closes.
        """
        if not queue.store.reconnects:
            queue.store.close()
        queue.close()  # ends its threads; a closed store can do nothing more

    def test_a_tube_agrees_with_the_model_after_every_step(self, store_url: str) -> None:
        def open_queue(clock: FakeClock, **options: Any) -> Queue:
            return self.connect(store_url, clock, **options)

        bench = Bench(
            type=self.type,
            options=self.options,
            features=self.features,
            order=self.order,
            connect=open_queue,
            shared=self.shared,
            transactions=self.transactions,
            die=self.die,
        )
        run_state_machine_as_test(machine_for(bench), settings=self.machine_settings())
