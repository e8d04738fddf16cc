"""What can happen to the bytes of a cache file."""


def flip(position):
    """Returns a function that changes one bit of the byte there."""

    def damage(content):
        damaged = bytearray(content)
        damaged[position] ^= 1
        return bytes(damaged)

    return damage
