"""Steps of a centre with a real bank, in epochs whose deadlines are long over."""

from __future__ import annotations

import numpy as np

from dpfuse import Entry
from dpfuse.privacy.release import Charged
from support.wire import wait_for

STEPS = 4
"""Of each epoch."""


class Past:
    """Steps of epochs whose deadlines are long over, so that a boundary is closed at once."""

    def __init__(self, bank):
        self.interval_s = bank.terms.epoch_s / STEPS
        self.start = bank.terms.epoch_at(bank.now()) - 1000

    def closes_at(self, client, step):
        return client.terms.begins_at(self.start) + (step - 0.5) * self.interval_s - client._link.offset_s

    def begin(self, client, step):
        return client.begin_step(step, self.closes_at(client, step), self.interval_s)

    def answered(self, *clients):
        wait_for(lambda: all(client._link._answers for client in clients), 20)


def spend_epoch(past, client, ledger, epoch):
    """Sensor 5 reports to the centre in each step of the epoch, and pays all that it may."""
    for step in range(epoch * STEPS + 1, (epoch + 1) * STEPS + 1):
        _, amounts = past.begin(client, step)
        client.note(np.array([5]))
        if len(amounts):
            zeros = np.zeros(ledger.terms.dimension, np.int64)
            charged = Charged(2**30, None, amounts, zeros)
            ledger.commit([Entry(*ledger.streams, step, charged, np.array([5]))])
