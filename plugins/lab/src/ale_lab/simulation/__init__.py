"""A simulator of the loop: discrete events on a clock of their own, around the real sample buffer."""
