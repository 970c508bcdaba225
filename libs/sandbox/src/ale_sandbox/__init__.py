"""The process that lives in each sandbox and does what the host asks, and the host's side of it."""
