"""Builds the services of the function "plans" from the adapters that `wiring` chooses."""

from __future__ import annotations

from functions import wiring
from functions.built_once import once
from headrace.controller.services.reader_plans import NextCutService, RangePlanService


@once
def next_cut_service() -> NextCutService:
    return NextCutService(wiring.metadata_store(), wiring.segment_stores())


@once
def range_plan_service() -> RangePlanService:
    return RangePlanService(
        wiring.metadata_store(),
        wiring.segment_stores(),
        wiring.chunk_links(),
        wiring.workers(),
        *wiring.environment().containers,
    )
