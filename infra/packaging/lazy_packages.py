"""Rewrites package roots in the bundle so that they import a part when it is used.

A root such as `aws_lambda_powertools.event_handler` imports the names of all its parts. Python runs the root before any
import from the package, and so loads the resolvers for AppSync and Bedrock and the whole of asyncio. Only roots that
contain nothing but such imports are rewritten; they provide the same names as before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = (
    "aws_lambda_powertools/event_handler",
    "aws_lambda_powertools/event_handler/openapi",
    "aws_lambda_powertools/metrics",
    "aws_lambda_powertools/utilities/data_classes",
)

_GETATTR = """
def __getattr__(name):
    if name not in _PARTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module
    module, attribute = _PARTS[name]
    found = globals()[name] = getattr(import_module(module), attribute)
    return found
"""


def defer_imports_of_roots(bundle: Path) -> None:
    """Rewrite the roots of `PACKAGES` in the folder `bundle`.

    Raises:
        FileNotFoundError: a package is not there.
        ValueError: a root does more than gather names: its layout has changed.
    """
    for package in PACKAGES:
        root = bundle / package / "__init__.py"
        deferred = _deferred(package.replace("/", "."), root)
        root.unlink()  # A new file: the old one may be a hard link to an installed package, which must stay whole.
        root.write_text(deferred)


def _deferred(package: str, root: Path) -> str:
    parts: dict[str, tuple[str, str]] = {}
    kept: list[ast.stmt] = []
    for node in ast.parse(root.read_text()).body:
        if not isinstance(node, ast.ImportFrom):
            if not _is_docstring_or_all(node):
                raise ValueError(f"the root of {package} does more than gather names: line {node.lineno}")
            kept.append(node)
            continue
        for name, part in _gathered(package, node):
            if (root.parent / name).is_dir() or (root.parent / f"{name}.py").is_file():
                # Python sets this name to the part when the part is imported, so it must be replaced at once.
                kept.append(node)
            else:
                parts[name] = part
    return "\n".join([*map(ast.unparse, kept), f"_PARTS = {parts!r}", _GETATTR])


def _gathered(package: str, node: ast.ImportFrom) -> Iterator[tuple[str, tuple[str, str]]]:
    """The names that an import adds to the root, with the module and the attribute that each is."""
    module = node.module or ""
    if node.level:
        module = f"{package}.{module}"
    if node.level > 1 or not module.startswith(f"{package}."):
        raise ValueError(f"the root of {package} gathers names from outside: line {node.lineno}")
    for alias in node.names:
        yield alias.asname or alias.name, (module, alias.name)


def _is_docstring_or_all(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assign):
        return [ast.unparse(target) for target in node.targets] == ["__all__"]
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
