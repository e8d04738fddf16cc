"""A day with a GPU: everything that is worth knowing of it, in parts that fit into minutes."""
