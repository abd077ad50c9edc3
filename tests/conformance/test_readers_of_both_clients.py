"""Readers of Pravega's Java client and of ours in one reader group: shares, checkpoints, failures, scales, resets."""

from __future__ import annotations

import itertools

import pytest
from mixed_group import MixedGroup

from headrace.client import Checkpoint


def cut_words(checkpoint: Checkpoint) -> str:
    """The positions of a checkpoint as the Java process prints them."""
    return " ".join(f"{segment}={at}" for cut in checkpoint.cuts for segment, at in sorted(cut.positions))


def positions(words: str) -> dict[int, int]:
    return {int(segment): int(at) for segment, at in (word.split("=") for word in words.split())}


def test_a_python_reader_joins_a_java_reader(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java")
    mixed.join_java()
    mixed.write(20)
    mixed.log.await_events(mixed.written)
    mixed.join_python()
    mixed.await_share(2)
    mixed.write(100)
    mixed.await_all()
    assert mixed.log.events_of("java")
    assert mixed.log.events_of("python")


def test_a_java_reader_joins_a_python_reader(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("python")
    mixed.join_python()
    mixed.write(20)
    mixed.log.await_events(mixed.written)
    mixed.join_java()
    mixed.await_share(2)
    mixed.write(100)
    mixed.await_all()
    assert mixed.log.events_of("java")
    assert mixed.log.events_of("python")


def test_both_join_while_events_are_written(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java")
    mixed.write(50)
    mixed.join_python()
    mixed.write(50)
    mixed.join_java()
    for _ in range(10):
        mixed.write(20)
    mixed.await_share(2)
    mixed.write(20)
    mixed.await_all()


@pytest.fixture
def shared(mixed: MixedGroup) -> MixedGroup:
    """A group without automatic checkpoints. Each client owns two of four segments, and 320 events were read."""
    mixed.create_stream()
    mixed.create_group("python", checkpoints_ms=0)
    mixed.join_python()
    mixed.join_java()
    mixed.await_share(2)
    mixed.write(20)
    mixed.await_all()
    return mixed


def test_a_checkpoint_of_python_has_the_positions_of_both(shared: MixedGroup):
    checkpoint = shared.group().checkpoint("c")
    _, _, _, at_checkpoint = shared.log.await_note("checkpoint", "java", "c")
    cut = positions(cut_words(checkpoint))
    assert positions(at_checkpoint).items() <= cut.items()
    assert cut == shared.ours.admin.stream_cut(shared.scope, "a", at="latest").offsets
    shared.write(5)
    assert shared.java.run("unread", "g") == str(shared.group().lag().bytes_unread) != "0"


def test_a_checkpoint_of_java_has_the_positions_of_both(shared: MixedGroup):
    cut = positions(shared.java.run("checkpoint", "g", "c"))
    shared.log.await_note("checkpoint", "java", "c")
    assert cut == shared.ours.admin.stream_cut(shared.scope, "a", at="latest").offsets
    shared.write(5)
    assert str(shared.group().lag().bytes_unread) == shared.java.run("unread", "g") != "0"
    shared.await_all()


def test_checkpoints_under_load_are_the_same_for_both(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java", checkpoints_ms=0)
    mixed.join_java()
    mixed.join_python()
    for number in range(3):
        mixed.write(100)
        cut = mixed.group().checkpoint(f"python-{number}")
        at_java = positions(mixed.log.await_note("checkpoint", "java", f"python-{number}")[3])
        assert at_java.items() <= positions(cut_words(cut)).items()
        mixed.write(100)
        assert len(positions(mixed.java.run("checkpoint", "g", f"java-{number}"))) == 4
    mixed.await_all()


def test_stream_cuts_of_either_client(shared: MixedGroup):
    tail = shared.ours.admin.stream_cut(shared.scope, "a", at="latest")
    assert shared.group().stream_cuts() == (tail,)
    assert positions(shared.java.run("cuts", "g")) == tail.offsets


def test_python_continues_after_a_java_reader_that_closes(shared: MixedGroup):
    shared.java.run("close", "java")
    shared.write(20)
    shared.await_all()
    assert list(shared.group().readers()) == ["python"]


def test_java_continues_after_a_python_reader_that_closes(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java")
    python = mixed.join_python()
    mixed.join_java()
    mixed.await_share(2)
    mixed.write(20)
    mixed.await_all()
    python.close()
    mixed.write(20)
    mixed.await_all()
    assert mixed.java.run("readers", "g") == "java"


def test_a_java_reader_declared_offline_at_its_position(shared: MixedGroup):
    shared.java.run("stop", "java")
    shared.java.run("offline", "g", "java")
    shared.write(20)
    shared.await_all()


def test_python_declares_a_java_reader_offline(shared: MixedGroup):
    shared.group().checkpoint("c")
    shared.java.run("stop", "java")
    assert shared.group().reader_offline("java")
    shared.write(20)
    shared.await_all()


def test_java_declares_a_killed_python_reader_offline(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java", checkpoints_ms=0)
    process = mixed.join_process("process")
    mixed.write(20)
    mixed.log.await_events(mixed.written)
    mixed.join_java()
    process.kill()
    mixed.java.run("offline", "g", "process")
    mixed.write(20)
    mixed.log.await_different_events(mixed.written)
    mixed.await_share(4, "java")
    assert len(set(mixed.log.events_of("java"))) == len(mixed.log.events_of("java"))
    assert len(set(mixed.log.events_of("process"))) == len(mixed.log.events_of("process"))


def test_a_killed_python_reader_whose_lease_runs_out(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("python")
    process = mixed.join_process("process", lease_s=2)
    mixed.write(20)
    mixed.log.await_events(mixed.written)
    mixed.join_java()
    mixed.await_share(2, "process", "java")
    mixed.join_python()
    process.kill()
    mixed.await_share(2)
    mixed.write(20)
    mixed.log.await_different_events(mixed.written)


def test_a_split_and_a_merge_under_readers_of_both(mixed: MixedGroup):
    mixed.create_stream(1)
    mixed.create_group("python")
    mixed.join_python()
    mixed.join_java()
    for width in (4, 1, 3, 2):
        mixed.write(30)
        active = mixed.ours.admin.segments(mixed.scope, "a")
        edges = [part / width for part in range(width)] + [1.0]
        ranges = list(itertools.pairwise(edges))
        seal = [segment.segment_id for segment in active]
        mixed.ours.admin.scale_stream(mixed.scope, "a", seal=seal, ranges=ranges)
    mixed.write(30)
    mixed.await_all()
    assert mixed.log.events_of("java")
    assert mixed.log.events_of("python")


def test_python_joins_after_java_has_compacted_the_state(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java")
    mixed.join_java()
    mixed.write(20)
    mixed.log.await_events(mixed.written)
    mixed.await_compaction()
    mixed.join_python()
    mixed.await_share(2)
    mixed.write(20)
    mixed.await_all()


def test_java_joins_after_python_has_compacted_the_state(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("python")
    mixed.join_python(lease_s=2)
    mixed.write(20)
    mixed.log.await_events(mixed.written)
    mixed.await_compaction()
    mixed.join_java()
    mixed.await_share(2)
    mixed.write(20)
    mixed.await_all()


def test_both_are_told_the_end_of_a_sealed_stream(mixed: MixedGroup):
    mixed.create_stream()
    mixed.create_group("java")
    mixed.join_java()
    mixed.join_python()
    mixed.await_share(2)
    mixed.write(20)
    mixed.ours.admin.seal_stream(mixed.scope, "a")
    mixed.await_all()
    mixed.log.await_note("ended", "python")
    mixed.log.await_note("ended", "java")


def test_a_java_reader_is_told_of_a_reset_by_python(shared: MixedGroup):
    shared.group().checkpoint("c")
    shared.group().reset("start")
    assert shared.log.await_note("failed", "java")[2] == "ReinitializationRequiredException"
    assert len(shared.log.await_events(2 * shared.written)) == 2 * shared.written
    shared.join_java("again")
    shared.await_share(2, "again", "python")
    shared.write(5)
    assert len(shared.log.await_events(2 * shared.written - 80)) == 2 * shared.written - 80
    assert shared.log.events_of("again")


def test_a_python_reader_follows_a_reset_by_java(shared: MixedGroup):
    before = len(shared.log.events_of("python"))
    shared.java.run("reset", "g", "a", "0")
    assert shared.log.await_note("failed", "java")[2] == "ReinitializationRequiredException"
    shared.log.await_events_of("python", before + shared.written)
    assert len(shared.log.events_of("python")) == before + shared.written


def test_a_reset_by_java_to_a_checkpoint_of_python(shared: MixedGroup):
    shared.group().checkpoint("c")
    shared.write(10)
    shared.await_all()
    shared.java.run("reset-to-checkpoint", "g")
    shared.log.await_note("failed", "java")
    assert len(shared.log.await_events(shared.written + 160)) == shared.written + 160
