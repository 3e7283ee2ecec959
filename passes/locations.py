"""What the location of an op tells: the user's name, and the place in a file."""

from attn_mlir.mlir import ir


def location_name(location: ir.Location) -> str | None:
    """The user's name for a value, when its location carries one."""
    if isinstance(location, ir.NameLoc):
        return location.name_str
    if isinstance(location, ir.FusedLoc):
        return next((name for name in map(location_name, location.locations) if name), None)
    return None


def place_of(location: ir.Location) -> ir.Location | None:
    """File, line and column in a location, without the names around them."""
    if isinstance(location, ir.NameLoc):
        return place_of(location.child_loc)
    if isinstance(location, ir.FusedLoc):
        return next((place for place in map(place_of, location.locations) if place is not None), None)
    return location if isinstance(location, ir.FileLineColLoc) else None
