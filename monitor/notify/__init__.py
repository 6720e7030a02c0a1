"""Messages to people and programs about changes of experiments (docs/notifications.md).

- `observation`: the present states of the experiments, from a store
- `messages`: title, body and JSON of a message
- `channels`: Apprise, and signed webhooks
- `notifier`: the threads that record changes in the outbox, and deliver messages
"""

from __future__ import annotations

from monitor.notify.channels import Channel, DeliveryFailed, open_channels
from monitor.notify.messages import Message, page_address, write_test_message
from monitor.notify.notifier import Notifier
from monitor.notify.observation import StoreObservation, observe_store

__all__ = [
    "Channel",
    "DeliveryFailed",
    "Message",
    "Notifier",
    "StoreObservation",
    "observe_store",
    "open_channels",
    "page_address",
    "write_test_message",
]
