"""An SQS queue with its dead-letter queue, as the topology declares it: FIFO for requests, standard for ticks.

FIFO queues run in high-throughput mode: messages are deduplicated within their group, and limits count per group, since
every stream is a group of its own. Dead letters stay as long as SQS allows, so that a weekend loses none.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from headrace.topology import Queue
from infra.constructs.deployed_resources import DeployedResources

MESSAGE_RETENTION_DAYS = 4
DEAD_LETTER_RETENTION_DAYS = 14


class QueueWithDeadLetters(Construct):
    """`queue` and `dead_letters`, encrypted and reachable over TLS only."""

    def __init__(self, scope: Construct, declared: Queue) -> None:
        super().__init__(scope, declared.name.replace(".", "-"))
        self.declared = declared
        source_arn = DeployedResources.seen_from(self).queue_arn(declared)
        self.dead_letters = sqs.Queue(
            self,
            "DeadLetters",
            queue_name=declared.dead_letters.name,
            fifo=declared.fifo or None,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            visibility_timeout=cdk.Duration.seconds(declared.dead_letters.visibility_timeout_s),
            retention_period=cdk.Duration.days(DEAD_LETTER_RETENTION_DAYS),
            redrive_allow_policy=sqs.RedriveAllowPolicy(
                # By name, since the two queues would otherwise refer to each other in a circle.
                source_queues=[sqs.Queue.from_queue_arn(self, "Source", source_arn)]
            ),
        )
        self.queue = sqs.Queue(
            self,
            "Queue",
            queue_name=declared.name,
            fifo=declared.fifo or None,
            deduplication_scope=sqs.DeduplicationScope.MESSAGE_GROUP if declared.fifo else None,
            fifo_throughput_limit=sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID if declared.fifo else None,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            visibility_timeout=cdk.Duration.seconds(declared.visibility_timeout_s),
            retention_period=cdk.Duration.days(MESSAGE_RETENTION_DAYS),
            dead_letter_queue=sqs.DeadLetterQueue(
                queue=self.dead_letters, max_receive_count=declared.max_receive_count
            ),
        )
