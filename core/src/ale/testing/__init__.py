"""The conformance kit: does a plugin keep the contract of its kind? Asked from outside, edges included.

    pip install 'ale-core[testing]'
    pytest --pyargs ale.testing --ale-plugin sandbox:docker [--ale-config FILE]

1. `plugin.py` is a pytest plugin (entry-point group `pytest11`): the two options, and the fixture `subject`, the plugin
   under test. FILE is YAML with the plugin's own settings, as under `use:` in a run file.
2. `test_<kind>.py`, with `test_<kind>_*.py`, is the suite of a kind, `test_driver.py` what holds for every kind; no other
   suite is collected. In a package's own tests `from ale.testing.test_sandbox import *` does the same.
3. `scenario.py` runs each test in an event loop of its own with a deadline: what hangs, fails with a sentence.
4. `reference.py` and `tiny_model.py` hold the other parts that a plugin is tested with: small, plain and real.
"""
