"""One module per operation, with everything about it: acceptance, ordered steps, rollback and replay of a dead letter.

`registry.py` lists them. `headrace.controller.engine` runs their steps. A service reaches an operation through this
package, as in `operations.seal_stream.accept`. The module is then imported with the first request for the operation,
because imports are most of a cold start, and most functions answer questions first.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.controller.operations import (
        create_key_value_table as create_key_value_table,
    )
    from headrace.controller.operations import (
        create_reader_group as create_reader_group,
    )
    from headrace.controller.operations import (
        create_stream as create_stream,
    )
    from headrace.controller.operations import (
        delete_key_value_table as delete_key_value_table,
    )
    from headrace.controller.operations import (
        delete_reader_group as delete_reader_group,
    )
    from headrace.controller.operations import (
        delete_scope as delete_scope,
    )
    from headrace.controller.operations import (
        delete_stream as delete_stream,
    )
    from headrace.controller.operations import (
        scale_stream as scale_stream,
    )
    from headrace.controller.operations import (
        seal_stream as seal_stream,
    )
    from headrace.controller.operations import (
        truncate_stream as truncate_stream,
    )
    from headrace.controller.operations import (
        update_reader_group as update_reader_group,
    )
    from headrace.controller.operations import (
        update_stream as update_stream,
    )


def __getattr__(name: str) -> ModuleType:
    if name.startswith("_"):
        raise AttributeError(name)
    return importlib.import_module(f"{__name__}.{name}")
