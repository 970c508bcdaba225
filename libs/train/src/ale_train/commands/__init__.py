"""The commands `ale run`, `eval`, `tasks` and `config`; each imports what it needs when it runs."""
