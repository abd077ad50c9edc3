"""The two classes of logs, and the containers and segment numbers of each class.

A segment of a class is in a container of that class. The class is part of the segment's number, so that every process
and every client knows it from the segment's name alone: numbers are divided into blocks of 2^20, and the blocks belong
to the classes in turn. The segments of a stream all have numbers of one class.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.model.errors import IllegalStateError, InvalidRequestError
from headrace.model.names import container_hash_key
from headrace.model.routing import container_of_hash_key
from headrace.model.segments import SEGMENT_NUMBER_MAX

NUMBER_BLOCK: Final = 1 << 20
"""Segment numbers of a class in a row. A stream that needs more continues in the next block of its class."""

_NUMBER_DIGITS_MAX: Final = 10


class LogClass(StrEnum):
    """Who acknowledges an append: STORES, when their disks have it, or S3, when an object has it."""

    STORES = "STORES"
    S3 = "S3"


_CLASSES: Final = (LogClass.STORES, LogClass.S3)


def class_of_number(number: int) -> LogClass:
    """The class of the segments with this number."""
    return _CLASSES[number // NUMBER_BLOCK % len(_CLASSES)]


def first_number_of_class(log_class: LogClass, least: int, count: int) -> int:
    """The first number, at least `least`, from which on `count` numbers belong to the class.

    Raises:
        InvalidRequestError: a block has fewer numbers than `count`.
        IllegalStateError: code "segment_numbers_used_up": the class has fewer numbers left.
    """
    if not 1 <= count <= NUMBER_BLOCK:
        raise InvalidRequestError(f"{count} segments do not fit into a block of {NUMBER_BLOCK} segment numbers")
    block, first = least // NUMBER_BLOCK, least
    if class_of_number(least) is not log_class or (least + count - 1) // NUMBER_BLOCK != block:
        block += 1
        while class_of_number(block * NUMBER_BLOCK) is not log_class:
            block += 1
        first = block * NUMBER_BLOCK
    if first + count - 1 > SEGMENT_NUMBER_MAX:
        raise IllegalStateError(
            f"{count} more segments of the class {log_class} need numbers from {first} on, and the largest number is "
            f"{SEGMENT_NUMBER_MAX}: numbers of a name are never used again, so create a stream with another name",
            details={"logClass": str(log_class), "firstNumber": first, "segments": count},
            code="segment_numbers_used_up",
        )
    return first


def check_has_containers(log_class: LogClass, s3_containers: int) -> None:
    """Raises IllegalStateError, code "no_s3_containers", if a deployment has no containers for streams of a class."""
    if log_class is LogClass.S3 and not s3_containers:
        raise IllegalStateError(
            "this deployment has no containers for streams that S3 acknowledges: leave the class out, or let the "
            "operator deploy with s3_containers=4",
            code="no_s3_containers",
        )


@dataclass(frozen=True, slots=True)
class ContainerLayout:
    """The containers of a deployment, two numbers that never change.

    Containers 0 to `store_containers` - 1 are of the class STORES, the next `s3_containers` of the class S3. Without
    any of the latter, every segment is in one of the former.

    Raises:
        InvalidRequestError: a number is out of its range.
    """

    store_containers: int
    s3_containers: int = 0

    def __post_init__(self) -> None:
        if self.store_containers < 1 or self.s3_containers < 0:
            raise InvalidRequestError(
                f"{self.store_containers} containers and {self.s3_containers} of the class S3 are not possible: "
                "the first number must be at least 1, the second at least 0"
            )

    @property
    def count(self) -> int:
        """All containers."""
        return self.store_containers + self.s3_containers

    def class_of(self, container: int) -> LogClass:
        """The class of a container."""
        return LogClass.STORES if container < self.store_containers else LogClass.S3

    def container_of_segment(self, name: str) -> int:
        """The container that owns a segment: all epochs of a number, its transactions and transients share one."""
        key = container_hash_key(name)
        if self.s3_containers and _class_of_key(key) is LogClass.S3:
            return self.store_containers + container_of_hash_key(key, self.s3_containers)
        return container_of_hash_key(key, self.store_containers)


def _class_of_key(key: str) -> LogClass:
    """The class of a segment's hash key; STORES for a name without a number."""
    number = key.rpartition("/")[2]
    if not (number.isascii() and number.isdecimal()) or len(number) > _NUMBER_DIGITS_MAX:
        return LogClass.STORES
    return class_of_number(int(number))
