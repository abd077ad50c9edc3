"""The web console: `headrace console`, and part of `headrace up`. Needs the extra `headrace[console]`.

Pure functions turn the answers of the client into rectangles and SVG; a Starlette application shows them on loopback.
"""
