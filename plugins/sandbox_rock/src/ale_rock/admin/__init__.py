"""The admin of the service: it keeps the state of all sandboxes, chooses workers, and passes requests on to them."""
