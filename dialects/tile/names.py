"""Groups of ops of the tile dialect, by name."""

DOTS = ("tile.dot", "tile.dot_add", "tile.dot_rescale")
"""Products of tiles; the latter two add to a tile, which `tile.dot_rescale` scales first."""
