"""Nested dicts and lists, as JSON has them, with damage in any place."""

import copy


def places_in(data):
    """What leads to each part of nested dicts and lists."""
    parts = data.items() if isinstance(data, dict) else enumerate(data)
    for key, part in parts:
        yield (key,)
        if isinstance(part, dict | list):
            yield from ((key, *below) for below in places_in(part))


def damaged(data, place, wrong):
    """A copy with something else in one place; without it where that is `...`."""
    data = part = copy.deepcopy(data)
    *path, last = place
    for key in path:
        part = part[key]
    if wrong is ...:
        del part[last]
    else:
        part[last] = wrong
    return data
