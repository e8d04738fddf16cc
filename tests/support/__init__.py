"""What the tests share; a package, so that no other `support` takes its place."""
