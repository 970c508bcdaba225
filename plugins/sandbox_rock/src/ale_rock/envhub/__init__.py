"""EnvHub: a registry of environments by name and version. It uses the service, which does not import it."""
