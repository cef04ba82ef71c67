"""Examining: which checkpoint of a task a start would resume from, and why the newer ones would not do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mementum.cli.finding import Finding, Severity
from mementum.cli.reading import exists, settled_since
from mementum.cli.scanning import Scanned
from mementum.cli.text import counted, moment
from mementum.errors import MementumError, NewerFormat, NotReadableHere, UnknownFormat, UsageError
from mementum.execute import origin
from mementum.format import codec as codecs
from mementum.format.levels import kind_of
from mementum.records import Damage, Entry, Granularity, Health, Index, Manifest, record
from mementum.recover.choose import candidates
from mementum.recover.verify import Proved, examine, verify


@record
class Proof:
    """What was found out about a checkpoint. `refused` says why this process cannot read it, which is no damage."""

    damage: tuple[Damage, ...] = ()
    refused: MementumError | None = None
    why: str = ""  # a word for the refusal: class, codec, newer, or refused by the system


def checkpoints(scanned: Scanned, found: Sequence[Entry], *, deep: bool) -> Iterator[Finding]:
    """All that is said of a task's checkpoints, what a start would do first."""
    proofs = {entry.folder: prove(scanned, entry, deep=deep) for entry in found}
    # What its training has removed while we looked is no damage, and not there any more.
    present = [entry for entry in found if proofs[entry.folder] == Proof() or exists(scanned.store, entry)]
    yield from _unreadable(scanned)
    chosen = choose(present, proofs)
    yield _start(scanned, present, proofs, chosen)
    for entry in sorted(present, key=lambda entry: entry.order, reverse=True):
        yield from _one(scanned, entry, proofs[entry.folder], chosen, deep=deep)
    if chosen is not None:
        yield from _versions(scanned, chosen.manifest)


def prove(scanned: Scanned, entry: Entry, *, deep: bool) -> Proof:
    """Verify one checkpoint, shallow or deep, and see whether its codecs are here. One that its training has
    compressed meanwhile is verified as it is now."""
    proof = _prove(scanned, entry, deep=deep)
    try:
        later = settled_since(scanned.store, entry) if proof.damage else None
    except MementumError:
        return proof
    return proof if later is None else prove(scanned, later, deep=deep)


def _prove(scanned: Scanned, entry: Entry, *, deep: bool) -> Proof:
    try:
        proved = examine(scanned.store, entry.folder, entry.manifest)
        if not isinstance(proved, Proved):
            return Proof(damage=proved)
        missing = missing_codec(proved.index)
        if missing is not None:
            return Proof(refused=missing, why="codec")
        damage = verify(scanned.store, entry.folder, entry.manifest, deep=True) if deep else ()
    except UnknownFormat as error:
        return Proof(damage=(Damage(key=entry.folder, what=error.message),))
    except NewerFormat as error:
        return Proof(refused=error, why="newer")
    except NotReadableHere as error:  # the codecs are here and so is the format, so that a class must be missing
        return Proof(refused=error, why="class")
    except MementumError as error:
        return Proof(refused=error, why="refused")
    return Proof(damage=damage)


def missing_codec(index: Index) -> NotReadableHere | None:
    """What a start would say of the first codec that is not installed here."""
    for spec in dict.fromkeys(block.codec for file in (*index.files, *index.bases) for block in file.blocks):
        try:
            codecs.parse(codecs.split(spec)[1])
        except (UsageError, ImportError) as cause:  # the latter from a plugin that lacks what it needs
            why = cause.message if isinstance(cause, UsageError) else str(cause)
            return NotReadableHere(
                f"it was written with codec {spec!r}, which is not here: {why}",
                next_command="install the package that brought the codec",
            )
    return None


def choose(found: Sequence[Entry], proofs: Mapping[str, Proof]) -> Entry | None:
    """The checkpoint at which a start ends its search: the first that is not damaged, in the order it tries them."""
    return next((entry for entry in candidates(found) if not proofs[entry.folder].damage), None)


def _unreadable(scanned: Scanned) -> Iterator[Finding]:
    for damage in scanned.unreadable:
        yield Finding(
            severity=Severity.PROBLEM,
            kind="unreadable",
            task=scanned.name,
            what=f"{scanned.home}/{damage.key}: {damage.what}; a start passes it over, and nothing deletes its files",
            next_command=f"move {scanned.home}/{damage.key.partition('/')[0]} away when you do not need it any more",
        )
    for folder, error in scanned.refused.items():
        newer = isinstance(error, NewerFormat)
        yield Finding(
            severity=Severity.PROBLEM,
            kind="newer" if newer else "refused",
            task=scanned.name,
            what=f"{scanned.home}/{folder}: {error.message}" + ("; every start stops there" if newer else ""),
            next_command=error.next_command,
        )


