"""Makes the runs that came by one merge those of their new segment in the chunk directory: all of them, or none.

Runs that fit into one transaction are moved in it. More of them become the target's by one record, a link to the
segment that has them, and then follow it batch by batch; readers of the directory follow the link. A step that was
done unheard is found, so that an attempt after a crash, by the same owner or the next one, goes on where it stopped.
"""

from __future__ import annotations

from headrace.codec.container_snapshots import MergedRange
from headrace.model.chunks import ChunkRun, RunLink
from headrace.model.errors import CorruptError
from headrace.segmentstore.tiering import chunk_directory
from headrace.segmentstore.tiering.chunk_directory import ChunkDirectory, changed


async def move_merged(directory: ChunkDirectory, target: str, merged: MergedRange) -> list[ChunkRun] | None:
    """Have the bytes of a merge under the target's name; its last runs then.

    None if the directory does not have these bytes, neither there nor where they came from.

    Raises:
        CorruptError: runs that a link speaks of are missing.
        FencedError: the container has another owner.
        ThrottledError, UnavailableError: the metadata store does not answer, or something changed; look again.
    """
    name, position = merged.place
    end = position + merged.length
    moves_max = chunk_directory.MOVES_PER_WRITE_MAX
    found = await directory.page(name, first=position, limit=moves_max + 1)
    runs = [run for run in found if run.end <= end]
    if runs and runs[0].offset == position:
        if len(runs) > moves_max:
            link = RunLink(merged.offset, merged.length, name, position, merged.ordering)
            await directory.link(target, link, runs[0])
        elif runs[-1].end == end:
            moved = [run.moved(merged.offset - position, merged.ordering) for run in runs]
            if await directory.move(name, target, runs, moved):
                return moved
    # The link is there now, or an earlier attempt came further than its caller heard.
    entry = await directory.entry_before(target, merged.end)
    if isinstance(entry, RunLink):
        return await follow_link(directory, target, entry)
    return None if entry is None or entry.end < merged.end else [entry]


async def complete_link(directory: ChunkDirectory, name: str, last: RunLink) -> bool:
    """Follow the link `last` that ends a segment or, if it is forwarding, the one to the runs of this segment.

    Returns False if the directory does not have it any more. Raises as `move_merged`.
    """
    target, end = (last.segment, last.position + last.length) if last.is_forwarding else (name, last.end)
    async with directory.completing_links:  # it may be found by both names at a time
        link = await directory.entry_before(target, end)
        if not isinstance(link, RunLink):
            return False
        await follow_link(directory, target, link)
    return True


async def follow_link(directory: ChunkDirectory, target: str, link: RunLink) -> list[ChunkRun]:
    """Move the runs behind the link that ends the directory of `target`, until there is none; raises as `move_merged`.

    Returns the runs that it moved.
    """
    entered: list[ChunkRun] = []
    while True:
        limit = chunk_directory.LINKED_MOVES_PER_WRITE_MAX
        found = await directory.page(link.segment, first=link.position, limit=limit)
        runs = [run for run in found if run.end <= link.position + link.length]
        if not runs or runs[0].offset != link.position:
            if await directory.entry_before(target, link.end) != link:
                raise changed()  # an earlier attempt, which had no answer, has moved them since the link was read
            raise CorruptError(
                f"the chunk directory has lost runs of {link.segment} from {link.position} on, merged into {target}",
                details={"segment": target, "offset": link.offset},
            )
        moved = await directory.move_linked(target, link, runs)
        entered += moved
        end = moved[-1].end
        if end == link.end:
            return entered
        link = RunLink(end, link.end - end, link.segment, runs[-1].end, link.ordering)
