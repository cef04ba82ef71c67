"""The nouns: frozen records that cross the border between two stages. They hold facts, and know no stage."""

from __future__ import annotations

from mementum.records.making import Buffer as Buffer
from mementum.records.making import record as record
from mementum.records.seen import Alarm as Alarm
from mementum.records.seen import Allowance as Allowance
from mementum.records.seen import Decision as Decision
from mementum.records.seen import Diagnosis as Diagnosis
from mementum.records.seen import Notice as Notice
from mementum.records.seen import Save as Save
from mementum.records.seen import Situation as Situation
from mementum.records.seen import Skip as Skip
from mementum.records.seen import Standing as Standing
from mementum.records.seen import Vitals as Vitals
from mementum.records.stored import LEVELS as LEVELS
from mementum.records.stored import NON_FINITE as NON_FINITE
from mementum.records.stored import Blob as Blob
from mementum.records.stored import Block as Block
from mementum.records.stored import Damage as Damage
from mementum.records.stored import DataFile as DataFile
from mementum.records.stored import Entry as Entry
from mementum.records.stored import Fact as Fact
from mementum.records.stored import Index as Index
from mementum.records.stored import Manifest as Manifest
from mementum.records.stored import Place as Place
from mementum.records.stored import Start as Start
from mementum.records.stored import StoredFile as StoredFile
from mementum.records.stored import StoredTensor as StoredTensor
from mementum.records.stored import Usage as Usage
from mementum.records.stored import Verdict as Verdict
from mementum.records.told import Detour as Detour
from mementum.records.told import Exactness as Exactness
from mementum.records.told import Resumed as Resumed
from mementum.records.words import CLEARS as CLEARS
from mementum.records.words import Granularity as Granularity
from mementum.records.words import Health as Health
from mementum.records.words import Reach as Reach
from mementum.records.words import Trouble as Trouble
