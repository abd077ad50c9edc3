"""Creates the stacks in the order of their deployment, and checks them with cdk-nag if the settings say so."""

from __future__ import annotations

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from infra.constructs.deployed_resources import STORES_STACK_NAME
from infra.constructs.encryption_at_rest import encrypt_stack
from infra.constructs.segment_store_zone import APPLICATION, APPLICATION_TAG
from infra.settings import KMS_KEY_CREATED, Settings
from infra.stacks.audit_log import AuditLogStack
from infra.stacks.certificates import CertificatesStack
from infra.stacks.chunks import ChunksStack
from infra.stacks.controller_api import ControllerApiStack
from infra.stacks.dashboard import DashboardStack
from infra.stacks.encryption_key import EncryptionKeyStack
from infra.stacks.external_access import ExternalAccessStack
from infra.stacks.grpc_bridge import GrpcBridgeStack
from infra.stacks.metadata import MetadataStack
from infra.stacks.network import NetworkStack
from infra.stacks.observability import ObservabilityStack
from infra.stacks.processors import ProcessorsStack
from infra.stacks.queues import QueuesStack
from infra.stacks.segment_stores import SegmentStoresStack
from infra.stacks.spark import SparkStack
from infra.stacks.token_keys import TokenKeysStack


def add_stacks(app: cdk.App, settings: Settings) -> None:
    """Create all stacks of a deployment."""
    metadata = MetadataStack(app, "HeadraceMetadata", settings)
    chunks = ChunksStack(app, "HeadraceChunks", settings)
    audit_log = AuditLogStack(app, "HeadraceAuditLog", settings)
    queues = QueuesStack(app, "HeadraceQueues")
    observability = ObservabilityStack(app, "HeadraceObservability", settings)
    observability.add_stack_dependency(queues)
    network = NetworkStack(app, "HeadraceNetwork", settings)
    network.add_stack_dependency(observability)  # it has a function
    api = ControllerApiStack(app, "HeadraceControllerApi", settings, network.network)
    processors = ProcessorsStack(app, "HeadraceProcessors", settings, network.network)
    stores = SegmentStoresStack(app, STORES_STACK_NAME, settings, network.network)
    # The stacks of data are deployed first, so that they are destroyed last: they are protected, and `cdk destroy` ends
    # at the first stack that refuses. All stacks that cost money without use must be deleted before that.
    for transient in (queues, network):
        for data in (metadata, chunks, audit_log):
            transient.add_stack_dependency(data)
    # Stacks refer to resources by name, so the CDK cannot infer these dependencies.
    for stack in (api, processors, stores):
        for needed in (metadata, chunks, network):
            stack.add_stack_dependency(needed)
    # Alarms exist before what they watch, so that a deployment that fails there is watched, too.
    for stack in (api, processors, stores):
        stack.add_stack_dependency(observability)
    for stack in (api, processors):
        stack.add_stack_dependency(queues)
    # The logs of the API send audit lines to a processor, and CloudWatch tries whether they may.
    api.add_stack_dependency(processors)
    if settings.tokens:
        keys = TokenKeysStack(app, "HeadraceTokenKeys", settings, network.network)
        keys.add_stack_dependency(observability)
        for reader in (api, processors, stores):
            reader.add_stack_dependency(keys)
        # Functions send tokens before the stores demand them.
        for caller in (api, processors):
            stores.add_stack_dependency(caller)
    if settings.has_certificates:
        certificates = CertificatesStack(app, "HeadraceCertificates", settings, network.network)
        for before in (metadata, network, observability):
            certificates.add_stack_dependency(before)
        # Each store has a certificate before it must show one.
        stores.add_stack_dependency(certificates)
        external = _external_access(app, settings, network, observability)
        if external is not None:
            external.add_stack_dependency(certificates)
            # Stores announce addresses that exist.
            stores.add_stack_dependency(external)
        if settings.grpc_bridge:
            bridge = GrpcBridgeStack(app, "HeadraceGrpcBridge", settings, network.network)
            # The stack of the stores has the cluster, and that of the processors copies audit lines.
            for deployed in (certificates, queues, processors, stores):
                bridge.add_stack_dependency(deployed)
    if settings.spark_job:
        spark = SparkStack(app, "HeadraceSpark", settings, network=network.network)
        spark.add_stack_dependency(network)
        spark.add_stack_dependency(api)
    dashboard = DashboardStack(app, "HeadraceDashboard", settings)
    for watched in (api, processors, stores):  # saved queries name their log groups
        dashboard.add_stack_dependency(watched)
    if settings.kms_key is not None:
        _encrypt_all(app, settings)
    cdk.Tags.of(app).add(APPLICATION_TAG, APPLICATION)
    judge_if_asked(app, settings)


def _external_access(
    app: cdk.App, settings: Settings, network: NetworkStack, observability: ObservabilityStack
) -> ExternalAccessStack | None:
    """The stack for clients outside the network; None if there are none."""
    if settings.external_domain is None:
        return None
    external = ExternalAccessStack(app, "HeadraceExternal", settings, network.network)
    external.add_stack_dependency(network)
    external.add_stack_dependency(observability)
    return external


def _encrypt_all(app: cdk.App, settings: Settings) -> None:
    """Encrypt what all stacks store with the key of the settings."""
    stacks = [each for each in app.node.children if isinstance(each, cdk.Stack)]
    created = settings.kms_key == KMS_KEY_CREATED
    key = EncryptionKeyStack(app, "HeadraceEncryptionKey", settings) if created else None
    for stack in stacks:
        encrypt_stack(stack, None if created else settings.kms_key)
        if key is not None:
            stack.add_stack_dependency(key)


def judge_if_asked(app: cdk.App, settings: Settings) -> None:
    """Check with cdk-nag if the settings say so: `make synth` and CI do, each deployment need not."""
    if settings.nag:
        judge(app)


def judge(app: cdk.App) -> None:
    """Make `synth` fail on every finding of cdk-nag's AWS Solutions rules that is not acknowledged with a reason."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))
