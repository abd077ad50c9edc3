"""The alarms on lines of the log of the stores, which have no CloudWatch client: metric filters count the lines."""

from __future__ import annotations

from dataclasses import dataclass

from infra.constructs.alarms import Alarm, Severity
from infra.constructs.named_metrics import line_metric


@dataclass(frozen=True, slots=True)
class LogAlarm:
    """Raised when stores have logged an event in each of so many minutes. `metric` is what counts its lines."""

    name: str
    event: str
    metric: str
    minutes: int
    meaning: str
    severity: Severity = "ticket"
    only_if_replicated: bool = False

    @property
    def searched(self) -> str:
        """What a line has that is counted: the event, as stores write it before its keys."""
        return f"event={self.event} "

    @property
    def alarm(self) -> Alarm:
        return Alarm(self.name, self.meaning, line_metric(self.metric), periods=self.minutes, severity=self.severity)


LOG_ALARMS = (
    LogAlarm(
        "headrace-store-restarting",
        "store_keeps_ending",
        "StoresRestarting",
        3,
        "A process of a store ends again and again: its task stays, because its volume may be needed",
    ),
    LogAlarm(
        "headrace-journal-failed",
        "journal_failed",
        "JournalsFailed",
        1,
        "A journal could not be written: its process was restarted",
    ),
    LogAlarm(
        "headrace-log-lag",
        "replica_lags",
        "ReplicasLagging",
        5,
        "A replica lacks more than 64 MiB that the others have: a slow disk, network or host",
        only_if_replicated=True,
    ),
    LogAlarm(
        "headrace-ack-p99",
        "acknowledgements_slow",
        "SlowAcknowledgements",
        10,
        "More than one acknowledgement in a hundred takes longer than 50 ms: two of three stores are slow",
        only_if_replicated=True,
    ),
    LogAlarm(
        "headrace-untiered-age",
        "untiered_data_old",
        "UntieredDataOld",
        5,
        "Data waits for S3 longer than a minute: only the logs have it",
    ),
    LogAlarm(
        "headrace-storage-refused",
        "storage_refused",
        "StorageRefusals",
        5,
        "S3 or DynamoDB refuses requests of the stores: credentials, a policy, a key or a clock",
        severity="page",
    ),
    LogAlarm(
        "headrace-segment-quarantined",
        "segment_quarantined",
        "SegmentsQuarantined",
        1,
        "Tier 2 refuses an item of a segment for good: it accepts no more bytes, and the log is kept for it",
        severity="page",
    ),
    LogAlarm(
        "headrace-owner-changes",
        "log_chain_long",
        "LogChainsLong",
        1,
        "The owners of a container stop again and again: its log will not be opened with 8,192 ledgers",
    ),
    LogAlarm(
        "headrace-disk-stall",
        "disk_stall",
        "DisksStalled",
        1,
        "The volume of a store answers nothing for 10 s, or answers again",
        only_if_replicated=True,
    ),
    LogAlarm(
        "headrace-crc-errors",
        "replica_message_corrupt",
        "ReplicaMessagesCorrupt",
        1,
        "Stores have received entries or messages with wrong checksums from other stores",
        only_if_replicated=True,
    ),
    LogAlarm(
        "headrace-journal-damaged",
        "journal_entry_damaged",
        "JournalsDamaged",
        1,
        "Bytes of a journal were damaged: other replicas have them",
        only_if_replicated=True,
    ),
    LogAlarm(
        "headrace-task-protected",
        "task_protected",
        "TasksProtected",
        15,
        "A store has asked ECS for 15 minutes not to stop its task: logs would be left with one copy",
        only_if_replicated=True,
    ),
)


def log_alarms(*, replicated: bool) -> list[LogAlarm]:
    """The alarms of a deployment with or without replicated logs."""
    return [each for each in LOG_ALARMS if replicated or not each.only_if_replicated]
