"""Environments of the GEM API, each in a sandbox of its own, and clients of them.

They use the service and EnvHub, which do not import this package.
"""
