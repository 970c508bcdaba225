"""The client side of a service: the provider `rock`, its sandboxes, and the requests behind them."""
