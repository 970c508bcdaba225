"""What engines that run as servers share: environments, processes, HTTP client, fingerprints of weights, the pool."""