def _start(scanned: Scanned, found: Sequence[Entry], proofs: Mapping[str, Proof], chosen: Entry | None) -> Finding:
    if chosen is None:
        return _nothing(scanned, found)
    manifest, proof = chosen.manifest, proofs[chosen.folder]
    which = f"{_name(chosen)}, saved {moment(manifest.time)} UTC"
    if proof.refused is None:
        exact = f" (not exact: {'; '.join(manifest.exactness)})" if manifest.exactness else ""
        return Finding(
            severity=Severity.OK, kind="resumes", task=scanned.name, what=f"a start resumes from {which}{exact}"
        )
    if proof.why == "class":  # our own process has not imported the training program
        return Finding(
            severity=Severity.WARNING,
            kind="class",
            task=scanned.name,
            what=f"a start resumes from {which}, if the program has its classes: {proof.refused.message}",
            next_command=proof.refused.next_command,
        )
    return Finding(
        severity=Severity.PROBLEM,
        kind=proof.why,
        task=scanned.name,
        what=f"a start stops at {which}: {proof.refused.message}",
        next_command=proof.refused.next_command,
    )


def _nothing(scanned: Scanned, found: Sequence[Entry]) -> Finding:
    full = candidates(found)
    if full:
        what = f"none of its {counted(len(full), 'full checkpoint')} is whole, and a start refuses to begin anew"
        next_command = f'{scanned.command("verify")} --deep; resume="never" begins anew beside them'
    elif found:
        what = f"its {counted(len(found), 'checkpoint')} hold weights only, and a start begins from nothing"
        next_command = f"{scanned.command('show')} says what the latest holds"
    else:
        what = "it has no checkpoint that can be read, and a start begins from nothing"
        next_command = "start the training: it saves as it goes"
    return Finding(severity=Severity.PROBLEM, kind="nothing", task=scanned.name, what=what, next_command=next_command)


def _one(scanned: Scanned, entry: Entry, proof: Proof, chosen: Entry | None, *, deep: bool) -> Iterator[Finding]:
    """What is wrong with a checkpoint, or why a start prefers an older one."""
    say = f"{_name(entry)}: "
    verify_it = scanned.command("verify", id=entry.manifest.id, options=" --deep")
    if proof.damage:
        first = proof.damage[0]
        more = f" ({counted(len(proof.damage), 'finding')} in all)" if len(proof.damage) > 1 else ""
        what = f"{say}{scanned.home}/{first.key}: {first.what}{more}; a start passes it over"
        yield _finding(Severity.PROBLEM, "damaged", scanned, what, verify_it)
    elif proof.refused is not None and entry is not chosen:
        what = f"{say}it cannot be examined here: {proof.refused.message}"
        yield _finding(Severity.WARNING, proof.why, scanned, what, proof.refused.next_command)
    elif entry.damaged is not None and deep:
        what = f"{say}it was recorded as damaged ({entry.damaged}) and every byte of it is whole now"
        yield _finding(Severity.NOTE, "recorded", scanned, what, f"{verify_it} records that")
    elif entry.damaged is not None:
        what = f"{say}it was found damaged before ({entry.damaged}); a start tries it last"
        yield _finding(Severity.PROBLEM, "damaged", scanned, what, f"{verify_it} finds out whether it still is")
    elif chosen is not None and entry.order > chosen.order:
        reason = _passed_by(entry)
        if reason is not None:
            yield _finding(Severity.NOTE, "newer-unused", scanned, f"{say}{reason}", None)


def _passed_by(entry: Entry) -> str | None:
    """Why a start prefers an older checkpoint to one that is whole."""
    if entry.manifest.granularity is not Granularity.FULL:
        kind = kind_of(entry.manifest.granularity, entry.manifest.levels)
        return f"it holds {kind.replace('_', ' ')} only: no start resumes from it"
    if entry.health is not Health.CLEAN:
        why = "" if entry.judged_why is None else f" ({entry.judged_why})"
        return f"its state is {entry.health.value}{why}: a start prefers older, healthier ones"
    return None


def _versions(scanned: Scanned, manifest: Manifest) -> Iterator[Finding]:
    from mementum.resuming import versions_that_differ  # late: it brings torch, which a damaged root does not need

    differ = versions_that_differ(manifest.versions, origin.versions())
    if differ:
        what = f"since it was saved here other software computes: {'; '.join(differ)}"
        yield _finding(
            Severity.NOTE, "versions", scanned, what, "install those versions where a resume must be bit for bit"
        )


def _name(entry: Entry) -> str:
    return f"step {entry.manifest.step} (checkpoint {entry.manifest.id})"


def _finding(severity: Severity, kind: str, scanned: Scanned, what: str, next_command: str | None) -> Finding:
    return Finding(severity=severity, kind=kind, task=scanned.name, what=what, next_command=next_command)
