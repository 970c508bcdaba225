"""What tests of several packages of this repository share; authors of plugins need none of it."""
