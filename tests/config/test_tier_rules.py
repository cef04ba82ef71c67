"""Tiers as settings: what they are called, what they outlive, and what cannot be kept."""

from __future__ import annotations

from typing import Any

import pytest

from mementum.config.loading import examine, load
from mementum.config.showing import rendered
from mementum.config.tiers import Tier
from mementum.records import Reach


@pytest.mark.parametrize(
    ("url", "called", "outlives"),
    [
        ("s3://bucket/a/prefix", "s3:bucket", Reach.MACHINE),
        ("redis://me:secret@cache.example:6379/0", "redis:cache.example", Reach.MACHINE),
        ("ram://", "ram", Reach.PROCESS),
        ("/mnt/nfs/ckpt", "/mnt/nfs/ckpt", Reach.REBOOT),
        ("file:///mnt/nfs/ckpt", "/mnt/nfs/ckpt", Reach.REBOOT),
    ],
)
def test_what_a_place_is_called_and_outlives(url: str, called: str, outlives: Reach) -> None:
    tier = Tier(url=url)
    assert (tier.called, tier.outlives) == (called, outlives)
    assert (Tier(url=url, name="far", reach="process").called, Tier(url=url, reach="process").outlives) == (
        "far",
        Reach.PROCESS,
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"tiers": [{"url": "s3://b/1"}, {"url": "s3://b/2"}]},
            "tiers[1].url: tier 0 of the list is called s3:b too: give one of them a name",
        ),
        (
            {"tiers": [{"url": "s3://b/1", "name": "far"}, {"url": "/far", "name": "far"}]},
            "tiers[1].name: tier 0 of the list is called far too: give one of them a name",
        ),
        ({"tiers": [{"url": "/a", "levels": [0, 0]}]}, "tiers[0].levels: [0, 0] names a level twice"),
        (
            {"tiers": [{"url": "/a", "levels": [0, 2], "codec": "zstd:1"}]},
            "tiers[0].codec: it is of optimizer state (level 1), which does not go there",
        ),
        (
            {"tiers": [{"url": "ram://", "reach": "machine"}]},
            "tiers[0].reach: memory does not outlive the machine's next start: `process`",
        ),
        ({"tiers": [{"url": "/a", "storage_class": "GLACIER"}]}, "tiers[0].storage_class: only object stores have"),
        (
            {"tiers": [{"url": "/a", "budget": "1 GB"}], "expected": {"checkpoint_size": "2 GB"}},
            "tiers[0].budget: 1 GB do not hold one checkpoint of 2 GB",
        ),
        (
            {"watermarks": {"clean_from": "60 %"}},
            "watermarks: clean_to, clean_from and emergency must rise, and are 70",
        ),
        ({"tiers": [{"url": "ftp://a"}]}, "tiers[0].url: 'ftp://a' is no place; expected s3://bucket/prefix"),
        ({"tiers": [{"url": "/a", "codec": "lz4"}]}, "tiers[0].codec: there is no 'lz4' in mementum.codecs"),
        ({"tiers": [{"url": "/a", "keep": 3}]}, "tiers[0].keep: there is no such key; the nearest is keep_last"),
    ],
)
def test_what_cannot_be_kept_is_told(values: dict[str, Any], message: str) -> None:
    (text,) = map(str, examine(values).findings)
    assert text.startswith(message)


def test_what_is_shown_reads_back_as_the_same(tmp_path: Any) -> None:
    tiers = [{"url": "s3://b/1", "options": {"region": "eu west"}}, {"url": "/a b", "levels": [0], "rate": "2 MB/s"}]
    made = load({"tiers": tiers, "watermarks": "off", "scrub": False, "retention_days": {"level_1": 7}})
    text = rendered(made)
    assert '  - {url: "/a b", levels: [0], rate: 2 MB/s}' in text
    assert "watermarks: off" in text
    (tmp_path / "shown.yaml").write_text(text)
    assert load(tmp_path / "shown.yaml").settings == made.settings
