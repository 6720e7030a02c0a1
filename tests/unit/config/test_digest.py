"""The digest of a configuration."""

from __future__ import annotations

from dataclasses import replace

from monitor.config import config_digest
from tests.support.streams import SETTINGS


def test_the_digest_differs_if_a_setting_differs() -> None:
    """Also within an experiment."""
    others = [
        replace(SETTINGS, limits=replace(SETTINGS.limits, max_items=7)),
        replace(SETTINGS, experiments=(replace(SETTINGS.experiments[0], max_grade=5),)),
    ]
    assert len({config_digest(settings) for settings in (SETTINGS, *others)}) == 3


def test_secrets_and_the_name_of_the_instance_do_not_change_the_digest() -> None:
    """Workers with the same file have the same digest, and the digest reveals no password."""
    other = replace(
        SETTINGS,
        kafka=replace(SETTINGS.kafka, group_instance_id="monitor-2", sasl_password="a"),
        store=replace(SETTINGS.store, password="b", user_hash_key="c"),
        http=replace(SETTINGS.http, token="d", port=1),
    )
    assert config_digest(other) == config_digest(SETTINGS)
