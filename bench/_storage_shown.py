"""What the benchmark of storage shows: its tables, with ratios, and what is asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from _measure import Report
from _storage_chain import Kept
from _storage_content import Weighing
from _storage_decision import LOST_MOST, Decided
from _tables import Bar, print_bars, print_table, told
from rich.console import Console

TRAININGS = {
    "full": "GPT of 1.8 M, AdamW, 10 steps apart",
    "near": "the same, 1 step apart",
    "bf16": "the same in bf16, 10 steps apart",
    "encoder": "MiniLM, all 22.6 M, 5 steps apart",
    "lora": "MiniLM, LoRA",
}
WAYS = {
    "raw": "raw",
    "planes": "planes+zstd:1",
    "delta": "delta+planes+zstd:1",
    "tier_delta": "delta+planes+zstd:1, on a tier",
    "dcp_save": "dcp.save",
    "safetensors": "safetensors + torch.save",
    "adapters_alone": "torch.save of adapters alone (less content)",
}
DECIDED = {
    "fixed": "torch.save every 2000 steps",
    "ours": f"ours, at most {LOST_MOST} lost",
    "default": "ours, nothing set",
}
DOCUMENTS = {"saving less often": "-42 % (150 to 87 saves)"}
THEIR_REST = 0.36  # of all bytes: the documents' -64 %


def show(
    console: Console, weighed: Mapping[str, Weighing], decided: Mapping[str, Decided], kept: Sequence[Kept], r: Report
) -> None:
    """Every table."""
    for name, weighing in weighed.items():
        _content(console, name, weighing)
    _decisions(console, decided)
    _chain(console, kept, weighed)
    figures = r.figures
    for name in ("content_share_full", "content_share_lora", "written_share", "kept_share_full", "kept_share_lora"):
        console.print(f"  {name:34} {told(figures.get(name), 4)}", highlight=False)
    print_bars(
        console,
        [
            Bar(what="equal content, full", value=figures.get("content_share_full"), bound=1),
            Bar(what="equal content, LoRA", value=figures.get("content_share_lora"), bound=0.05),
            Bar(what="kept under the same rule, full", value=figures.get("kept_share_full"), bound=1),
            Bar(what="written in 1000 steps", value=figures.get("written_share"), bound=1, note="codec raw"),
            Bar(what="steps lost to a failure, to torch.save's", value=figures.get("lost_share"), bound=1),
            Bar(what="kept of 30 days, all ways", value=figures.get("left_keep_rule"), bound=THEIR_REST),
        ],
    )


def _content(console: Console, name: str, weighing: Weighing) -> None:
    whole = weighing.figures["torch_save.bytes"]
    rows = [("torch.save of everything", told(whole / 1e6, 2), "1.000", "1.000", "1.000", "1.000")]
    for way, what in WAYS.items():
        if (size := weighing.figures.get(f"{way}.bytes")) is None:
            continue
        shares = (
            weighing.share(way),
            weighing.share(way, what="bytes_mean"),
            weighing.share(way, what="written"),
            weighing.share(f"last_{way}", what="kept"),
        )
        rows.append((what, told(size / 1e6, 2), *(told(share) for share in shares)))
    coded = int(weighing.figures.get("delta.bases", 0))
    title = (
        f"{TRAININGS[name]}: a checkpoint (zeros in the optimizer: {weighing.figures['untouched_share']:.1%};"
        f" {coded} of {weighing.plan.saves} deltas)"
    )
    names = ("way", "MB", "to torch.save", "first included", "written", f"kept, newest {weighing.plan.keep}")
    print_table(console, title, names, rows)


def _decisions(console: Console, decided: Mapping[str, Decided]) -> None:
    rows = []
    for name, one in decided.items():
        lost = (one.lost_process, one.lost_reboot, one.lost)
        rows.append((DECIDED[name], told(one.per_1000), str(one.in_memory), *(told(steps, 0) for steps in lost)))
    title = f"How often it is saved, {decided['fixed'].steps:,} steps of 1.2 s; steps lost to a failure, on average"
    names = ("way", "saves in 1000 steps", "in memory", "process ends", "machine starts anew", "both, as published")
    print_table(console, title, names, rows)


def _chain(console: Console, kept: Sequence[Kept], weighed: Mapping[str, Weighing]) -> None:
    """Way by way; granularity and frozen weights stand beside."""
    whole, before, rows = kept[0].size, kept[0].size, []
    by_name = {one.name: one for one in kept}
    for one in kept:
        beside = one.name == "granularity"
        change = one.size / (by_name["codec"].size if beside else before) - 1
        said = "" if one is kept[0] else f"{change:+.1%}" + (" of codec" if beside else "")
        amounts = (told(one.size / 1e6, 1), told(one.size / whole), said, str(one.saves), str(one.checkpoints))
        written = told(one.written / kept[0].written)
        rows.append((one.name, *amounts, written, DOCUMENTS.get(one.name, "")))
        before = one.size
    if "lora" in weighed:
        lora = weighed["lora"]
        share = lora.figures["raw.kept"] / lora.figures["torch_save.kept_all"]
        saves = str(lora.plan.saves)
        rows.append(("frozen reuse (LoRA, raw)", "", told(share), f"{share - 1:+.1%}", saves, saves, "", ""))
    names = ("way, with all before it", "MB", "left", "change", "saves", "there", "written", "the documents'")
    print_table(console, "30 days: what is left of torch.save of everything, every save kept", names, rows)
