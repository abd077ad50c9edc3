"""Three real stores with three copies under load: they are killed, stopped, emptied and replaced; nothing is lost."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fuzz.checker import WrongStateError
from fuzz.connections import SocketConnection
from fuzz.network_cuts import AWS, Cut, NetworkCuts, network_cuts
from fuzz.randomness import Random
from fuzz.replicated_load import ReplicatedLoad, all_lanes
from fuzz.replicated_stores import CONTAINERS, Store, StoreGroup, replicated_stores
from headrace import wire
from headrace.adapters.system_clock import SystemClock

ZONES: Final = ("a", "b", "c")
SILENCE_S: Final = 2.0
"""How long no store may acknowledge anything while too few of them are there."""

SETTLE_S: Final = 0.3
"""What was acknowledged before a kill has reached its client by then."""

PAUSE_S: Final = 25.0
"""How long a process stays stopped, at most, when its containers are served elsewhere."""

STRANGER: Final = 99
"""The id of a writer that no history has: if anything of it is stored, a check fails."""

HAND_OVER_S: Final = 120.0
"""Far beyond what a deployment takes for one store: it only turns a hang into a failure."""

CUT_S: Final = 3.0
"""A cut lasts longer than the silence after which a link is given up."""

WITHOUT_AWS_S: Final = 12.0
"""A lease that is not renewed for this long has run out."""

EVIDENCE: Final = Path("build/fuzz")

_POLL_S: Final = 0.1


@dataclass(slots=True)
class Scene:
    """What a fault has to do with. `told` is what was measured."""

    group: StoreGroup
    load: ReplicatedLoad
    random: Random
    cuts: NetworkCuts
    told: list[str]

    @property
    def stores(self) -> list[Store]:
        return self.group.stores

    async def blocking(self, call: Callable[..., object], *arguments: object) -> None:
        await asyncio.to_thread(call, *arguments)

    def a_store(self) -> Store:
        return self.random.choice(self.stores)


Fault = Callable[[Scene], Awaitable[None]]


async def kill_one(scene: Scene) -> None:
    """The volume stays; it is back at once, or a little later."""
    store = scene.a_store()
    await scene.blocking(store.kill)
    await asyncio.sleep(scene.random.choice((0.0, 0.5, 3.0)))
    await scene.blocking(scene.group.start, store)
    await scene.load.progress()


async def lose_one(scene: Scene) -> None:
    """Its volume is gone, once every log has three copies."""
    await scene.group.complete()
    store = scene.a_store()
    await scene.blocking(store.lose)
    await scene.load.progress()
    await scene.blocking(scene.group.start, store)
    complete_s = await scene.group.complete()
    scene.told.append(f"three copies again {complete_s:.1f} s after the start of a new store")


async def kill_two(scene: Scene) -> None:
    await _kill_together(scene, scene.random.sample(scene.stores, 2))


async def kill_all(scene: Scene) -> None:
    await _kill_together(scene, list(scene.stores))


async def pause_one(scene: Scene) -> None:
    """SIGSTOP: others take over. A request that waited at the stopped store is never acknowledged."""
    await scene.group.complete()
    owners = await _owners(scene)
    store = scene.random.choice([each for each in scene.stores if each.store_id in owners.values()])
    container = next(container for container, owner in owners.items() if owner == store.store_id)
    connection = await SocketConnection.open(store.process.port, store.process.host)
    segment = scene.load.steady_segment(container)
    await connection.call(wire.SetupAppend(1, STRANGER, segment))
    store.process.pause()
    try:
        connection.send(wire.AppendBlockEnd(STRANGER, 4, b"late", 1, 1, 2))
        await scene.load.progress()
        await asyncio.sleep(scene.random.random() * PAUSE_S)
    finally:
        store.process.resume()
    try:
        reply = await connection.receive()
    except ConnectionError:
        reply = None
    connection.close()
    if isinstance(reply, wire.DataAppended):
        raise WrongStateError(f"{store.store_id} acknowledged {reply} after others had taken over")
    await scene.load.progress()


async def stall_disk(scene: Scene) -> None:
    """The disk of an owner hangs without an error: others take its containers over while it does.

    Next to stores of another release it is an owner of this tree: the other one may not watch its disk.
    """
    await scene.group.at_rest()
    owners = await _owners(scene)
    store = scene.random.choice(
        [each for each in scene.stores if each.runs_this_tree and each.store_id in owners.values()]
    )
    own = [container for container, owner in owners.items() if owner == store.store_id]
    store.stall_disk()
    try:
        await _taken_over(scene, store, own)
        await scene.load.progress(containers=own)
    finally:
        store.end_stall()
    await scene.load.progress()


async def replace_all(scene: Scene) -> None:
    """A deployment: for each store a new one of a newer revision first, then SIGTERM for the old one."""
    await scene.group.complete()
    watching = asyncio.create_task(_watch_copies(scene.group))
    try:
        for old in list(scene.stores):
            new = scene.group.add(old.zone, revision=len(scene.group.made))
            await scene.blocking(scene.group.start, new)
            await _hand_over(scene.group, old)
            if not await asyncio.to_thread(scene.group.stop, old):
                raise WrongStateError(f"the graceful shutdown of {old.store_id} failed")
            scene.stores.remove(old)
            await scene.group.complete()
            await scene.load.progress()
            if watching.done():
                watching.result()
    finally:
        watching.cancel()


async def cut_one_way(scene: Scene) -> None:
    """What one store says to another one is lost."""
    first, second = _two(scene)
    await _cut(scene, (first, second))


async def cut_pair(scene: Scene) -> None:
    """Two stores do not reach each other; the third one reaches both."""
    first, second = _two(scene)
    await _cut(scene, (first, second), (second, first))


async def cut_off_store(scene: Scene) -> None:
    """A store reaches no other store, but clients and AWS: others take its containers over."""
    store = scene.a_store()
    if not store.runs_this_tree:
        # The first release with replicated logs is not noticed to be isolated while it opens containers.
        await scene.group.at_rest()
    name = store.store_id
    others = [store.store_id for store in scene.stores if store.store_id != name]
    await _cut(scene, *[cut for other in others for cut in ((name, other), (other, name))])


async def cut_off_store_from_aws(scene: Scene) -> None:
    """A store goes on with its containers while it reaches neither DynamoDB nor S3."""
    await scene.group.at_rest()  # a hand-over that has begun waits for S3
    await scene.load.all_live()  # so does a check of what this store has not read yet
    name = scene.a_store().store_id
    owners = await _owners(scene)
    own = [container for container, owner in owners.items() if owner == name]
    scene.cuts.cut((name, AWS), (AWS, name))
    try:
        await asyncio.sleep(WITHOUT_AWS_S)
        await scene.load.progress(containers=own)
        after = await _owners(scene)
    finally:
        scene.cuts.heal()
    if any(after[container] != name for container in own):
        raise WrongStateError(f"{name} could not reach AWS, and owners {owners} became {after}")
    await scene.load.progress()


FAULTS: Final[dict[str, Fault]] = {
    fault.__name__: fault for fault in (kill_one, lose_one, kill_two, kill_all, pause_one, stall_disk, replace_all)
}
CUTS: Final[dict[str, Fault]] = {
    fault.__name__: fault for fault in (cut_one_way, cut_pair, cut_off_store, cut_off_store_from_aws)
}
"""Faults of the network. The stores reach each other through relays if one of these is chosen."""

ALL_FAULTS: Final = FAULTS | CUTS


def torture(
    seed: int, *, faults: Sequence[str] = (), count: int = 0, other: Path | None = None, evidence: Path = EVIDENCE
) -> str:
    """These faults, or so many random ones, under load; then a check after a start from the journals, and from tier 2.

    With `other`, the code of another release, every second store runs that; each deployment exchanges the two.
    Returns what was measured. After a failure or an interruption, logs and metadata are below `evidence`.

    Raises:
        WrongStateError, ContentError: something acknowledged was lost, or something else is there.
        LocalStackError: a store does not come up.
    """
    random = Random(seed)
    settings = {
        "flush_age_s": random.choice([0.1, 3600]),
        "checkpoint_bytes": random.choice([100_000, 10_000_000]),
        "log_level": "INFO",
    }
    candidates = tuple(random.choice((FAULTS, ALL_FAULTS)))
    chosen = faults or [random.choice(candidates) for _ in range(count)]
    with (
        tempfile.TemporaryDirectory(prefix="headrace-lost-stores-") as directory,
        network_cuts() as cuts,
        replicated_stores(Path(directory), settings, None if CUTS.keys().isdisjoint(chosen) else cuts, other) as group,
    ):
        try:
            group.start(*(group.add(zone) for zone in ZONES))
            return asyncio.run(_torture(group, cuts, random, chosen))
        except BaseException:
            group.keep_evidence(evidence / f"lost-stores-{seed}")
            raise


async def _torture(group: StoreGroup, cuts: NetworkCuts, random: Random, faults: Sequence[str]) -> str:
    clock = SystemClock()
    load = ReplicatedLoad(group.metadata, CONTAINERS, all_lanes(CONTAINERS, random), clock)
    scene = Scene(group, load, random, cuts, [])
    ticks = asyncio.create_task(group.watch())
    await load.start()
    await load.progress()
    for name in faults:
        started_s = clock.monotonic_s()
        await ALL_FAULTS[name](scene)
        longest_s = max(load.acknowledged.longest_pauses_s(started_s))
        scene.told.append(f"{name}: up to {longest_s:.1f} s without acknowledgements")
    for store in scene.stores:
        await scene.blocking(store.kill)
    await load.break_off()
    await scene.blocking(group.start, *scene.stores)
    await load.check()
    if not await asyncio.to_thread(group.stop, *scene.stores):
        raise WrongStateError("the graceful shutdown of a store failed")
    for store in scene.stores:
        store.empty()
    await scene.blocking(group.start, *scene.stores)
    await load.check()
    ticks.cancel()
    return f"{load.requests} requests; {'; '.join(scene.told)}"


async def _taken_over(scene: Scene, former: Store, containers: Sequence[int]) -> None:
    """Wait until other stores own these containers."""
    end_s = SystemClock().monotonic_s() + HAND_OVER_S
    while former.store_id in map((await _owners(scene)).get, containers):
        if SystemClock().monotonic_s() > end_s:
            raise WrongStateError(f"{former.store_id} has not lost containers {containers} in {HAND_OVER_S:.0f} s")
        await asyncio.sleep(_POLL_S)


async def _owners(scene: Scene) -> dict[int, str]:
    return await asyncio.to_thread(scene.group.owners)


async def _kill_together(scene: Scene, victims: Sequence[Store]) -> None:
    """The volumes stay. Nothing is acknowledged until a second store is back."""
    await asyncio.gather(*(scene.blocking(victim.kill) for victim in victims))
    await asyncio.sleep(SETTLE_S)
    before = scene.load.acknowledged.counts
    await asyncio.sleep(SILENCE_S)
    if scene.load.acknowledged.counts != before:
        raise WrongStateError(f"{before} acknowledgements became {scene.load.acknowledged.counts} on a single store")
    first, *others = victims
    second = [] if len(victims) < len(scene.stores) else [others.pop()]
    await scene.blocking(scene.group.start, first, *second)
    back_s = SystemClock().monotonic_s()
    await scene.load.progress()
    served_s = SystemClock().monotonic_s() - back_s
    scene.told.append(f"all containers acknowledge {served_s:.1f} s after the second store was back")
    await scene.blocking(scene.group.start, *others)


def _two(scene: Scene) -> tuple[str, str]:
    first, second = scene.random.sample(scene.stores, 2)
    return first.store_id, second.store_id


async def _cut(scene: Scene, *cuts: Cut) -> None:
    """Every container acknowledges while the network is cut, and again afterwards, with three copies."""
    await scene.group.complete()
    scene.cuts.cut(*cuts)
    try:
        await asyncio.sleep(CUT_S)
        await scene.load.progress()
    finally:
        scene.cuts.heal()
    await scene.load.progress()
    scene.told.append(f"three copies {await scene.group.complete():.1f} s after a cut of {len(cuts)} ways")


async def _hand_over(group: StoreGroup, old: Store) -> None:
    """Wait until the replacement of a store has taken its place in every log."""
    async with asyncio.timeout(HAND_OVER_S):
        while await asyncio.to_thread(group.is_member, old):
            await asyncio.sleep(_POLL_S)


async def _watch_copies(group: StoreGroup) -> None:
    """Until it is cancelled. Raises WrongStateError when a log has fewer than two members."""
    while True:
        few = {container: copies for container, copies in (await asyncio.to_thread(group.copies)).items() if copies < 2}
        if few:
            raise WrongStateError(f"logs with their number of members: {few}")
        await asyncio.sleep(_POLL_S)
